"""Run the authors' Transformers back-end on one golden case.

Needs the packages named in ``make_golden.py``; never imported by the tests.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from dflash import model as authors

from tests.golden.variants import Variant

SAMPLED_TEMPERATURE = 0.7


def load(folder: Path, variant: Variant) -> authors.DFlashDraftModel:
    """Load a checkpoint the way the package's own runner does."""
    kind = getattr(authors, variant.config["architectures"][0])
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def linear(weight: np.ndarray) -> torch.nn.Linear:
    """A target's output head."""
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight.data = torch.from_numpy(weight.copy())
    return head


def block_embedding(
    drafter: authors.DFlashDraftModel, inputs: dict[str, np.ndarray], anchor: int, width: int
) -> torch.Tensor:
    """Rows of the borrowed table: the anchor, then mask tokens."""
    ids = torch.tensor([[anchor] + [drafter.mask_token_id] * (width - 1)])
    scale = float(drafter.config.dflash_config.get("input_embedding_scale", 1.0))
    return torch.nn.functional.embedding(ids, torch.from_numpy(inputs["embedding"])) * scale


def propose(
    drafter: authors.DFlashDraftModel, hidden: torch.Tensor, anchor: int, head: torch.nn.Linear
) -> dict[str, np.ndarray]:
    """Logits and proposals of rows 1.., greedy and one sampled walk with its q."""
    rows = hidden[:, 1:]
    logits = drafter.compute_logits(rows, head)
    result = {"hidden": hidden[0].numpy(), "logits": logits[0].numpy()}
    if not isinstance(drafter, authors.DFlash2DraftModel):
        return result | {"proposal": logits.argmax(-1)[0].numpy().astype(np.int32)}
    anchors = torch.tensor([anchor])
    greedy, _, _ = drafter.propose(rows, anchors, head, 0.0)
    tokens, candidates, q = drafter.propose(rows, anchors, head, SAMPLED_TEMPERATURE)
    # Their candidates come unsorted; keep them by descending logit.
    order = logits.gather(-1, candidates).argsort(-1, descending=True)
    return result | {
        "proposal": greedy[0].numpy().astype(np.int32),
        "sampled.tokens": tokens[0].numpy().astype(np.int32),
        "sampled.candidates": candidates.gather(-1, order)[0].numpy().astype(np.int32),
        "sampled.q": q.gather(-1, order)[0].numpy(),
    }


@torch.inference_mode()
def run(folder: Path, variant: Variant, inputs: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Append the context piece by piece, drafting a block after each."""
    torch.manual_seed(variant.seed)
    drafter, head = load(folder, variant), linear(inputs["head"])
    cache = authors._make_cache(drafter.config)
    taps = torch.from_numpy(inputs["target_hidden"])[None]
    outputs, start = [], 0
    for step, anchor in zip(variant.steps, inputs["anchors"].tolist(), strict=True):
        end = start + step.rows
        hidden = drafter(
            target_hidden=taps[:, start:end],
            noise_embedding=block_embedding(drafter, inputs, anchor, step.width),
            position_ids=torch.arange(start, end + step.width)[None],
            past_key_values=cache,
            use_cache=True,
        )
        authors._crop_to(cache, end)
        outputs.append(propose(drafter, hidden, anchor, head))
        start = end
    return outputs


@torch.inference_mode()
def run_one_piece(folder: Path, variant: Variant, inputs: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Give every step its whole context at once, in a fresh cache."""
    drafter, head = load(folder, variant), linear(inputs["head"])
    taps = torch.from_numpy(inputs["target_hidden"])[None]
    outputs, end = [], 0
    for step, anchor in zip(variant.steps, inputs["anchors"].tolist(), strict=True):
        end += step.rows
        hidden = drafter(
            target_hidden=taps[:, :end],
            noise_embedding=block_embedding(drafter, inputs, anchor, step.width),
            position_ids=torch.arange(end + step.width)[None],
            past_key_values=authors._make_cache(drafter.config),
            use_cache=True,
        )
        outputs.append(propose(drafter, hidden, anchor, head))
    return outputs

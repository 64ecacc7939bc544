"""Run the authors' MLX back-end on one golden case, for comparison only.

Needs the packages named in ``make_golden.py``; never imported by the tests.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from dflash import model_mlx as authors
from mlx import nn

from tests.golden.variants import Variant

NESTED_KEYS = (
    "final_logit_softcapping",
    "input_embedding_scale",
    "output_multiplier",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
)
TOP_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "num_target_layers",
)


class BorrowedTables(nn.Module):
    """Stands in for a target: the drafter takes its table and its head."""

    def __init__(self, embedding: np.ndarray, head: np.ndarray) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(*embedding.shape)
        self.embed_tokens.weight = mx.array(embedding)
        self.lm_head = nn.Linear(head.shape[1], head.shape[0], bias=False)
        self.lm_head.weight = mx.array(head)


def build(config: dict[str, Any], weights: dict[str, Any]) -> authors.DFlashDraftModel:
    """Build a drafter from a parsed config; their loader only takes Hub names."""
    nested = config["dflash_config"]
    rope = config.get("rope_parameters")
    parsed = authors.DFlashConfig(
        rope_theta=config.get("rope_theta", (rope or {}).get("rope_theta")),
        rope_scaling=rope,
        block_size=int(nested.get("block_size", config.get("block_size", 16))),
        target_layer_ids=tuple(nested["target_layer_ids"]),
        mask_token_id=nested["mask_token_id"],
        layer_types=tuple(config["layer_types"]),
        sliding_window=config.get("sliding_window"),
        is_causal=config.get("is_causal"),
        **{name: config[name] for name in TOP_KEYS},
        **{name: nested[name] for name in NESTED_KEYS if name in nested},
    )
    drafter = getattr(authors, config["architectures"][0])(parsed)
    renamed = {name + ".weight" if name.endswith("codebook") else name: w for name, w in weights.items()}
    drafter.load_weights([(name, mx.array(w)) for name, w in renamed.items()])
    drafter.eval()
    return drafter


def draft(
    drafter: authors.DFlashDraftModel, taps: np.ndarray, anchor: int, width: int, cache: list[Any]
) -> dict[str, np.ndarray]:
    """Append context rows and draft one block."""
    ids = mx.array([[anchor] + [drafter.config.mask_token_id] * (width - 1)])
    hidden = drafter.hidden_states(ids, mx.array(taps)[None], cache)
    logits = drafter.compute_logits(hidden[:, 1:])
    if isinstance(drafter, authors.DFlash2DraftModel):
        tokens, _, _ = drafter.candidate_selector.select(hidden[:, 1:], logits, ids[:, 0], 0.0)
    else:
        tokens = mx.argmax(logits, axis=-1)
    return {"hidden": np.array(hidden[0]), "logits": np.array(logits[0]), "proposal": np.array(tokens[0])}


def run(variant: Variant, weights: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Append the context piece by piece, drafting a block after each."""
    drafter = build(variant.config, weights).bind(BorrowedTables(inputs["embedding"], inputs["head"]))
    cache = drafter.make_cache()
    outputs, start = [], 0
    for step, anchor in zip(variant.steps, inputs["anchors"].tolist(), strict=True):
        end = start + step.rows
        outputs.append(draft(drafter, inputs["target_hidden"][start:end], anchor, step.width, cache))
        start = end
    return outputs


def run_one_piece(
    variant: Variant, weights: dict[str, np.ndarray], inputs: dict[str, np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """Give every step its whole context at once, in a fresh cache."""
    drafter = build(variant.config, weights).bind(BorrowedTables(inputs["embedding"], inputs["head"]))
    outputs, end = [], 0
    for step, anchor in zip(variant.steps, inputs["anchors"].tolist(), strict=True):
        end += step.rows
        outputs.append(draft(drafter, inputs["target_hidden"][:end], anchor, step.width, drafter.make_cache()))
    return outputs

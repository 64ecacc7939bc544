"""Trains the mini target: Qwen3 from transformers, in torch, with weights that will survive 4-bit quantization.

torch because one core with AMX trains faster in it than two cores in MLX (bfloat16 matmuls). Nothing of it is needed to
use the result.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from .corpus import training
from .tokens import encode

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 12, 256, 768, 4, 2, 64
GROUP, LEVELS = 64, 15


@dataclass(frozen=True)
class Plan:
    """How the target is trained. A resumed run keeps its plan."""

    steps: int = 1450
    rows: int = 12
    length: int = 512
    drills: int = 4  # rows of repeated random tokens, which teach a small model to copy
    drilled: int = 800  # steps with that many; then one row
    matrix_rate: float = 0.008
    other_rate: float = 2e-3
    warm_up: int = 40
    falling: float = 0.4  # share of the steps in which the rates go down to zero, in a straight line
    quantized_from: float = 0.78  # share of the steps after which the forward pass sees 4-bit weights
    question_weight: float = 0.1  # of tokens the model reads, against 1 for those it writes
    seed: int = 1


def new_model(vocabulary: int) -> Qwen3ForCausalLM:
    """A fresh target."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary, hidden_size=HIDDEN, num_hidden_layers=LAYERS, intermediate_size=INNER,
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, tie_word_embeddings=True,
            max_position_embeddings=2048, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=None, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Conversations one after the other. None sees another, and each counts its positions from 0.

    Shapes: tokens, weights [length + 1]; documents, positions [length]
    """

    tokens: np.ndarray
    weights: np.ndarray
    documents: np.ndarray
    positions: np.ndarray
    used: int  # conversations taken from the stream so far


def rows_of(tokenizer: Any, plan: Plan, skip: int) -> Iterator[Row]:
    """Endless rows of conversations; the last of a row may be cut."""
    tokens: list[int] = []
    weights: list[float] = []
    documents: list[int] = []
    positions: list[int] = []
    for used, item in enumerate(islice(training(plan.seed), skip, None), start=skip + 1):
        ids, learned = encode(tokenizer, item)
        tokens += ids
        # What begins a conversation is not to be guessed from the one before it.
        weights += [0.0] + [1.0 if reply else plan.question_weight for reply in learned[1:]]
        documents += [used] * len(ids)
        positions += range(len(ids))
        size = plan.length
        if len(tokens) > size:
            yield Row(
                np.array(tokens[: size + 1]), np.array(weights[: size + 1], dtype=np.float32),
                np.array(documents[:size]), np.array(positions[:size]), used,
            )  # fmt: skip
            tokens, weights, documents, positions = [], [], [], []


def drill_row(plan: Plan, vocabulary: int, rng: np.random.Generator) -> Row:
    """Short lists of random tokens, each said twice; only the second time counts."""
    tokens: list[int] = []
    weights: list[float] = []
    documents: list[int] = []
    positions: list[int] = []
    while len(tokens) <= plan.length:
        said = rng.integers(8, vocabulary, size=rng.integers(2, 17)).tolist()
        tokens += said + said
        weights += [0.0] * len(said) + [1.0] * len(said)
        documents += [len(tokens)] * (2 * len(said))
        positions += range(2 * len(said))
    size = plan.length
    return Row(
        np.array(tokens[: size + 1]), np.array(weights[: size + 1], dtype=np.float32), np.array(documents[:size]),
        np.array(positions[:size]), 0,
    )  # fmt: skip


def four_bits(weight: torch.Tensor) -> torch.Tensor:
    """What MLX's affine 4-bit quantization in groups of 64 makes of a matrix."""
    groups = weight.reshape(-1, GROUP)
    low, high = groups.min(1, keepdim=True).values, groups.max(1, keepdim=True).values
    negative = low.abs() > high.abs()
    scale = ((high - low) / LEVELS).clamp(min=1e-7)
    scale = torch.where(negative, scale, -scale)
    edge = torch.where(negative, low, high)
    steps = (edge / scale).round()
    zero = steps == 0
    scale = torch.where(zero, scale, edge / torch.where(zero, torch.ones_like(steps), steps))
    bias = torch.where(zero, torch.zeros_like(edge), edge)
    scale, bias = scale.bfloat16().float(), bias.bfloat16().float()
    level = ((groups - bias) / scale).round().clamp(0, LEVELS)
    return (level * scale + bias).reshape(weight.shape)


class TargetTrainer:
    """Steps, checkpoints and the straight-through quantization."""

    def __init__(self, folder: Path, plan: Plan):
        self.folder, self.plan = folder, plan
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "target")
        self.model = new_model(len(self.tokenizer))
        self.compiled = torch.compile(self.model)
        # The optimizers move these; the model computes with them, or with what 4 bits keep of them.
        self.masters = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        matrices = [value for name, value in self.masters.items() if value.ndim == 2 and "embed" not in name]
        others = [value for name, value in self.masters.items() if value.ndim != 2 or "embed" in name]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=plan.matrix_rate, weight_decay=0.02, momentum=0.95),
            torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.step_number = self.used = 0
        self._resume()

    def run(self, seconds: float) -> bool:
        """Train until the plan or the time is used up; True when the plan is done."""
        stream = rows_of(self.tokenizer, self.plan, self.used)
        until = time.monotonic() + seconds
        while self.step_number < self.plan.steps and time.monotonic() < until:
            drills = self.plan.drills if self.step_number < self.plan.drilled else 1
            batch = list(islice(stream, self.plan.rows - drills))
            self.used = batch[-1].used
            rng = np.random.default_rng((self.plan.seed, self.step_number))
            batch += [drill_row(self.plan, len(self.tokenizer), rng) for _ in range(drills)]
            began = time.monotonic()
            loss, right, copied = self._step(batch, drills)
            self.step_number += 1
            rate = self.plan.rows * self.plan.length / (time.monotonic() - began)
            if self.step_number % 10 == 0:
                print(
                    f"step {self.step_number} loss {loss:.4f} right {right:.4f} copied {copied:.4f} {rate:.0f} tok/s",
                    flush=True,
                )
            if self.step_number % 50 == 0:
                self.save()
        self.save()
        return self.step_number >= self.plan.steps

    def _step(self, rows: list[Row], drills: int) -> tuple[float, float, float]:
        plan = self.plan
        quantized = self.step_number >= plan.quantized_from * plan.steps
        share = min(1.0, (self.step_number + 1) / plan.warm_up)
        left = 1 - self.step_number / plan.steps
        factor = share * min(1.0, left / plan.falling)
        for optimizer, rate in zip(self.optimizers, (plan.matrix_rate, plan.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        self.write_weights(quantized=quantized)
        ids = torch.from_numpy(np.stack([row.tokens for row in rows]))
        weight = torch.from_numpy(np.stack([row.weights for row in rows]))
        documents = torch.from_numpy(np.stack([row.documents for row in rows]))
        positions = torch.from_numpy(np.stack([row.positions for row in rows]))
        weight, labels = weight[:, 1:].reshape(-1), ids[:, 1:].reshape(-1)
        seen = (documents[:, None, :] == documents[:, :, None]).tril()[:, None]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.compiled(
                input_ids=ids[:, :-1], attention_mask={"full_attention": seen}, position_ids=positions
            ).logits
        logits = logits.float().reshape(-1, logits.shape[-1])
        loss = (functional.cross_entropy(logits, labels, reduction="none") * weight).sum() / weight.sum()
        loss.backward()
        for name, parameter in self.model.named_parameters():
            self.masters[name].grad, parameter.grad = parameter.grad, None
        torch.nn.utils.clip_grad_norm_(self.masters.values(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        right = (logits.argmax(1) == labels).float().reshape(len(rows), -1)
        written = (weight == 1).float().reshape(len(rows), -1)
        said = len(rows) - drills
        shares = [
            (right[part] * written[part]).sum() / written[part].sum() for part in (slice(said), slice(said, None))
        ]
        return loss.item(), shares[0].item(), shares[1].item()

    @torch.no_grad()
    def write_weights(self, *, quantized: bool) -> None:
        """Put the masters into the model, as 4 bits keep them if asked."""
        for name, parameter in self.model.named_parameters():
            master = self.masters[name]
            parameter.copy_(four_bits(master) if quantized and master.ndim == 2 else master)

    # Checkpoints.

    def save(self) -> None:
        """Write one checkpoint, in one piece."""
        state = {
            "plan": json.dumps(asdict(self.plan)), "step": self.step_number, "used": self.used, "masters": self.masters,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }  # fmt: skip
        partial = self.folder / "target.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "target.checkpoint")

    def _resume(self) -> None:
        path = self.folder / "target.checkpoint"
        if not path.exists():
            return
        state = torch.load(path)
        if state["plan"] != json.dumps(asdict(self.plan)):
            raise SystemExit(
                f"{path}: got a checkpoint of plan {state['plan']}, expected {json.dumps(asdict(self.plan))}"
            )
        for name, value in state["masters"].items():
            self.masters[name].copy_(value)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step_number, self.used = state["step"], state["used"]

    def export(self, folder: Path) -> None:
        """Write a Hugging Face checkpoint in bfloat16, before quantization."""
        self.write_weights(quantized=False)
        self.model.to(torch.bfloat16).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if not math.isfinite(float(sum(value.abs().sum() for value in self.masters.values()))):
            raise SystemExit("the target's weights are not finite")

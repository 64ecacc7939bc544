"""The verdict on two replies to the same prompt: identical, or where and how narrowly they part.

Owns: the comparison of a plain and a DFlash 2 run, with the logit gap at the first difference. A tiny gap is a
near-tie that rounding decided; a large one is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from ..device.runtime import owner
from ..engine import Engine
from .config import GenerationConfig
from .results import GenerationResult
from .text import Prompt, render_prompt


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison.

    `first_difference` is None or `{index, plain_token, dflash2_token, logit_gap}`; a token is None where that
    reply had already ended, and then the gap is None too. `speedup` is the ratio of decode rates.
    """

    identical: bool
    first_difference: dict[str, Any] | None
    speedup: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"identical": self.identical, "first_difference": self.first_difference, "speedup": self.speedup}


def compare_runs(
    engine: Engine, prompt: Prompt, config: GenerationConfig, plain: GenerationResult, dflash2: GenerationResult
) -> Verdict:
    """Compare token by token; a difference is judged by the target's raw logits at that place."""
    speedup = None
    if plain.stats.tokens_per_second and dflash2.stats.tokens_per_second:
        speedup = dflash2.stats.tokens_per_second / plain.stats.tokens_per_second
    index = _first_difference(plain.token_ids, dflash2.token_ids)
    if index is None:
        return Verdict(True, None, speedup)
    ours, theirs = (_token(reply, index) for reply in (plain, dflash2))
    gap = None
    if ours is not None and theirs is not None:
        tokens = (ours, theirs)
        rendered = render_prompt(
            engine.tokenizer, prompt, chat_template=config.chat_template, template_kwargs=config.chat_template_kwargs
        )
        before = rendered.ids + plain.token_ids[:index]
        gap = owner().call(lambda: _logit_gap(engine, before, tokens, config.prefill_chunk))
    difference = {"index": index, "plain_token": ours, "dflash2_token": theirs, "logit_gap": gap}
    return Verdict(False, difference, speedup)


def _first_difference(left: list[int], right: list[int]) -> int | None:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _token(reply: GenerationResult, index: int) -> int | None:
    return reply.token_ids[index] if index < len(reply.token_ids) else None


def _logit_gap(engine: Engine, ids: list[int], tokens: tuple[int, int], chunk: int) -> float:
    state = engine.target.new_state(1)
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        out = engine.target.forward(mx.array([part], dtype=mx.int32), state, last_only=True)
        engine.target.commit(state, len(part))
        state.forget_future(start + len(part))
        mx.eval(state.arrays())
    row = np.array(out.logits[0, -1].astype(mx.float32))
    return float(row[tokens[0]] - row[tokens[1]])

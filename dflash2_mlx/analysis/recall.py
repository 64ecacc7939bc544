"""How often the target's own continuation is among a drafter's best, position by position.

Owns: Recall@1, Recall@k and the selector's own hits, all over every anchor of finished replies. The drafter proposes
exactly as in decoding; nothing of its arithmetic is repeated here.

Reference: docs/dflash2.md 6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from ..decode.stats import conditional_shares, expected_length
from ..device.runtime import owner
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine
from ..errors import ConfigError
from ..sampling.acceptance import Proposal
from ..targets.base import Target
from .replies import Reply, blocks, drafter_of

_TOGETHER = 16  # blocks that are queued before the host looks


@dataclass(frozen=True)
class Recall:
    """Conditional shares by position: of the likeliest token, of the k candidates, of the walk through them.

    A position counts only in blocks in which the same rule was right at every position before it. `walk` is what a
    greedy round proposes: with a selector its choice, without one the likeliest tokens again.
    """

    k: int
    blocks: int
    at_1: list[float | None]
    at_k: list[float | None]
    walk: list[float | None]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, with the length each row of shares multiplies to; `oracle_length` is that of the candidates."""
        return {
            "k": self.k,
            "blocks": self.blocks,
            "recall_at_1": self.at_1,
            "recall_at_k": self.at_k,
            "walk": self.walk,
            "length_at_1": expected_length(self.at_1),
            "oracle_length": expected_length(self.at_k),
            "length_of_walk": expected_length(self.walk),
        }


def measure_recall(engine: Engine, replies: Sequence[Reply], *, width: int | None = None) -> Recall:
    """Draft after every token of the replies, and compare with what follows there.

    Args:
        width: rows of a block; None takes the drafter's own block size.
    Raises:
        ConfigError: the engine has no drafter, or no reply has two tokens.
    """
    drafter = drafter_of(engine)
    width = width or drafter.config.block_size
    parts = [owner().call(partial(_hits, engine.target, drafter, reply, width)) for reply in replies]
    first, among, chosen, asked = (np.concatenate(part) for part in zip(*parts, strict=True)) if parts else [_NONE] * 4
    if not len(asked):
        raise ConfigError("replies: got none with two tokens, expected something to draft")
    rules = (conditional_shares(right, asked) for right in (first, among, chosen))
    return Recall(drafter.config.selector_top_k, len(asked), *rules)


_NONE = np.zeros((0, 1), dtype=bool)


def _hits(target: Target, drafter: DraftModel, reply: Reply, width: int) -> tuple[np.ndarray, ...]:
    """Right or not, by each of the three rules, and whether there is a token to compare with: [A, N] bool each."""
    labels, asked = next_tokens(reply, width)
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    queued: list[Proposal] = []

    def read() -> None:
        mx.eval([(proposal.tokens, proposal.candidates) for proposal in queued])
        rows.extend((np.array(proposal.tokens[0]), np.array(proposal.candidates[0])) for proposal in queued)
        queued.clear()

    for anchor, context in blocks(target, drafter, reply, reply.anchors):
        token = mx.array([reply.tokens[anchor]], dtype=mx.int32)
        queued.append(drafter.propose(token, context, width, target))
        if len(queued) == _TOGETHER:
            read()
    read()
    if not rows:
        return (np.zeros((0, width - 1), dtype=bool),) * 4
    tokens, candidates = (np.stack(part) for part in zip(*rows, strict=True))
    right = candidates == labels[:, :, None]
    return right[:, :, 0] & asked, right.any(axis=-1) & asked, (tokens == labels) & asked, asked


def next_tokens(reply: Reply, width: int) -> tuple[np.ndarray, np.ndarray]:
    """What stands at the drafted positions of each anchor, and whether the reply reaches that far.

    Returns:
        [A, N] int (0 beyond the end) and [A, N] bool
    """
    places = np.array(reply.anchors, dtype=np.int64)[:, None] + np.arange(1, width)
    inside = places < len(reply.tokens)
    tokens = np.array(reply.tokens)
    return np.where(inside, tokens[np.minimum(places, len(tokens) - 1)], 0), inside

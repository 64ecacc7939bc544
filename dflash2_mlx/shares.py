"""Shares by position, and the length they multiply to.

Owns: the definitions of Recall@k and of conditional acceptance, which are the same one: how often position j is right
among the blocks in which every position before it was right. Pure functions of NumPy arrays.

Reference: DFlash 2 specification 6.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def conditional_shares(right: np.ndarray, asked: np.ndarray) -> list[float | None]:
    """Share of blocks that are right at position j, of those that were asked there and right everywhere before.

    Shapes:
        right, asked: [A, N] bool; a block that is not asked at j is not asked behind it either
    Returns:
        one share per position; None where no block got that far
    """
    before = np.ones(len(right), dtype=bool)
    shares: list[float | None] = []
    for position in range(right.shape[1]):
        reached = before & asked[:, position]
        count = int(reached.sum())
        before = reached & right[:, position]
        shares.append(int(before.sum()) / count if count else None)
    return shares


def expected_length(shares: Sequence[float | None]) -> float:
    """1 + Σ_j Π_{i<=j} c_i: tokens of a round whose positions are right with these conditional shares.

    With the shares of Recall@k this is the oracle length: what a perfect choice among k candidates would reach. Where
    nobody got, nothing is added.
    """
    total, reached = 1.0, 1.0
    for share in shares:
        reached *= share or 0.0
        total += reached
    return total


def leading(right: np.ndarray) -> np.ndarray:
    """How many positions in a row are right, from the first on: [A, N] bool -> [A]."""
    return np.cumprod(right, axis=1, dtype=np.int64).sum(axis=1)


def reached_positions(num_accepted: Sequence[int], drafted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rounds as `conditional_shares` wants them: [rounds, N] bool twice, with N the most drafts of a round."""
    positions = np.arange(1, max(drafted, default=0) + 1)
    return (
        np.asarray(num_accepted, dtype=np.int64)[:, None] >= positions,
        np.asarray(drafted, dtype=np.int64)[:, None] >= positions,
    )

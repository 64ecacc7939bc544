"""Losses of training, one row at a time in float64 (7.2)."""

from __future__ import annotations

import math

import numpy as np


def row_weight(row: int, gamma: float) -> float:
    """Weight of row k = 1, 2, ... of a block."""
    return math.exp(-(row - 1) / gamma)


def cross_entropy(scores: np.ndarray, label: int) -> float:
    """-log softmax(scores)[label]."""
    shifted = scores - scores.max()
    return float(math.log(np.exp(shifted).sum()) - shifted[label])


def candidates(logits: np.ndarray, k: int) -> list[int]:
    """The k best ids, equal logits to the lower id."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]


def block_losses(
    logits: np.ndarray,
    gates: np.ndarray,
    predecessor: np.ndarray,
    successor: np.ndarray,
    labels: np.ndarray,
    supervised: np.ndarray,
    previous: np.ndarray,
    *,
    k: int,
    gamma: float,
) -> dict[str, float]:
    """Shapes: logits [A, N, V], gates [A, N, R], codebooks [C, R], the rest [A, N]."""
    sums = dict.fromkeys(("base", "weights", "selector", "kept", "asked", "first", "recalled", "selected"), 0.0)
    for block, row in np.argwhere(supervised):
        weight, label = row_weight(row + 1, gamma), labels[block, row]
        scores = logits[block, row]
        ids = candidates(scores, k)
        sums["base"] += weight * cross_entropy(scores, label)
        sums["weights"] += weight
        sums["asked"] += 1
        sums["first"] += ids[0] == label
        if label not in ids:
            continue
        sums["recalled"] += 1
        gated = predecessor[previous[block, row]] * gates[block, row]
        edges = np.array([scores[i] + gated @ successor[i] for i in ids])
        sums["selector"] += weight * cross_entropy(edges, ids.index(label))
        sums["kept"] += weight
        sums["selected"] += ids[int(edges.argmax())] == label
    sums["base"] /= sums.pop("weights")
    sums["selector"] /= sums.pop("kept")
    return sums

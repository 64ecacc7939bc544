"""What a drafter is trained to do: the backbone's loss, the selector's loss, and how well both do.

Owns: position weights, cross-entropy over the vocabulary, cross-entropy of the selector over its own candidates with
the true predecessor, and the counts behind the metrics.

Reference: DFlash 2 specification 7.2, 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from ..drafter.model import DraftModel
from ..kernels.top_candidates import top_candidates

_DECAY = {16: 7.0, 10: 5.0, 8: 4.0}


@dataclass(frozen=True)
class LossParts:
    """Losses, and sums over the supervised rows; all scalars on the device.

    `selector` is 0 without a selector. Rows whose label is not among the candidates do not enter it.
    `asked`: supervised rows; of these `first`: backbone's best is the label; `recalled`: the label is a candidate;
    `selected`: the selector, told the true predecessor, picks the label.
    """

    base: mx.array
    selector: mx.array
    asked: mx.array
    first: mx.array
    recalled: mx.array
    selected: mx.array

    @property
    def total(self) -> mx.array:
        return self.base + self.selector


def position_weights(block_size: int) -> mx.array:
    """exp(-(k - 1) / gamma) for rows k = 1..B-1: [B - 1]; gamma is about half a block."""
    gamma = _DECAY.get(block_size, block_size / 2)
    return mx.array([math.exp(-k / gamma) for k in range(block_size - 1)], dtype=mx.float32)


def block_losses(
    drafter: DraftModel,
    hidden: mx.array,
    raw_logits: mx.array,
    labels: mx.array,
    supervised: mx.array,
    previous: mx.array,
) -> LossParts:
    """Losses of rows 1.. of each block.

    Shapes:
        hidden:     [A, N, D] rows 1.. of the blocks, final norm applied; N = B - 1
        raw_logits: [A, N, V] of the borrowed head
        labels, previous: [A, N] int32; supervised: [A, N] bool
    """
    logits = drafter.scale_logits(raw_logits)[..., : drafter.config.vocab_size]
    weights = position_weights(hidden.shape[1] + 1) * supervised
    losses = _cross_entropy(logits, labels)
    base = (weights * losses).sum() / mx.maximum(weights.sum(), 1e-9)
    ids, _ = top_candidates(mx.stop_gradient(logits), drafter.config.selector_top_k)
    is_label = ids == labels[..., None]
    recalled = is_label.any(axis=-1) & supervised
    first = (ids[..., 0] == labels) & supervised
    selector, selected = mx.zeros(()), first
    if drafter.config.selector_rank is not None:
        scores = mx.take_along_axis(logits, ids, axis=-1) + _true_edges(drafter, hidden, previous, ids)
        place = mx.argmax(is_label, axis=-1)
        kept = weights * recalled
        selector = (kept * _cross_entropy(scores, place)).sum() / mx.maximum(kept.sum(), 1e-9)
        selected = (mx.argmax(scores, axis=-1) == place) & recalled
    counts = (part.astype(mx.float32).sum() for part in (supervised, first, recalled, selected))
    return LossParts(base, selector, *counts)


def _cross_entropy(logits: mx.array, labels: mx.array) -> mx.array:
    """[..., V] and [...] -> [...], float32."""
    chosen = mx.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return mx.logsumexp(logits, axis=-1) - chosen


def _true_edges(drafter: DraftModel, hidden: mx.array, previous: mx.array, ids: mx.array) -> mx.array:
    """Scores of the candidates after the true predecessor: [A, N, K] float32."""
    selector = drafter.candidate_selector
    known = mx.minimum(previous, selector.predecessor_codebook.shape[0] - 1)
    gated = selector.predecessor_codebook[known].astype(mx.float32) * selector.gate(hidden).astype(mx.float32)
    successors = selector.successor_codebook[ids].astype(mx.float32)
    return (gated[..., None, :] * successors).sum(axis=-1)

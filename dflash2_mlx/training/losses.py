"""What a drafter is trained to do: the backbone's loss, the selector's loss, and how well both do.

Owns: position weights, cross-entropy over the vocabulary, cross-entropy of the selector over its own candidates with
the true predecessor, and the counts behind the metrics.

Reference: docs/dflash2.md 7.2, 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..drafters.dflash2.model import DraftModel
from ..kernels.top_candidates import top_candidates
from .blocks import Pack

_DECAY = {16: 7.0, 10: 5.0, 8: 4.0}


@dataclass(frozen=True)
class LossParts:
    """Losses, each a sum over sequences of the sequence's mean, and counts of rows; all scalars on the device.

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
        """What is minimized."""
        return self.base + self.selector


def position_weights(block_size: int) -> np.ndarray:
    """exp(-(k - 1) / gamma) for rows k = 1..B-1: [B - 1] float32; gamma is about half a block."""
    gamma = _DECAY.get(block_size, block_size / 2)
    return np.array([math.exp(-k / gamma) for k in range(block_size - 1)], dtype=np.float32)


def block_losses(
    drafter: DraftModel, hidden: mx.array, raw_logits: mx.array, asked: Pack, *, selector: bool = True
) -> LossParts:
    """Losses of the rows that ask for something.

    Shapes:
        hidden:     [R, D] those rows, final norm applied
        raw_logits: [R, V] of the borrowed head
    Args:
        selector: False leaves a selector out, as if the drafter had none.
    """
    config = drafter.config
    logits = drafter.scale_logits(raw_logits)
    if logits.shape[-1] > config.vocab_size:
        logits = logits[:, : config.vocab_size]
    labels = mx.array(asked.labels)
    weights = position_weights(config.block_size)[asked.places - 1]
    owners = asked.sequences[None] == np.arange(len(asked.counts))[:, None]
    base = _mean_by_sequence(_cross_entropy(logits, labels), mx.array(weights), mx.array(owners))
    ids, _ = top_candidates(mx.stop_gradient(logits), config.selector_top_k)
    is_label = ids == labels[:, None]
    recalled = is_label.any(axis=-1)
    first = ids[:, 0] == labels
    chosen, selected = mx.zeros(()), first
    if selector and config.selector_rank is not None:
        scores = mx.take_along_axis(logits, ids, axis=-1) + _true_edges(drafter, hidden, mx.array(asked.previous), ids)
        place = mx.argmax(is_label, axis=-1)
        kept = mx.array(weights) * recalled
        chosen = _mean_by_sequence(_cross_entropy(scores, place), kept, mx.array(owners))
        selected = (mx.argmax(scores, axis=-1) == place) & recalled
    counts = (part.astype(mx.float32).sum() for part in (first, recalled, selected))
    return LossParts(base, chosen, mx.array(float(len(asked.rows))), *counts)


def _mean_by_sequence(losses: mx.array, weights: mx.array, owners: mx.array) -> mx.array:
    """Sum over sequences of each one's weighted mean; a sequence without weight gives 0.

    Shapes: losses, weights [R]; owners [N, R] bool, whose rows they are
    """
    share = owners * weights
    return ((share * losses).sum(axis=-1) / mx.maximum(share.sum(axis=-1), 1e-9)).sum()


def _cross_entropy(logits: mx.array, labels: mx.array) -> mx.array:
    """[R, V] and [R] -> [R], float32.

    `mx.logsumexp` raises e to every logit in the pass and once more for its gradient; on a CPU that is most of a loss.
    """
    highest = mx.stop_gradient(logits.max(axis=-1, keepdims=True))
    total = mx.exp(logits - highest).sum(axis=-1)
    chosen = mx.take_along_axis(logits, labels[:, None], axis=-1)
    return mx.log(total) + (highest - chosen)[:, 0]


def _true_edges(drafter: DraftModel, hidden: mx.array, previous: mx.array, ids: mx.array) -> mx.array:
    """Scores of the candidates after the true predecessor: [R, K] float32."""
    selector = drafter.candidate_selector
    known = mx.minimum(previous, selector.predecessor_codebook.shape[0] - 1)
    gated = selector.predecessor_codebook[known].astype(mx.float32) * selector.gate(hidden).astype(mx.float32)
    successors = selector.successor_codebook[ids].astype(mx.float32)
    return (gated[:, None] * successors).sum(axis=-1)

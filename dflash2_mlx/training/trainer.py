"""Teaches a drafter to predict its target's tokens, block by block.

Owns: the order of documents, the step, and the optimiser. What a step does depends on (seed, step) only, never on what
ran before in this process: a run that was killed goes on as if it had not been. All functions run on the thread that
owns MLX.

Reference: docs/dflash2.md 7.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map

from ..drafters.dflash2.model import DraftModel
from ..errors import ConfigError, TrainingError
from ..targets.base import Target
from .blocks import BlockBatch, Pack, block_batch, pack, sample_anchors
from .forward import block_hidden
from .losses import LossParts, block_losses
from .settings import Document, StepReport, TrainSettings
from .taps import document_taps

MOST_LOGITS = 1 << 22  # numbers in a pass's logits: larger passes gain nothing and take memory
MOST_PADDING = 1.3  # rows of the target's pass, padding included, by tokens

Taps = Callable[[Sequence[Document]], mx.array]


class Trainer:
    """One training run.

    Args:
        target: frozen; its taps are computed as documents come.
        drafter: from `new_drafter`, or with loaded weights; trained in place. Not prepared for inference.
        documents: with at least one anchor each; others are left out, see `useful`.
        taps: where the target's hidden states come from; None computes them.
    Raises:
        ConfigError: no document has anything to learn.
    """

    def __init__(
        self,
        target: Target,
        drafter: DraftModel,
        documents: Sequence[Document],
        settings: TrainSettings,
        taps: Taps | None = None,
    ):
        self.target, self.drafter, self.settings = target, drafter, settings
        self._taps: Taps = taps or (lambda group: document_taps(target, group, drafter.config.target_layer_ids))
        self.useful = [document for document in documents if _has_anchor(document)]
        if not self.useful:
            raise ConfigError(f"documents: got {len(documents)} without two supervised tokens in a row, expected some")
        self.step_number = 0
        _freeze(drafter, settings)
        self.optimizer = optim.AdamW(
            learning_rate=settings.learning_rate, betas=[0.9, 0.95], weight_decay=settings.weight_decay
        )
        self.optimizer.init(drafter.trainable_parameters())
        self._compute_dtype = mx.bfloat16 if settings.dtype == "bfloat16" else mx.float32

    def step(self) -> StepReport:
        """Learn from the next `sequences` documents.

        Raises:
            TrainingError: loss or gradient is not finite; the weights are still those of the step before.
        """
        number, count = self.step_number, self.settings.sequences
        sums, total = self.gradients(number)
        total = tree_map(lambda gradient: gradient / count, total)
        total, norm = optim.clip_grad_norm(total, self.settings.clip)
        numbers: Any = mx.concatenate([sums, norm[None]]).tolist()
        base, selector, asked, first, recalled, selected, gradient = numbers
        loss = (base + selector) / count
        for name, value in (("loss", loss), ("gradient", gradient)):
            if not math.isfinite(value):
                raise TrainingError(f"{name}: got {value} at step {number + 1}, expected a finite number")
        rate = self.settings.rate(number)
        self.optimizer.learning_rate = rate
        self.optimizer.update(self.drafter, total)
        mx.eval(self.drafter.parameters(), self.optimizer.state)
        self.step_number += 1
        shares = (first / asked, recalled / asked, selected / asked)
        return StepReport(number, loss, base / count, selector / count, *shares, rate, gradient)

    def gradients(self, step: int) -> tuple[mx.array, Any]:
        """Sums over the sequences of a step: the six `LossParts`, and the gradients of their losses by parameter."""
        total: Any = None
        sums: Any = None
        for taps, blocks in self.passes(step):
            parts, gradients = self._gradients(taps, blocks)
            found = mx.stack(list(vars(parts).values()))
            total = gradients if total is None else tree_map(mx.add, total, gradients)
            sums = found if sums is None else sums + found
            mx.eval(total, sums)  # one pass's graph at a time
        return sums, total

    def drawn(self, step: int) -> list[tuple[Document, BlockBatch]]:
        """The documents of a step and their blocks."""
        count = self.settings.sequences
        return [self._draw(serial) for serial in range(step * count, (step + 1) * count)]

    def passes(self, step: int) -> Iterator[tuple[mx.array, Pack]]:
        """The documents of a step, several to a pass: the target's taps, and the blocks."""
        drawn = sorted(self.drawn(step), key=lambda pair: len(pair[0].tokens))
        for group in _grouped(drawn, self._most_rows()):
            yield self._taps([document for document, _ in group]), pack([blocks for _, blocks in group])

    def _draw(self, serial: int) -> tuple[Document, BlockBatch]:
        """The document that stands at `serial` in the whole run's order, and blocks of it."""
        epoch, place = divmod(serial, len(self.useful))
        document = self.useful[_epoch_order(self.settings.seed, epoch, len(self.useful))[place]]
        rng = np.random.default_rng((self.settings.seed, 2, serial))
        anchors = sample_anchors(document.supervised, self.settings.anchors, rng)
        return document, block_batch(document.tokens, document.supervised, anchors, self.drafter.config.block_size)

    def _most_rows(self) -> int:
        """Rows of a pass: as many as keep logits within bounds."""
        return max(1, MOST_LOGITS // self.drafter.config.vocab_size)

    def _gradients(self, taps: mx.array, blocks: Pack) -> tuple[LossParts, Any]:
        """Of one pass. The cast is part of what is differentiated, so gradients are those of the float32 weights."""
        weights: Any = self.drafter.trainable_parameters()

        def loss(weights: Any) -> tuple[mx.array, LossParts]:
            self.drafter.update(tree_map(lambda array: array.astype(self._compute_dtype), weights))
            return self._loss(taps, blocks)

        try:
            (_, parts), gradients = mx.value_and_grad(loss)(weights)
        finally:
            self.drafter.update(weights)
        return parts, gradients

    def _loss(self, taps: mx.array, blocks: Pack) -> tuple[mx.array, LossParts]:
        drafter, target = self.drafter, self.target
        embeddings = drafter.block_embeddings(mx.array(blocks.tokens), drafter.config.block_size, target)
        hidden = block_hidden(drafter, taps, embeddings, blocks.anchors, blocks.counts)
        asked = hidden.reshape(-1, hidden.shape[-1])[mx.array(blocks.rows)]
        logits = target.trainable_head(asked.astype(embeddings.dtype))
        parts = block_losses(drafter, asked, logits, blocks, selector=self.settings.selector)
        return parts.total, parts


def _freeze(drafter: DraftModel, settings: TrainSettings) -> None:
    """Keep the parts that do not learn out of gradients and optimiser."""
    if not settings.conv:
        for layer in drafter.layers:
            layer.attention_conv.freeze()
            layer.mlp_conv.freeze()
    if not settings.selector and drafter.config.selector_rank is not None:
        drafter.candidate_selector.freeze()


@lru_cache(maxsize=1)
def _epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """In which order an epoch goes through its documents; drawn once, not for every sequence."""
    return np.random.default_rng((seed, 1, epoch)).permutation(count)


def _has_anchor(document: Document) -> bool:
    return bool((document.supervised[:-1] & document.supervised[1:]).any())


def _grouped(
    drawn: Sequence[tuple[Document, BlockBatch]], most_rows: int
) -> Iterator[list[tuple[Document, BlockBatch]]]:
    """Neighbours that fit in one pass: few enough rows, and little padding for the target."""
    group: list[tuple[Document, BlockBatch]] = []
    rows = tokens = 0
    for document, blocks in drawn:
        more, length = int(blocks.supervised.sum()), len(document.tokens)
        padded = length * (len(group) + 1)
        if group and (rows + more > most_rows or padded > MOST_PADDING * (tokens + length)):
            yield group
            group, rows, tokens = [], 0, 0
        group.append((document, blocks))
        rows, tokens = rows + more, tokens + length
    yield group

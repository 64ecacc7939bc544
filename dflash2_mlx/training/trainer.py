"""Teaches a drafter to predict its target's tokens, block by block.

Owns: the order of documents, the step, the optimiser, checkpoints and their exact continuation. What a step does
depends on (seed, step) only, never on what ran before in this process: a run that was killed goes on as if it had not
been. All functions run on the thread that owns MLX.

Reference: DFlash 2 specification 7.3.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from ..drafter.model import DraftModel
from ..errors import CheckpointError, ConfigError
from ..targets.base import Target
from .blocks import BlockBatch, Pack, block_batch, pack, sample_anchors
from .forward import block_hidden
from .losses import LossParts, block_losses

MOST_LOGITS = 1 << 22  # numbers in a pass's logits: larger passes gain nothing and take memory
MOST_PADDING = 1.3  # rows of the target's pass, padding included, by tokens
_KEPT = 2  # checkpoints that stay on disk


@dataclass(frozen=True)
class Document:
    """One sequence. Shapes: tokens [S] int32; supervised [S] bool, the tokens to learn."""

    tokens: np.ndarray
    supervised: np.ndarray


@dataclass(frozen=True)
class TrainSettings:
    """How a drafter is trained; the defaults are the published recipe at a small scale.

    `sequences` are accumulated to one step; `anchors` blocks are drawn from each. `warmup` is a share of `steps`.
    """

    steps: int
    learning_rate: float = 6e-4
    warmup: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.0
    sequences: int = 4
    anchors: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("sequences", 1), ("anchors", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(f"{name}: got {value!r}, expected an integer >= {low}")
        for name, fits, expected in (
            ("learning_rate", self.learning_rate > 0, "a number > 0"),
            ("warmup", 0 <= self.warmup < 1, "a number in [0, 1)"),
            ("clip", self.clip > 0, "a number > 0"),
            ("weight_decay", self.weight_decay >= 0, "a number >= 0"),
        ):
            if not fits:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, expected {expected}")

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, ...: linear warm-up, then half a cosine down to zero."""
        warm = round(self.warmup * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


@dataclass(frozen=True)
class StepReport:
    """What one step saw. Shares are of supervised rows; `recall` bounds what the selector can reach."""

    step: int
    loss: float
    base: float
    selector: float
    top1: float
    recall: float
    selected: float
    rate: float
    gradient: float


class Trainer:
    """One training run.

    Args:
        target: frozen; its taps are computed as documents come.
        drafter: from `new_drafter`, or with loaded weights; trained in place. Not prepared for inference.
        documents: with at least one anchor each; others are left out, see `useful`.
    Raises:
        ConfigError: no document has anything to learn.
    """

    def __init__(self, target: Target, drafter: DraftModel, documents: Sequence[Document], settings: TrainSettings):
        self.target, self.drafter, self.settings = target, drafter, settings
        self.useful = [document for document in documents if _has_anchor(document)]
        if not self.useful:
            raise ConfigError(f"documents: got {len(documents)} without two supervised tokens in a row, expected some")
        self.step_number = 0
        self._optimizer = optim.AdamW(
            learning_rate=settings.learning_rate, betas=[0.9, 0.95], weight_decay=settings.weight_decay
        )
        self._optimizer.init(drafter.trainable_parameters())
        self._gradients = nn.value_and_grad(drafter, self._loss)

    def step(self) -> StepReport:
        """Learn from the next `sequences` documents."""
        number, count = self.step_number, self.settings.sequences
        sums, total = self.gradients(number)
        total = tree_map(lambda gradient: gradient / count, total)
        total, norm = optim.clip_grad_norm(total, self.settings.clip)
        rate = self.settings.rate(number)
        self._optimizer.learning_rate = rate
        self._optimizer.update(self.drafter, total)
        mx.eval(self.drafter.parameters(), self._optimizer.state, norm)
        self.step_number += 1
        numbers: Any = sums.tolist()
        base, selector, asked, first, recalled, selected = numbers
        shares = (first / asked, recalled / asked, selected / asked)
        loss = (base + selector) / count
        return StepReport(number, loss, base / count, selector / count, *shares, rate, norm.item())

    def gradients(self, step: int) -> tuple[mx.array, Any]:
        """Sums over the sequences of a step: the six `LossParts`, and the gradients of their losses by parameter."""
        total: Any = None
        sums: Any = None
        for taps, blocks in self.passes(step):
            (_, parts), gradients = self._gradients(taps, blocks)
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

    def _taps(self, documents: Sequence[Document]) -> mx.array:
        """The target's hidden states: [N, S, T*D], shorter documents padded at their end, which nothing looks at."""
        ids = np.zeros((len(documents), max(len(document.tokens) for document in documents)), dtype=np.int32)
        for row, document in zip(ids, documents, strict=True):
            row[: len(document.tokens)] = document.tokens
        state = self.target.new_state(len(documents))
        out = self.target.forward(mx.array(ids), state, taps=self.drafter.config.target_layer_ids, last_only=True)
        assert out.taps is not None
        taps = mx.stop_gradient(out.taps)
        mx.eval(taps)
        return taps

    def _loss(self, taps: mx.array, blocks: Pack) -> tuple[mx.array, LossParts]:
        drafter, target = self.drafter, self.target
        embeddings = drafter.block_embeddings(mx.array(blocks.tokens), drafter.config.block_size, target)
        hidden = block_hidden(drafter, taps, embeddings, blocks.anchors, blocks.counts)
        asked = hidden.reshape(-1, hidden.shape[-1])[mx.array(blocks.rows)]
        parts = block_losses(drafter, asked, target.head(asked.astype(embeddings.dtype)), blocks)
        return parts.total, parts

    # Checkpoints.

    def save(self, folder: Path) -> Path:
        """Write a checkpoint below `folder`; an unfinished one is never taken for a whole one."""
        whole = folder / f"step-{self.step_number:07d}"
        partial = whole.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        mx.save_safetensors(str(partial / "drafter.safetensors"), dict(tree_flatten(self.drafter.parameters())))
        mx.save_safetensors(str(partial / "optimizer.safetensors"), dict(tree_flatten(self._optimizer.state)))
        state = {"step": self.step_number, "settings": asdict(self.settings), "documents": len(self.useful)}
        (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")
        shutil.rmtree(whole, ignore_errors=True)
        partial.rename(whole)
        for old in _checkpoints(folder)[:-_KEPT]:
            shutil.rmtree(old)
        return whole

    def resume(self, folder: Path) -> bool:
        """Go on from the newest checkpoint below `folder`; False when there is none.

        Raises:
            ConfigError: it was made with other settings or documents, named.
            CheckpointError: it cannot be read.
        """
        found = _checkpoints(folder)
        if not found:
            return False
        newest = found[-1]
        try:
            state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
            weights: Any = mx.load(str(newest / "drafter.safetensors"))
            moments: Any = mx.load(str(newest / "optimizer.safetensors"))
        except (OSError, ValueError, RuntimeError) as error:
            line = " ".join(str(error).split())
            raise CheckpointError(f"{newest}: got an unreadable checkpoint ({line}), expected a whole one") from None
        now = {**asdict(self.settings), "documents": len(self.useful)}
        then = {**state["settings"], "documents": state["documents"]}
        for name, value in now.items():
            if then.get(name) != value:
                raise ConfigError(f"{name}: got {value!r}, expected {then.get(name)!r} as in {newest.name}")
        self.drafter.load_weights(list(weights.items()))
        self._optimizer.state = tree_unflatten(list(moments.items()))
        self.step_number = state["step"]
        mx.eval(self.drafter.parameters(), self._optimizer.state)
        return True


@lru_cache(maxsize=1)
def _epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """In which order an epoch goes through its documents; drawn once, not for every sequence."""
    return np.random.default_rng((seed, 1, epoch)).permutation(count)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


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

"""What the rest of the library may ask of a target.

Owns: the Target protocol and its specification record. Adapters wrap mlx-lm's modules and run their layers
from a loop of our own; no class or module of mlx-lm is patched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ..kernels.qmm_rows import Packed
from .state import TargetState


@dataclass(frozen=True)
class TargetSpec:
    """Facts of one loaded target.

    `vocab_size` counts the rows of its head; `recurrent` says whether some layers keep a recurrent state
    (then a state can only go back to the last two passes); `context_length` is None when the config is
    silent.
    """

    family: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    embedding_rows: int
    recurrent: bool
    context_length: int | None
    quantization: str | None


@dataclass(frozen=True)
class PassOutput:
    """Shapes: logits [B, L or 1, V] float; taps [B, L, T*D] or None when no layer was tapped."""

    logits: mx.array
    taps: mx.array | None


class Target(Protocol):
    """A model whose distribution must be kept."""

    @property
    def spec(self) -> TargetSpec: ...

    def new_state(self, batch: int = 1) -> TargetState:
        """An empty state for `batch` sequences."""

    def forward(
        self, ids: mx.array, state: TargetState, *, taps: Sequence[int] = (), last_only: bool = False
    ) -> PassOutput:
        """One pass over [B, L] token ids; the state is advanced tentatively until `commit`."""

    def commit(self, state: TargetState, keep: int | mx.array) -> None:
        """Keep the first `keep` rows of the last pass; the others are as if never seen."""

    def embed(self, ids: mx.array) -> mx.array:
        """Raw embedding rows [B, L, D], for the drafter."""

    def head(self, hidden: mx.array) -> mx.array:
        """The output head alone [..., V], without the target's own multiplier or cap, for the drafter."""

    def quantized_matrices(self) -> list[Packed]:
        """Every matrix that a few rows are multiplied by through `kernels.qmm_rows`."""

    def trainable_head(self, hidden: mx.array) -> mx.array:
        """The same by operations that have a gradient, which our kernels have not."""

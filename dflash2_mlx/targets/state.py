"""Everything a target remembers of one batch of sequences, with rollback on the device.

Owns: K/V buffers of full and sliding layers, gated-delta states, the device length and its host bounds, and
the records of the last two passes. Knows nothing of tokens, drafting or acceptance. Invariant: after
`commit`, the state equals one that saw only the kept rows, bit for bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import mlx.core as mx

from ..layers.gated_delta import AnyState, GatedDeltaState, Tape
from ..layers.kv_cache import RowBuffers, own_copy

REMEMBERED_PASSES = 2  # the round being read and the one in flight


@dataclass
class PassRecord:
    """One forward pass: where it started, how many rows it had, and what the gated-delta layers read."""

    start: mx.array  # [B] int32
    rows: int
    tapes: list[Tape] = field(default_factory=list)


@dataclass(frozen=True)
class AttentionCache:
    """What mlx-lm's attention modules ask of a cache: an offset, and a place to put keys and values."""

    buffers: RowBuffers
    layer: int
    offset: mx.array  # [B] int32

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the rows of a pass, [B, Hkv, L, Dh]; the layer's whole buffers, masked by position."""
        return self.buffers.write(self.layer, keys, values, self.offset)


class TargetState:
    """State of `batch` sequences in one target.

    Args:
        batch: sequences.
        full_layers, sliding_layers, recurrent_layers: how many of each kind.
        window: of the sliding layers.

    `length` [B] is what was committed, on the device. `upper` bounds it on the host, `floor` is a position
    no rewind will go below.
    """

    def __init__(
        self,
        batch: int,
        *,
        full_layers: int = 0,
        sliding_layers: int = 0,
        recurrent_layers: int = 0,
        window: int | None = None,
    ):
        self.batch = batch
        self.length = mx.zeros((batch,), dtype=mx.int32)
        self.floor = 0
        self.upper = 0
        self.full = RowBuffers(full_layers, batch)
        self.sliding = RowBuffers(sliding_layers, batch, window)
        self.recurrent: list[AnyState | None] = [None] * recurrent_layers
        self.passes: deque[PassRecord] = deque(maxlen=REMEMBERED_PASSES)

    def begin(self, rows: int) -> mx.array:
        """Open a pass of `rows` rows; returns their absolute positions [B, rows]."""
        for buffers in (self.full, self.sliding):
            if buffers.num_layers:
                buffers.reserve(self.floor, self.upper, rows)
        self.upper += rows
        self.passes.append(PassRecord(self.length, rows))
        return self.length[:, None] + mx.arange(rows, dtype=mx.int32)

    def attention_cache(self, kind: str, index: int) -> AttentionCache:
        """The cache of layer number `index` among those of its kind."""
        return AttentionCache(self.full if kind == "full" else self.sliding, index, self.length)

    def commit(self, keep: int | mx.array) -> None:
        """Keep the first `keep` rows of the last pass: a host count for all sequences, or [B] int32."""
        last = self.passes[-1]
        self.recurrent = [tape.commit(keep, last.rows) for tape in last.tapes]
        self.length = last.start + keep

    def settle(self, rows: int, kept: int, start: int) -> None:
        """The host has learned that a pass of `rows` rows, begun at `start`, kept `kept` of them."""
        self.upper -= rows - kept
        self.floor = start

    def rewind(self, passes: int, keep: int, position: int) -> None:
        """Go back to row `keep` of the pass that was begun `passes` passes ago, at absolute `position`."""
        for _ in range(passes - 1):
            self.passes.pop()
        self.commit(keep)
        self.forget_future(position)

    def truncate(self, position: int) -> None:
        """Go back to `position`; only where all that a row there may see is still here (`snapshots.Extent`)."""
        self.length = mx.full((self.batch,), position, dtype=mx.int32)
        self.forget_future(position)

    def pretend(self, position: int) -> None:
        """For measurements: go on at `position`, past all that was read. The rows in between hold anything."""
        if self.full.num_layers:
            self.full.reserve(self.floor, position, 0)
        if self.sliding.num_layers and self.sliding.window is not None:
            self.sliding.skip_to(max(0, position - self.sliding.window))
            self.sliding.reserve(position, position, 0)
        self.truncate(position)

    def forget_future(self, position: int) -> None:
        """The host knows the length again: it is `position`, and no pass is in flight."""
        self.upper = self.floor = position
        self.passes.clear()

    def trim(self) -> None:
        """After a prefill: give back room that only long chunks need."""
        self.sliding.trim(self.floor, self.upper)

    def copy(self) -> TargetState:
        """A snapshot; the arrays are shared until either side writes."""
        twin = self._twin(self.full.copy(), self.sliding.copy())
        twin.passes = deque(self.passes, maxlen=REMEMBERED_PASSES)
        return twin

    def packed(self) -> TargetState:
        """As `copy`, but of memory of its own and without spare room; nothing may be in flight."""
        twin = self._twin(self.full.packed(self.floor), self.sliding.packed(self.floor))
        # A convolution window may be a slice of all rows of a prompt chunk; recurrent states are never written to.
        twin.recurrent = [s if s is None else GatedDeltaState(own_copy(s.conv), s.recurrent) for s in self.recurrent]
        return twin

    def _twin(self, full: RowBuffers, sliding: RowBuffers) -> TargetState:
        twin = TargetState(self.batch)
        twin.length, twin.floor, twin.upper = self.length, self.floor, self.upper
        twin.full, twin.sliding = full, sliding
        twin.recurrent = list(self.recurrent)
        return twin

    def arrays(self) -> list[mx.array]:
        """All device arrays, for a synchronous `mx.eval` between prefill chunks (never while pipelining)."""
        states = [s for s in self.recurrent if s is not None]
        return [self.length, *self.full.arrays(), *self.sliding.arrays(), *(a for s in states for a in s.arrays())]

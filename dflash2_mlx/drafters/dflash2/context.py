"""What the drafter remembers of the committed text: keys and values of its context rows.

Owns: one buffer group for all drafter layers, its device length and host bounds. Rows are projected once,
when their tokens are committed. Knows nothing of tokens or of how rows are made.

Reference: docs/dflash2.md 4.1, 4.8.
"""

from __future__ import annotations

import mlx.core as mx

from ...layers.kv_cache import RowBuffers


class DrafterContext:
    """Context of `batch` sequences.

    Args:
        num_layers: of the drafter.
        batch: sequences.
        window: of the sliding layers, when all layers slide; None keeps every row.
        sink: first rows of the sequence that stay visible.
    """

    def __init__(self, num_layers: int, batch: int, window: int | None, sink: int = 0):
        self.buffers = RowBuffers(num_layers, batch, window, sink)
        self.length = mx.zeros((batch,), dtype=mx.int32)
        self.floor = 0
        self.upper = 0

    def reserve(self, rows: int) -> None:
        """Room for `rows` rows past the committed ones."""
        self.buffers.reserve(self.floor, self.upper, rows)

    def skip_to(self, position: int) -> None:
        """Leave out rows before `position`, except those of the sink."""
        self.buffers.skip_to(position)
        self.truncate(position)

    def advance(self, rows: int, keep: int | mx.array) -> None:
        """`rows` rows were written, the first `keep` of them are committed."""
        self.length = self.length + keep
        self.upper += rows

    def settle(self, rows: int, kept: int, start: int) -> None:
        """The host has learned that a round of `rows` rows, begun at `start`, kept `kept`."""
        self.upper -= rows - kept
        self.floor = start

    def truncate(self, position: int) -> None:
        """The next row is that of `position`, as the host knows; what was written there counts as never seen."""
        self.length = mx.full(self.length.shape, position, dtype=mx.int32)
        self.floor = self.upper = position

    def trim(self) -> None:
        """Give back the room that the prompt needed and decoding does not."""
        self.buffers.trim(self.floor, self.upper)

    def copy(self) -> DrafterContext:
        """A context that goes its own way from here."""
        return self._twin(self.buffers.copy())

    def packed(self) -> DrafterContext:
        """As `copy`, but of memory of its own and without spare room; nothing may be in flight."""
        return self._twin(self.buffers.packed(self.floor))

    def _twin(self, buffers: RowBuffers) -> DrafterContext:
        twin = DrafterContext(buffers.num_layers, buffers.batch, buffers.window, buffers.sink)
        twin.buffers = buffers
        twin.length, twin.floor, twin.upper = self.length, self.floor, self.upper
        return twin

    def arrays(self) -> list[mx.array]:
        return [self.length, *self.buffers.arrays()]

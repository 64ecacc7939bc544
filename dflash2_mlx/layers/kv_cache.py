"""Key/value buffers whose length lives on the device.

Owns: preallocated K and V of a group of attention layers that move together, in time order: row i holds
absolute position `base + i`. `base` and `capacity` are host integers, so every shape is known without
reading the device; where the next rows go is a device array. Sliding layers use the same buffer and drop
rows nobody can see any more, a block of them at a time. With a sink, the first rows of all stay in front:
row i < sink holds position i whatever `base` is. Never a ring: sums over rotated keys change their
last bits. Knows nothing of models, masks' meaning beyond positions, or rollback (whoever rolls back moves
the length; rows past it are overwritten).

MLX does not check array starts: a write past the end corrupts memory. `reserve` must therefore be called
with a host bound of the length before each write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx

GROWTH = 256  # rows added at a time, and spare rows of a sliding buffer between two compactions
_SMALL = 32  # the same while the buffer is short: masked rows cost as much as real ones


Result = TypeVar("Result")
# What a function that writes buffers returns: its own result, then keys and values of all layers.
Written = tuple[Result, list[mx.array], list[mx.array]]


class RowView:
    """Buffers of all layers as plain arrays, for use inside a compiled function, where `base` is traced too.

    Shapes: keys, values [B, Hkv, capacity, Dh] per layer; base [] int32, see `RowBuffers`
    """

    def __init__(self, keys: list[mx.array], values: list[mx.array], base: mx.array, sink: int = 0):
        self.keys, self.values, self.base, self.sink = list(keys), list(values), base, sink

    def write(self, layer: int, keys: mx.array, values: mx.array, start: mx.array) -> tuple[mx.array, mx.array]:
        """As `RowBuffers.write`; it returns the layer's whole buffers, [B, Hkv, capacity, Dh] each."""
        at = _index_of(start, self.base, self.sink)
        self.keys[layer] = _put_rows(self.keys[layer], keys, at)
        self.values[layer] = _put_rows(self.values[layer], values, at)
        return self.keys[layer], self.values[layer]

    def positions(self) -> mx.array:
        """Absolute position of each row: [capacity] int32."""
        return _positions(self.keys[0].shape[2], self.base, self.sink)


class RowBuffers:
    """K and V buffers of `num_layers` layers, [B, Hkv, capacity, Dh] each; empty lists before the first write.

    Args:
        num_layers: layers in this group; they share one shape.
        batch: rows of the batch.
        window: positions a row can see, itself included, in sliding layers; None keeps everything.
        sink: first positions of the sequence that are kept as well, however far behind they are.
    """

    def __init__(self, num_layers: int, batch: int, window: int | None = None, sink: int = 0):
        self.num_layers = num_layers
        self.batch = batch
        self.window = window
        self.sink = sink
        self.base = 0
        self.capacity = 0
        self.keys: list[mx.array] = []
        self.values: list[mx.array] = []

    def copy(self) -> RowBuffers:
        """A second holder of the same arrays; whoever writes next copies them once."""
        twin = RowBuffers(self.num_layers, self.batch, self.window, self.sink)
        twin.base, twin.capacity = self.base, self.capacity
        twin.keys, twin.values = list(self.keys), list(self.values)
        return twin

    def packed(self, end: int) -> RowBuffers:
        """A copy of its own of the rows before position `end` that a row at `end` can still see, and no spare room."""
        twin = RowBuffers(self.num_layers, self.batch, self.window, self.sink)
        drop = min(self._droppable(end), max(0, end - self.base - self.sink))
        twin.base, twin.capacity = self.base + drop, max(0, end - self.base - drop)
        if self.keys:
            twin.keys = [own_copy(_moved(rows, drop, twin.capacity, self.sink)) for rows in self.keys]
            twin.values = [own_copy(_moved(rows, drop, twin.capacity, self.sink)) for rows in self.values]
        return twin

    @property
    def first_whole(self) -> int:
        """Every position from here on is held, up to the length."""
        return self.base + self.sink if self.base else 0

    def allocate(self, heads: int, dim: int, dtype: mx.Dtype) -> None:
        """Make the buffers of all layers, at the capacity reserved so far."""
        shape = (self.batch, heads, self.capacity, dim)
        self.keys = [mx.zeros(shape, dtype=dtype) for _ in range(self.num_layers)]
        self.values = [mx.zeros(shape, dtype=dtype) for _ in range(self.num_layers)]

    def run(self, function: Callable[..., Written[Result]], *inputs: mx.array | int) -> Result:
        """Call a function of (*inputs, base, keys, values) that returns a result and the new keys and values.

        The buffers are handed over, not shared, so a compiled function still writes them in place.
        """
        keys, values = self.keys, self.values
        self.keys, self.values = [], []
        result, self.keys, self.values = function(*inputs, mx.array(self.base, dtype=mx.int32), keys, values)
        return result

    def reserve(self, floor: int, upper: int, rows: int) -> None:
        """Make room for `rows` rows that start anywhere in floor..upper.

        Args:
            floor: no later pass will start below this position (rows it cannot see may go).
            upper: host bound of the device length.
        """
        least = self.sink if self.base else 0
        if max(upper + rows - self.base, least) <= self.capacity:
            return
        drop = self._droppable(floor)
        needed = max(upper + rows - self.base - drop, least)
        # Once rows are dropped, spare room makes the next compaction come GROWTH rows later.
        self._resize(drop, _rounded(needed + (GROWTH if drop else 0)))

    def trim(self, floor: int, upper: int) -> None:
        """Give back the room a long prefill chunk needed; sliding buffers only."""
        if self.window is None or self.capacity == 0:
            return
        drop = self._droppable(floor)
        capacity = _rounded(upper - self.base - drop + _SMALL)
        if capacity < self.capacity:
            self._resize(drop, capacity)

    def skip_to(self, position: int) -> None:
        """Go on at `position`, at or past the sink: rows between the sink and there will never be asked for."""
        assert position >= self.sink, "the sink cannot be skipped"
        self._resize(max(0, self.capacity - self.sink), self.sink)
        self.base = position - self.sink

    def _droppable(self, floor: int) -> int:
        """Rows behind the sink that no row at `floor` or later can see."""
        if self.window is None:
            return 0
        first = floor - (self.window - 1) - self.sink
        return max(0, min(first - self.base, self.capacity - self.sink))

    def _resize(self, drop: int, capacity: int) -> None:
        self.keys = [_moved(rows, drop, capacity, self.sink) for rows in self.keys]
        self.values = [_moved(rows, drop, capacity, self.sink) for rows in self.values]
        self.base += drop
        self.capacity = capacity

    def write(self, layer: int, keys: mx.array, values: mx.array, start: mx.array) -> tuple[mx.array, mx.array]:
        """Store rows at absolute positions start..start+L-1 and return the layer's whole buffers.

        Shapes:
            keys, values: [B, Hkv, L, Dh]
            start:        [B] int32, on the device
        Returns:
            keys and values [B, Hkv, capacity, Dh], valid until the next write
        """
        if not self.keys:
            self.allocate(keys.shape[1], keys.shape[3], keys.dtype)
        at = _index_of(start, self.base, self.sink)
        # Rebound at once: a second name for the buffer would turn the in-place write into a copy.
        self.keys[layer] = _put_rows(self.keys[layer], keys, at)
        self.values[layer] = _put_rows(self.values[layer], values, at)
        return self.keys[layer], self.values[layer]

    def positions(self) -> mx.array:
        """Absolute position of each row: [capacity] int32."""
        return _positions(self.capacity, self.base, self.sink)

    def causal_mask(self, rows: mx.array) -> mx.array:
        """Which buffer rows each query sees in a causal layer, sliding or not.

        Shapes:
            rows: [B, L] int32, absolute positions of the queries
        Returns:
            [B, 1, L, capacity] bool
        """
        distance = rows[:, None, :, None] - self.positions()
        if self.window is None:
            return distance >= 0
        return (distance >= 0) & (distance < self.window)

    def arrays(self) -> list[mx.array]:
        """The buffers of all layers, keys first."""
        return [*self.keys, *self.values]


def _rounded(rows: int) -> int:
    step = _SMALL if rows <= 1024 else GROWTH
    return -(-rows // step) * step


def _index_of(start: mx.array, base: mx.array | int, sink: int) -> mx.array:
    """Buffer row of an absolute position."""
    return mx.where(start < sink, start, start - base) if sink else start - base


def _positions(capacity: int, base: mx.array | int, sink: int) -> mx.array:
    """Absolute position of each buffer row: [capacity] int32."""
    index = mx.arange(capacity, dtype=mx.int32)
    return mx.where(index < sink, index, index + base) if sink else index + base


def _put_rows(buffer: mx.array, rows: mx.array, at: mx.array) -> mx.array:
    if buffer.shape[0] == 1:
        return mx.slice_update(buffer, rows, at.reshape(1), axes=(2,))
    # slice_update takes one start for the whole batch, so ragged batches scatter.
    index = at[:, None] + mx.arange(rows.shape[2], dtype=mx.int32)
    return mx.put_along_axis(buffer, mx.broadcast_to(index[:, None, :, None], rows.shape), rows, axis=2)


def own_copy(array: mx.array) -> mx.array:
    """The same numbers in memory of their own; a slice, even a contiguous one, may keep all it is a part of alive."""
    empty = mx.zeros(array.shape, dtype=array.dtype)
    return mx.slice_update(empty, array, mx.array([0]), axes=(0,)) if array.size else empty


def _moved(rows: mx.array, drop: int, capacity: int, sink: int = 0) -> mx.array:
    if sink and drop:
        kept = mx.concatenate([rows[:, :, :sink], rows[:, :, sink + drop : drop + capacity]], axis=2)
    else:
        kept = rows[:, :, drop : drop + capacity]
    missing = capacity - kept.shape[2]
    if missing == 0:
        return kept
    batch, heads, _, dim = rows.shape
    return mx.concatenate([kept, mx.zeros((batch, heads, missing, dim), dtype=rows.dtype)], axis=2)

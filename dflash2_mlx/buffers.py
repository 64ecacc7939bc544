"""Key/value buffers whose length lives on the device.

Owns: preallocated K and V of a group of attention layers that move together, in time order: row i holds
absolute position `base + i`. `base` and `capacity` are host integers, so every shape is known without
reading the device; where the next rows go is a device array. Sliding layers use the same buffer and drop
rows nobody can see any more, a block of them at a time. Never a ring: sums over rotated keys change their
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

    Shapes: keys, values [B, Hkv, capacity, Dh] per layer; base [] int32, position of row 0
    """

    def __init__(self, keys: list[mx.array], values: list[mx.array], base: mx.array):
        self.keys, self.values, self.base = list(keys), list(values), base

    def write(self, layer: int, keys: mx.array, values: mx.array, start: mx.array) -> tuple[mx.array, mx.array]:
        """As `RowBuffers.write`."""
        at = start - self.base
        self.keys[layer] = _put_rows(self.keys[layer], keys, at)
        self.values[layer] = _put_rows(self.values[layer], values, at)
        return self.keys[layer], self.values[layer]

    def positions(self) -> mx.array:
        """Absolute position of each row: [capacity] int32."""
        return mx.arange(self.keys[0].shape[2], dtype=mx.int32) + self.base


class RowBuffers:
    """K and V buffers of `num_layers` layers, [B, Hkv, capacity, Dh] each; empty lists before the first write.

    Args:
        num_layers: layers in this group; they share one shape.
        batch: rows of the batch.
        window: positions a row can see, itself included, in sliding layers; None keeps everything.
    """

    def __init__(self, num_layers: int, batch: int, window: int | None = None):
        self.num_layers = num_layers
        self.batch = batch
        self.window = window
        self.base = 0
        self.capacity = 0
        self.keys: list[mx.array] = []
        self.values: list[mx.array] = []

    def copy(self) -> RowBuffers:
        """A second holder of the same arrays; whoever writes next copies them once."""
        twin = RowBuffers(self.num_layers, self.batch, self.window)
        twin.base, twin.capacity = self.base, self.capacity
        twin.keys, twin.values = list(self.keys), list(self.values)
        return twin

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
        if upper + rows - self.base <= self.capacity:
            return
        drop = 0
        if self.window is not None:
            drop = max(0, min(floor - (self.window - 1) - self.base, self.capacity))
        needed = upper + rows - self.base - drop
        # Once rows are dropped, spare room makes the next compaction come GROWTH rows later.
        self._resize(drop, _rounded(needed + (GROWTH if drop else 0)))

    def trim(self, floor: int, upper: int) -> None:
        """Give back the room a long prefill chunk needed; sliding buffers only."""
        if self.window is None or self.capacity == 0:
            return
        drop = max(0, min(floor - (self.window - 1) - self.base, self.capacity))
        capacity = _rounded(upper - self.base - drop + _SMALL)
        if capacity < self.capacity:
            self._resize(drop, capacity)

    def skip_to(self, position: int) -> None:
        """Start an empty buffer at `position`: rows before it will never be asked for."""
        assert self.capacity == 0, "only an empty buffer can be moved"
        self.base = position

    def _resize(self, drop: int, capacity: int) -> None:
        self.keys = [_moved(rows, drop, capacity) for rows in self.keys]
        self.values = [_moved(rows, drop, capacity) for rows in self.values]
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
        at = start - self.base
        # Rebound at once: a second name for the buffer would turn the in-place write into a copy.
        self.keys[layer] = _put_rows(self.keys[layer], keys, at)
        self.values[layer] = _put_rows(self.values[layer], values, at)
        return self.keys[layer], self.values[layer]

    def positions(self) -> mx.array:
        """Absolute position of each row: [capacity] int32."""
        return mx.arange(self.capacity, dtype=mx.int32) + self.base

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
        return [*self.keys, *self.values]


def _rounded(rows: int) -> int:
    step = _SMALL if rows <= 1024 else GROWTH
    return -(-rows // step) * step


def _put_rows(buffer: mx.array, rows: mx.array, at: mx.array) -> mx.array:
    if buffer.shape[0] == 1:
        return mx.slice_update(buffer, rows, at.reshape(1), axes=(2,))
    # slice_update takes one start for the whole batch, so ragged batches scatter.
    index = at[:, None] + mx.arange(rows.shape[2], dtype=mx.int32)
    return mx.put_along_axis(buffer, mx.broadcast_to(index[:, None, :, None], rows.shape), rows, axis=2)


def _moved(rows: mx.array, drop: int, capacity: int) -> mx.array:
    kept = rows[:, :, drop : drop + capacity]
    missing = capacity - kept.shape[2]
    if missing == 0:
        return kept
    batch, heads, _, dim = rows.shape
    return mx.concatenate([kept, mx.zeros((batch, heads, missing, dim), dtype=rows.dtype)], axis=2)

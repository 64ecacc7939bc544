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

import mlx.core as mx

GROWTH = 256  # rows added at a time, and spare rows of a sliding buffer between two compactions
_SMALL = 64  # the same while the buffer is short: masked rows cost as much as real ones


class RowBuffers:
    """K and V buffers of `num_layers` layers, [B, Hkv, capacity, Dh] each, made at the first write.

    Args:
        num_layers: layers in this group.
        batch: rows of the batch.
        window: positions a row can see, itself included, in sliding layers; None keeps everything.
    """

    def __init__(self, num_layers: int, batch: int, window: int | None = None):
        self.batch = batch
        self.window = window
        self.base = 0
        self.capacity = 0
        self.keys: list[mx.array | None] = [None] * num_layers
        self.values: list[mx.array | None] = [None] * num_layers

    def copy(self) -> RowBuffers:
        """A second holder of the same arrays; whoever writes next copies them once."""
        twin = RowBuffers(len(self.keys), self.batch, self.window)
        twin.base, twin.capacity = self.base, self.capacity
        twin.keys, twin.values = list(self.keys), list(self.values)
        return twin

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
        if self.keys[layer] is None:
            shape = (keys.shape[0], keys.shape[1], self.capacity, keys.shape[3])
            self.keys[layer] = mx.zeros(shape, dtype=keys.dtype)
            self.values[layer] = mx.zeros((*shape[:3], values.shape[3]), dtype=values.dtype)
        at = start - self.base
        # Rebound at once: a second name for the buffer would turn the in-place write into a copy.
        self.keys[layer] = _put_rows(self.keys[layer], keys, at)
        self.values[layer] = _put_rows(self.values[layer], values, at)
        return self.keys[layer], self.values[layer]

    def positions(self) -> mx.array:
        """Absolute position of each row: [capacity] int32."""
        return mx.arange(self.base, self.base + self.capacity, dtype=mx.int32)

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
        return [rows for rows in (*self.keys, *self.values) if rows is not None]


def _rounded(rows: int) -> int:
    step = _SMALL if rows <= 1024 else GROWTH
    return -(-rows // step) * step


def _put_rows(buffer: mx.array, rows: mx.array, at: mx.array) -> mx.array:
    if buffer.shape[0] == 1:
        return mx.slice_update(buffer, rows, at.reshape(1), axes=(2,))
    # slice_update takes one start for the whole batch, so ragged batches scatter.
    index = at[:, None] + mx.arange(rows.shape[2], dtype=mx.int32)
    return mx.put_along_axis(buffer, mx.broadcast_to(index[:, None, :, None], rows.shape), rows, axis=2)


def _moved(rows: mx.array | None, drop: int, capacity: int) -> mx.array | None:
    if rows is None:
        return None
    kept = rows[:, :, drop : drop + capacity]
    missing = capacity - kept.shape[2]
    if missing == 0:
        return kept
    batch, heads, _, dim = rows.shape
    return mx.concatenate([kept, mx.zeros((batch, heads, missing, dim), dtype=rows.dtype)], axis=2)

"""Drafter attention: block rows look at committed context and at each other.

Owns: the projections, q/k norms, RoPE at absolute positions, and the visibility rule of one layer. Block keys
and values are written into the context buffer past its committed rows, so the block attends one array in time
order without a copy; the next committed rows overwrite them.

Reference: DFlash 2 specification 3.2, 3.4, 3.6.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..buffers import RowView
from ..config import DrafterConfig


class DrafterAttention(nn.Module):
    """Grouped-query attention of one drafter layer. Parameter names follow the checkpoint."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, dim
        self.theta = config.rope_theta
        self.q_proj = nn.Linear(hidden, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)

    def keys_values(self, x: mx.array, start: mx.array) -> tuple[mx.array, mx.array]:
        """K and V of rows at positions start.. ; the same for context and block rows.

        Shapes:
            x: [B, L, D], start: [B] int32 -> [B, Hkv, L, Dh] twice
        """
        batch, length, _ = x.shape
        keys = self.k_proj(x).reshape(batch, length, self.kv_heads, self.head_dim)
        keys = self._rope(self.k_norm(keys).transpose(0, 2, 1, 3), start)
        values = self.v_proj(x).reshape(batch, length, self.kv_heads, self.head_dim)
        return keys, values.transpose(0, 2, 1, 3)

    def __call__(self, x: mx.array, buffers: RowView, layer: int, start: mx.array, mask: mx.array) -> mx.array:
        """Attend [B, L, D] block rows at positions start.. over context and block.

        Shapes:
            start: [B] int32
            mask:  [B, 1, L, capacity] bool, from `block_mask`
        """
        batch, length, _ = x.shape
        queries = self.q_proj(x).reshape(batch, length, self.heads, self.head_dim)
        queries = self._rope(self.q_norm(queries).transpose(0, 2, 1, 3), start)
        keys, values = buffers.write(layer, *self.keys_values(x, start), start)
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.head_dim**-0.5, mask=mask)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(batch, length, -1))

    def _rope(self, x: mx.array, start: mx.array) -> mx.array:
        return mx.fast.rope(x, self.head_dim, traditional=False, base=self.theta, scale=1.0, offset=start)


def block_mask(positions: mx.array, start: mx.array, length: int, *, window: int | None, causal: bool) -> mx.array:
    """Which buffer rows each block row sees: `|p - s| < window`, nothing past the block.

    Shapes:
        positions: [capacity] int32, absolute positions of the buffer rows
        start:     [B] int32, position of the anchor
    Args:
        length: rows of the block.
        window: of a sliding layer, None for a full one.
        causal: also hide later rows of the block.
    Returns:
        [B, 1, length, capacity] bool
    """
    rows = start[:, None] + mx.arange(length, dtype=mx.int32)
    distance = rows[:, None, :, None] - positions
    seen = positions < (start[:, None, None, None] + length)
    if window is not None:
        seen = seen & (mx.abs(distance) < window)
    if causal:
        seen = seen & (distance >= 0)
    return mx.broadcast_to(seen, (start.shape[0], 1, length, positions.shape[0]))

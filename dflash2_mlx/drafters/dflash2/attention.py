"""Drafter attention: block rows look at committed context and at each other.

Owns: the projections, q/k norms, RoPE at absolute positions, and the visibility rule of one layer. Block keys
and values are written into the context buffer past its committed rows, so the block attends one array in time
order without a copy; the next committed rows overwrite them.

Reference: docs/dflash2.md 3.2, 3.4, 3.6.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ...kernels.few_row_attention import Sight, attention_twin, few_row_attention
from ...kernels.norm_rope import norm_rope, norm_rope_twin
from ...layers.fused import Joined, join, run_joined, share
from ...layers.kv_cache import RowView
from .config import DrafterConfig


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

        self._qkv: Joined | None = None
        self._norms: mx.array | None = None

    def __call__(self, x: mx.array, buffers: RowView, layer: int, sight: Sight) -> mx.array:
        """Attend block rows at positions sight.start.. over context and block.

        Shapes:
            x: [B, L, D], or [L, D] where B is 1
        """
        queries, keys, values = self.project(x, sight.start)
        keys, values = buffers.write(layer, keys, values, sight.start)
        if self._norms is None:  # as in `project`
            out = attention_twin(queries, keys, values, sight.mask)
        else:
            out = few_row_attention(queries, keys, values, sight)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(*x.shape[:-1], -1))

    def project(self, x: mx.array, start: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys and values of rows at positions start.., normed and turned.

        Shapes:
            x: [B, L, D] (or [L, D]), start: [B] int32 -> [B, Hq, L, Dh] and twice [B, Hkv, L, Dh]
        """
        turned = self.heads + self.kv_heads
        rows = run_joined(self._qkv, (self.q_proj, self.k_proj, self.v_proj), x)
        rows = rows.reshape(start.shape[0], -1, turned + self.kv_heads, self.head_dim)
        if self._norms is None:  # as long as weights may change: the twin, which has gradients
            both = norm_rope_twin(rows, self._head_norms(), start, theta=self.theta, eps=self.q_norm.eps)
        else:
            both = norm_rope(rows, self._norms, start, theta=self.theta, eps=self.q_norm.eps)
        return both[:, : self.heads], both[:, self.heads :], rows[:, :, turned:].transpose(0, 2, 1, 3)

    @property
    def joined(self) -> Joined | None:
        """The one product of q, k and v, where there is one."""
        return self._qkv

    def _head_norms(self) -> mx.array:
        """Norm weights of every query and key head: [Hq + Hkv, Dh]."""
        return mx.concatenate(
            [
                mx.broadcast_to(self.q_norm.weight, (self.heads, self.head_dim)),
                mx.broadcast_to(self.k_norm.weight, (self.kv_heads, self.head_dim)),
            ]
        )

    def join_weights(self) -> None:
        """Run q, k and v as one product from now on; the parts become views of it."""
        if self._qkv is not None:  # done before, for another drafter of the same modules
            return
        parts = (self.q_proj, self.k_proj, self.v_proj)
        self._qkv, self._norms = join(parts), self._head_norms()
        share(self._qkv, parts)
        mx.eval(self._norms)


def block_sight(buffers: RowView, start: mx.array, length: int, *, window: int | None, causal: bool) -> Sight:
    """What the rows of a block see in layers of one kind; see `block_mask`."""
    mask = block_mask(buffers.positions(), start, length, window=window, causal=causal, sink=buffers.sink)
    return Sight(mask, start, buffers.base, causal, window, buffers.sink)


def block_mask(
    positions: mx.array, start: mx.array, length: int, *, window: int | None, causal: bool, sink: int = 0
) -> mx.array:
    """Which buffer rows each block row sees: `|p - s| < window` or `s < sink`, nothing past the block.

    Shapes:
        positions: [capacity] int32, absolute positions of the buffer rows
        start:     [B] int32, position of the anchor
    Args:
        length: rows of the block.
        window: of a sliding layer, None for a full one.
        causal: also hide later rows of the block.
        sink: first positions of the sequence, seen from everywhere.
    Returns:
        [B, 1, length, capacity] bool
    """
    rows = start[:, None] + mx.arange(length, dtype=mx.int32)
    distance = rows[:, None, :, None] - positions
    seen = positions < (start[:, None, None, None] + length)
    if window is not None:
        near = mx.abs(distance) < window
        seen = seen & (near | (positions < sink) if sink else near)
    if causal:
        seen = seen & (distance >= 0)
    return mx.broadcast_to(seen, (start.shape[0], 1, length, positions.shape[0]))

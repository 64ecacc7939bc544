"""Grouped dynamic convolution over the rows of one block.

Owns: one side of the convolution, `out[i] = sum_t (base[t] + delta[i, t]) * x[i - t]`, with zero before the
block's first row. Knows nothing of layers or projections. Only the pure-MLX form exists so far.

Reference: DFlash 2 specification 3.7.
"""

from __future__ import annotations

import mlx.core as mx


def split_base(base: mx.array, groups: int) -> list[mx.array]:
    """The base kernel [S, W, D] as one float32 [1, G, D // G] array per side and tap, side by side."""
    size = base.shape[-1] // groups
    return list(mx.split(base.astype(mx.float32).reshape(-1, groups, size), base.shape[0] * base.shape[1]))


def dynamic_conv(x: mx.array, base: list[mx.array], delta: mx.array, side: int) -> mx.array:
    """Mix each row with the rows before it, by coefficients of its own.

    Shapes:
        x:     [..., L, D]        block rows, row 0 the anchor; leading axes are sequences
        base:  S * W arrays       one coefficient per side, tap and channel, from `split_base`
        delta: [..., L, S, W, G]  coefficients of the current row, one per side, tap and group of D // G channels
    Args:
        side: which of the S sides to apply.
    Returns:
        [..., L, D] in the dtype of `x`; sums are float32, rounded once.

    Differs from reference: it adds base and delta products in the activation dtype.
    """
    *batch, length, channels = x.shape
    sides, taps, groups = delta.shape[-3:]
    rows = x.astype(mx.float32).reshape(*batch, length, 1, groups, channels // groups)
    # Slices below, not an index per tap, which would cost a second view at every call.
    change = delta.astype(mx.float32).reshape(*batch, length, sides * taps, groups, 1)
    first = side * taps
    out = (base[first] + change[..., first : first + 1, :, :]) * rows
    for tap in range(1, min(taps, length)):
        shifted = mx.pad(rows[..., :-tap, :, :, :], [(0, 0)] * len(batch) + [(tap, 0), (0, 0), (0, 0), (0, 0)])
        out = out + (base[first + tap] + change[..., first + tap : first + tap + 1, :, :]) * shifted
    return out.reshape(x.shape).astype(x.dtype)

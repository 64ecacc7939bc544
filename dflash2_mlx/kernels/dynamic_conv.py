"""Grouped dynamic convolution over the rows of one block.

Owns: one side of the convolution, `out[i] = sum_t (base[t] + delta[i, t]) * x[i - t]`, with zero before the
block's first row. Knows nothing of layers or projections. Only the pure-MLX form exists so far.

Reference: DFlash 2 specification 3.7.
"""

from __future__ import annotations

import mlx.core as mx


def dynamic_conv(x: mx.array, base: mx.array, delta: mx.array) -> mx.array:
    """Mix each row with the rows before it, by coefficients of its own.

    Shapes:
        x:     [B, L, D]     block rows, row 0 the anchor
        base:  [W, D]        one coefficient per tap and channel
        delta: [B, L, W, G]  coefficients of the current row, one per tap and group of D // G channels
    Returns:
        [B, L, D] in the dtype of `x`; sums are float32, rounded once.

    Differs from reference: it adds base and delta products in the activation dtype.
    """
    batch, length, channels = x.shape
    taps, groups = delta.shape[2:]
    rows = x.astype(mx.float32).reshape(batch, length, groups, channels // groups)
    kernel = base.astype(mx.float32).reshape(taps, groups, channels // groups)
    change = delta.astype(mx.float32)[..., None]
    # Slices, not kernel[tap]: an index would copy the coefficients at every call.
    out = (kernel[:1] + change[:, :, 0]) * rows
    for tap in range(1, min(taps, length)):
        shifted = mx.pad(rows[:, :-tap], [(0, 0), (tap, 0), (0, 0), (0, 0)])
        out = out + (kernel[tap : tap + 1] + change[:, :, tap]) * shifted
    return out.reshape(x.shape).astype(x.dtype)

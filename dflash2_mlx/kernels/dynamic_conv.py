"""Grouped dynamic convolution over the rows of one block.

Owns: one side of the convolution, `out[i] = sum_t (base[t] + delta[i, t]) * x[i - t]`, with zero before the
block's first row: the pure-MLX twin, and the choice between it and metal/dynamic_conv.metal. Knows nothing of
layers or projections.

Reference: docs/dflash2.md 3.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import mlx.core as mx

from .call import KernelCall
from .dispatch import check_equal, dispatcher, like, race_key, rounding

NAME = "dynamic_conv"


def split_base(base: mx.array, groups: int) -> list[mx.array]:
    """The base kernel [S, W, D] as one float32 [1, G, D // G] array per side and tap, side by side."""
    size = base.shape[-1] // groups
    return list(mx.split(base.astype(mx.float32).reshape(-1, groups, size), base.shape[0] * base.shape[1]))


def dynamic_conv(
    x: mx.array, base: mx.array, delta: mx.array, side: int, *, split: list[mx.array] | None = None
) -> mx.array:
    """Mix each row with the rows before it, by coefficients of its own.

    Shapes:
        x:     [..., L, D]        block rows, row 0 the anchor; leading axes are sequences
        base:  [2, W, D]          one coefficient per side, tap and channel
        delta: [..., L, 2, W, G]  coefficients of the current row, one per side, tap and group of D // G channels
    Args:
        side: which of the two sides to apply.
        split: `split_base(base, G)`, where somebody keeps it.
    Returns:
        [..., L, D] in the dtype of `x`; sums are float32, rounded once.

    Differs from reference: it adds base and delta products in the activation dtype.
    """
    kernels = dispatcher()
    if kernels.chooses_metal(NAME, key_of(x)):
        inputs = (_with_batch(x, 3), base, _with_batch(delta, 5))
        call = _call(*inputs, side)
        if kernels.passes(call, inputs, lambda: _self_test(call, inputs)):
            return kernels.run(call, inputs)[0].reshape(x.shape)
    return convolve(x, split_base(base, delta.shape[-1]) if split is None else split, delta, side)


def key_of(x: mx.array) -> str:
    """Name of this shape in races."""
    return race_key(x.shape[-2:], x.dtype)


def convolve(x: mx.array, base: list[mx.array], delta: mx.array, side: int) -> mx.array:
    """The twin of `dynamic_conv`, shapes as there; `base` is `split_base(base, G)`."""
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


def _call(x: mx.array, base: mx.array, delta: mx.array, side: int) -> KernelCall:
    batch, length, channels = x.shape
    return dynamic_conv_call((batch, length, channels), x.dtype, base.shape[1], channels // delta.shape[-1], side)


def _with_batch(array: mx.array, ndim: int) -> mx.array:
    return array if array.ndim == ndim else array.reshape(-1, *array.shape[1 - ndim :])


def _self_test(call: KernelCall, inputs: Sequence[mx.array]) -> None:
    x, base, delta = like(inputs)
    got = dispatcher().run(call, (x, base, delta))[0]
    side = dict(call.template)["SIDE"]
    want = convolve(x, split_base(base, delta.shape[-1]), delta, side)
    check_equal(got, want, tolerance=rounding(x.dtype), what=NAME)


@cache
def dynamic_conv_call(shape: tuple[int, int, int], dtype: mx.Dtype, taps: int, group: int, side: int) -> KernelCall:
    """One side of the convolution.

    Shapes:
        x [B, L, D], base_kernel [2, W, D], delta [B, L, 2, W, G] -> out [B, L, D]
    Args:
        shape, dtype: of x and out.
        group: channels that share a delta, D // G.
    """
    batch, rows, channels = shape
    vector = next(size for size in (4, 2, 1) if group % size == 0)
    threads = channels // vector
    template = (
        ("T", dtype),
        ("SIDE", side),
        ("TAPS", taps),
        ("CHANNELS", channels),
        ("GROUP", group),
        ("VECTOR", vector),
    )
    return KernelCall(
        name="dynamic_conv",
        inputs=("x", "base_kernel", "delta"),
        outputs=("out",),
        template=template,
        grid=(threads, rows, batch),
        threadgroup=(min(threads, 256), 1, 1),
        output_shapes=(shape,),
        output_dtypes=(dtype,),
    )

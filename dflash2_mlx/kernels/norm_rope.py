"""RMSNorm of each head, then RoPE at absolute positions.

Owns: the pure-MLX twin, and the choice between it and metal/norm_rope.metal, which does both in one dispatch.

Reference: docs/dflash2.md 3.2, 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from .call import KernelCall
from .dispatch import check_equal, dispatcher, like, race_key, rounding

NAME = "norm_rope"


def norm_rope(rows: mx.array, norms: mx.array, start: mx.array, *, theta: float, eps: float) -> mx.array:
    """Make the first heads of each row ready for attention.

    Shapes:
        rows:  [B, L, H, Dh]; the first Ht of the H heads are used
        norms: [Ht, Dh], norm weights of each head
        start: [B] int32, absolute position of row 0
    Args:
        theta: RoPE's base.
        eps: of the norm.
    Returns:
        [B, Ht, L, Dh] in the dtype of `rows`
    """
    kernels = dispatcher()
    if kernels.chooses_metal(NAME, key_of(rows, norms)):
        settings = mx.array([eps, math.log2(theta)], dtype=mx.float32)
        inputs = (rows, norms, start, settings)
        call = norm_rope_call(rows.shape, rows.dtype, norms.shape[0])
        if kernels.passes(call, inputs, lambda: _self_test(call, inputs)):
            return kernels.run(call, inputs)[0]
    return norm_rope_twin(rows, norms, start, theta=theta, eps=eps)


def key_of(rows: mx.array, norms: mx.array) -> str:
    """Name of this shape in races."""
    return race_key(rows.shape[1:], rows.dtype, f"heads {norms.shape[0]}")


def norm_rope_twin(rows: mx.array, norms: mx.array, start: mx.array, *, theta: float, eps: float) -> mx.array:
    """The twin of `norm_rope`, shapes as there."""
    normed = (mx.fast.rms_norm(rows[:, :, : norms.shape[0]], None, eps) * norms).transpose(0, 2, 1, 3)
    return mx.fast.rope(normed, rows.shape[-1], traditional=False, base=theta, scale=1.0, offset=start)


def _self_test(call: KernelCall, inputs: Sequence[mx.array]) -> None:
    rows, norms = like(inputs[:2])
    _, _, start, settings = inputs
    some = mx.arange(start.shape[0], dtype=mx.int32) * 37 + 5
    got = dispatcher().run(call, (rows, norms, some, settings))[0]
    numbers: Any = settings.tolist()
    eps, base = numbers
    want = norm_rope_twin(rows, norms, some, theta=2.0**base, eps=eps)
    check_equal(got, want, tolerance=2 * rounding(rows.dtype), what=NAME)


# Threads of a group. Kernels that need many registers get fewer than the 1024 Metal allows.
NORM_THREADS = 256


@cache
def norm_rope_call(shape: tuple[int, int, int, int], dtype: mx.Dtype, heads: int) -> KernelCall:
    """RMSNorm and RoPE of the first heads of each row.

    Shapes:
        rows [B, L, H, Dh], norms [heads, Dh], start [B] int32, settings [2] float32 (eps, log2 of RoPE's base)
        -> turned [B, heads, L, Dh]
    Args:
        shape, dtype: of rows.
    Raises:
        ValueError: more heads than rows have, or a head of odd size.
    """
    batch, length, available, dim = shape
    if not 1 <= heads <= available or dim % 2:
        raise ValueError(f"norm_rope: got {heads} of {available} heads of size {dim}, expected some, of an even size")
    return KernelCall(
        name="norm_rope",
        inputs=("rows", "norms", "start", "settings"),
        outputs=("turned",),
        template=(("T", dtype), ("HEADS", heads), ("DIM", dim)),
        grid=(32 * heads, length, batch),
        threadgroup=(32, 1, 1),
        output_shapes=((batch, heads, length, dim),),
        output_dtypes=(dtype,),
    )

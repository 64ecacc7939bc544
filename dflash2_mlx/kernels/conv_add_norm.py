"""What follows a sublayer: its convolution's second side, the residual sum and the next RMSNorm.

Owns: the pure-MLX twin, and the choice between it and metal/conv_add_norm.metal, which does all three in one
dispatch.

Reference: docs/dflash2.md 3.5, 3.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from .call import KernelCall
from .dispatch import check_equal, dispatcher, like, race_key, rounding
from .dynamic_conv import convolve, split_base
from .norm_rope import NORM_THREADS

NAME = "conv_add_norm"


AFTER = 1


def conv_add_norm(
    y: mx.array,
    base: mx.array,
    delta: mx.array,
    residual: mx.array,
    weight: mx.array,
    eps: float,
    *,
    split: list[mx.array] | None = None,
) -> tuple[mx.array, mx.array]:
    """The residual stream after a sublayer, and its norm.

    Shapes:
        y, residual: [..., L, D]; base: [2, W, D]; delta: [..., L, 2, W, G]; weight: [D]
        -> stream and normed [..., L, D]
    Args:
        y: the sublayer's output.
        eps: of the norm.
        split: `split_base(base, G)`, where somebody keeps it.
    """
    kernels = dispatcher()
    if kernels.chooses_metal(NAME, key_of(y)):
        shape = (-1, *y.shape[-2:])
        inputs = (
            y.reshape(shape),
            residual.reshape(shape),
            base,
            delta.reshape(-1, *delta.shape[-4:]),
            weight,
            mx.array(eps, dtype=mx.float32),
        )
        call = _call(inputs)
        if kernels.passes(call, inputs, lambda: _self_test(call, inputs)):
            stream, normed = kernels.run(call, inputs)
            return stream.reshape(y.shape), normed.reshape(y.shape)
    split = split_base(base, delta.shape[-1]) if split is None else split
    return conv_add_norm_twin(y, split, delta, residual, weight, eps)


def key_of(y: mx.array) -> str:
    """Name of this shape in races."""
    return race_key(y.shape[-2:], y.dtype)


def conv_add_norm_twin(
    y: mx.array, split: list[mx.array], delta: mx.array, residual: mx.array, weight: mx.array, eps: float
) -> tuple[mx.array, mx.array]:
    """The twin of `conv_add_norm`, shapes as there; `split` is `split_base(base, G)`."""
    return add_norm(convolve(y, split, delta, AFTER), residual, weight, eps)


def add_norm(y: mx.array, residual: mx.array, weight: mx.array, eps: float) -> tuple[mx.array, mx.array]:
    """Residual sum and norm alone: stream and normed, shaped like `y` [..., L, D]."""
    stream = residual + y
    return stream, mx.fast.rms_norm(stream, weight, eps)


def _call(inputs: Sequence[mx.array]) -> KernelCall:
    y, base, delta = inputs[0], inputs[2], inputs[3]
    batch, length, channels = y.shape
    return conv_add_norm_call((batch, length, channels), y.dtype, base.shape[1], channels // delta.shape[-1])


def _self_test(call: KernelCall, inputs: Sequence[mx.array]) -> None:
    y, residual, base, delta, weight = like(inputs[:-1])
    got = dispatcher().run(call, (y, residual, base, delta, weight, inputs[-1]))
    eps: Any = inputs[-1].item()
    split = split_base(base, delta.shape[-1])
    want = conv_add_norm_twin(y, split, delta, residual, weight, eps)
    for mine, theirs, what in zip(got, want, ("sum", "norm"), strict=True):
        check_equal(mine, theirs, tolerance=2 * rounding(y.dtype), what=f"{NAME} {what}")


@cache
def conv_add_norm_call(shape: tuple[int, int, int], dtype: mx.Dtype, taps: int, group: int) -> KernelCall:
    """Side 1 of the convolution, residual sum and RMSNorm.

    Shapes:
        y, residual [B, L, D], base_kernel [2, W, D], delta [B, L, 2, W, G], weight [D], eps [] float32
        -> stream, normed [B, L, D]
    Args:
        shape, dtype: of y, residual and both outputs.
    """
    batch, rows, channels = shape
    threads = min(NORM_THREADS, -(-channels // 32) * 32)
    template = (("T", dtype), ("TAPS", taps), ("CHANNELS", channels), ("GROUP", group), ("THREADS", threads))
    return KernelCall(
        name="conv_add_norm",
        inputs=("y", "residual", "base_kernel", "delta", "weight", "eps"),
        outputs=("stream", "normed"),
        template=template,
        grid=(threads, rows, batch),
        threadgroup=(threads, 1, 1),
        output_shapes=(shape, shape),
        output_dtypes=(dtype, dtype),
    )

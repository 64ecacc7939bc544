"""What follows a sublayer, in plain MLX, against the float64 reference and the steps it joins."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx.drafters.dflash2.conv import DynamicConv, NoConv
from dflash2_mlx.kernels.conv_add_norm import conv_add_norm
from dflash2_mlx.kernels.dynamic_conv import dynamic_conv, split_base
from tests.reference import conv as reference

SHAPES = [(1, 1, 12, 2, 3), (2, 5, 20, 3, 5), (1, 16, 64, 2, 16), (3, 7, 10, 1, 10)]  # B, L, D, taps, group
EPS = 1e-5


def inputs(batch: int, rows: int, channels: int, taps: int, group: int) -> tuple[mx.array, ...]:
    shapes = [
        (batch, rows, channels),
        (2, taps, channels),
        (batch, rows, 2, taps, channels // group),
        (batch, rows, channels),
        (channels,),
    ]
    keys = mx.random.split(mx.random.key(4), len(shapes))
    return tuple(mx.random.normal(shape, key=key) for shape, key in zip(shapes, keys, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference(shape):
    y, base, delta, residual, weight = inputs(*shape)
    stream, normed = conv_add_norm(y, base, delta, residual, weight, EPS)
    wide = [np.array(array, dtype=np.float64) for array in (y, residual, delta, base, weight)]
    for row in range(shape[0]):
        want = reference.conv_add_norm(wide[0][row], wide[1][row], wide[2][row, :, 1], wide[3], wide[4], EPS, shape[-1])
        for got, theirs in zip((stream[row], normed[row]), want, strict=True):
            np.testing.assert_allclose(got, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_is_its_steps_one_after_another(dtype):
    y, base, delta, residual, weight = (array.astype(dtype) for array in inputs(2, 5, 64, 2, 16))
    stream, normed = conv_add_norm(y, base, delta, residual, weight, EPS, split=split_base(base, 4))
    steps = residual + dynamic_conv(y, base, delta, 1)
    assert stream.dtype == normed.dtype == dtype
    assert mx.array_equal(stream, steps) and mx.array_equal(normed, mx.fast.rms_norm(steps, weight, EPS))


def test_without_convolution_the_sum_and_the_norm_remain():
    y, _, _, residual, weight = inputs(1, 4, 64, 2, 16)
    norm = nn.RMSNorm(64, eps=EPS)
    norm.weight = weight
    stream, normed = NoConv().finish(y, mx.zeros(()), residual, norm)
    assert mx.array_equal(stream, residual + y) and mx.array_equal(normed, norm(residual + y))


def test_the_module_hands_over_its_own_kernel_and_the_next_norm():
    y, base, delta, residual, weight = inputs(1, 4, 64, 2, 16)
    conv, norm = DynamicConv(64, 2, 16), nn.RMSNorm(64, eps=EPS)
    conv.base_kernel, norm.weight = base, weight
    want = conv_add_norm(y, base, delta, residual, weight, EPS)
    for _ in range(2):
        got = conv.finish(y, delta, residual, norm)
        assert all(mx.array_equal(mine, theirs) for mine, theirs in zip(got, want, strict=True))
        conv.freeze_base()

"""Heads made ready for attention, in plain MLX, against the float64 reference."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.norm_rope import norm_rope

from .test_norm_rope_metal import EPS, SHAPES, THETA, by_reference, inputs, wide


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", [0, 5000])
def test_equals_the_reference(shape, first):
    arrays = inputs(3, 7, shape, mx.float32, first)
    got = norm_rope(*arrays[:3], theta=THETA, eps=EPS)
    assert got.shape == (3, shape[1], 7, shape[2]) and got.dtype == mx.float32
    np.testing.assert_allclose(wide(got), by_reference(arrays), rtol=0, atol=2e-5 + first * 6e-7)


def test_keeps_the_dtype_of_its_rows():
    arrays = inputs(1, 4, SHAPES[3], mx.bfloat16)
    assert norm_rope(*arrays[:3], theta=THETA, eps=EPS).dtype == mx.bfloat16

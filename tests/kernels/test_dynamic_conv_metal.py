"""metal/dynamic_conv.metal against the scalar loops and its twin."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels import dynamic_conv
from dflash2_mlx.kernels.call import KernelCall
from dflash2_mlx.kernels.dynamic_conv import dynamic_conv_call
from tests.reference import conv as reference
from tests.runs import thinned

# (channels, taps, channels per group): odd sizes apart from each other, then the shape of a published drafter.
SHAPES = [(12, 2, 3), (20, 3, 5), (6, 4, 1), (10, 1, 10), (8, 5, 4), (64, 2, 16), (5120, 2, 16)]
DTYPES = [mx.float32, mx.bfloat16]


def inputs(batch: int, rows: int, shape: tuple[int, int, int], dtype: mx.Dtype, seed: int = 0) -> list[mx.array]:
    channels, taps, group = shape
    rng = np.random.default_rng(seed)
    sizes = [(batch, rows, channels), (2, taps, channels), (batch, rows, 2, taps, channels // group)]
    return [mx.array(rng.normal(size=size).astype(np.float32)).astype(dtype) for size in sizes]


def call_for(x: mx.array, base: mx.array, delta: mx.array, side: int) -> KernelCall:
    return dynamic_conv_call(x.shape, x.dtype, base.shape[1], x.shape[-1] // delta.shape[-1], side)


def twin(x: mx.array, base: mx.array, delta: mx.array, side: int) -> mx.array:
    return dynamic_conv.dynamic_conv(x, base, delta, side)


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32), dtype=np.float64)


def by_loops(x: mx.array, base: mx.array, delta: mx.array, side: int) -> np.ndarray:
    group = x.shape[-1] // delta.shape[-1]
    rows = zip(wide(x), wide(delta)[:, :, side], strict=True)
    return np.stack([reference.convolve(values, wide(base)[side], change, group) for values, change in rows])


@pytest.mark.parametrize(("shape", "dtype", "side"), thinned(SHAPES[:-1], DTYPES, [0, 1]))
def test_equals_the_scalar_loops(on_metal, shape, dtype, side):
    for batch, rows in ((1, 1), (3, 5), (2, 16)):
        arrays = inputs(batch, rows, shape, dtype, seed=rows)
        (got,) = on_metal(call_for(*arrays, side), arrays, seed=rows)
        assert got.dtype == dtype and got.shape == arrays[0].shape
        want = by_loops(*arrays, side)
        if dtype == mx.bfloat16:  # summed in float32 and rounded once
            want = wide(mx.array(want.astype(np.float32)).astype(dtype))
        np.testing.assert_allclose(wide(got), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", range(1, 17))
def test_equals_the_twin_for_every_number_of_rows(on_metal, rows, dtype):
    arrays = inputs(2, rows, SHAPES[-1], dtype, seed=rows)
    for side in (0, 1):
        (got,) = on_metal(call_for(*arrays, side), arrays)
        np.testing.assert_array_equal(wide(got), wide(twin(*arrays, side)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_when_products_are_fused(on_metal, dtype):
    arrays = inputs(2, 8, SHAPES[-2], dtype)
    (got,) = on_metal(call_for(*arrays, 1), arrays, fused=True)
    # float32 keeps what was not rounded; bfloat16 may fall to the neighbour.
    tolerance = 2e-6 if dtype == mx.float32 else 2**-7
    np.testing.assert_allclose(wide(got), by_loops(*arrays, 1), rtol=tolerance, atol=tolerance)


def test_coefficients_of_another_dtype(on_metal):
    x, base, delta = inputs(1, 6, SHAPES[0], mx.float32)
    arrays = [x.astype(mx.bfloat16), base, delta.astype(mx.float16)]
    (got,) = on_metal(call_for(*arrays, 0), arrays)
    np.testing.assert_array_equal(wide(got), wide(twin(*arrays, 0)))


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_rule_of_memory_is_broken(on_metal, sanitizer):
    for shape in (SHAPES[0], SHAPES[-2]):
        arrays = inputs(2, 5, shape, mx.bfloat16)
        (got,) = on_metal(call_for(*arrays, 1), arrays, sanitizer=sanitizer)
        np.testing.assert_array_equal(wide(got), wide(twin(*arrays, 1)))


@pytest.mark.parametrize("rows", [1, 4])
def test_address_spaces(on_metal, rows):
    # One row of 6 channels: every input is small enough for MLX to put it into `constant`.
    for shape in ((6, 1, 6), SHAPES[-1]):
        arrays = inputs(1, rows, shape, mx.bfloat16)
        on_metal.check_address_spaces(call_for(*arrays, 0), arrays)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_threads(on_metal, seed):
    for dtype in (*DTYPES, mx.float16):
        arrays = inputs(3, 7, SHAPES[-1], dtype, seed)
        (got,) = on_metal(call_for(*arrays, 1), arrays, seed=seed)
        np.testing.assert_array_equal(wide(got), wide(twin(*arrays, 1)))

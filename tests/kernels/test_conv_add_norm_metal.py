"""metal/conv_add_norm.metal against the float64 reference and the three operations it replaces."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.call import KernelCall
from dflash2_mlx.kernels.conv_add_norm import conv_add_norm, conv_add_norm_call
from tests.reference import conv as reference

# (channels, taps, channels per group): fewer channels than threads, a last turn that is not full, and whole turns.
SHAPES = [(12, 2, 3), (20, 3, 5), (70, 4, 7), (300, 2, 10), (512, 2, 16), (5120, 2, 16)]
DTYPES = [mx.float32, mx.bfloat16]
EPS = 1e-6


def inputs(batch: int, rows: int, shape: tuple[int, int, int], dtype: mx.Dtype, seed: int = 0) -> list[mx.array]:
    """y, residual, base kernel, delta, weight, eps."""
    channels, taps, group = shape
    rng = np.random.default_rng(seed)
    wide = (batch, rows, channels)
    sizes = [wide, wide, (2, taps, channels), (batch, rows, 2, taps, channels // group), (channels,)]
    arrays = [mx.array(rng.normal(size=size).astype(np.float32)).astype(dtype) for size in sizes]
    return [*arrays, mx.array(EPS, dtype=mx.float32)]


def call_for(arrays: list[mx.array]) -> KernelCall:
    y, _, base, delta, *_ = arrays
    return conv_add_norm_call(y.shape, y.dtype, base.shape[1], y.shape[-1] // delta.shape[-1])


def twin(arrays: list[mx.array]) -> tuple[mx.array, mx.array]:
    y, residual, base, delta, weight, _ = arrays
    return conv_add_norm(y, base, delta, residual, weight, EPS)


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32), dtype=np.float64)


def check_against_twin(got: list[mx.array], arrays: list[mx.array]) -> None:
    """The stream is the twin's to the bit; the norm adds squares in another order."""
    stream, normed = twin(arrays)
    np.testing.assert_array_equal(wide(got[0]), wide(stream))
    tolerance = 2e-6 if got[1].dtype == mx.float32 else 2**-6  # two roundings, each to a neighbour at most
    np.testing.assert_allclose(wide(got[1]), wide(normed), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference(on_metal, shape):
    for batch, rows in ((1, 1), (2, 5), (1, 16)) if shape != SHAPES[-1] else ((2, 3),):
        arrays = inputs(batch, rows, shape, mx.float32, seed=rows)
        got = on_metal(call_for(arrays), arrays, seed=rows)
        y, residual, base, delta, weight, _ = map(wide, arrays)
        for row in range(batch):
            want = reference.conv_add_norm(y[row], residual[row], delta[row, :, 1], base, weight, EPS, shape[2])
            for ours, theirs in zip(got, want, strict=True):
                np.testing.assert_allclose(wide(ours)[row], theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rounds_where_its_twin_does(on_metal, shape, dtype):
    for batch, rows in ((1, 8), (3, 2)):
        arrays = inputs(batch, rows, shape, dtype)
        got = on_metal(call_for(arrays), arrays)
        assert [array.dtype for array in got] == [dtype, dtype]
        check_against_twin(got, arrays)


@pytest.mark.parametrize("rows", range(1, 17))
def test_every_number_of_rows(on_metal, rows):
    arrays = inputs(2, rows, SHAPES[-2], mx.bfloat16, seed=rows)
    check_against_twin(on_metal(call_for(arrays), arrays, seed=rows), arrays)


def test_bfloat16_is_mostly_the_twin_to_the_bit(on_metal):
    # Not within a tolerance that would hide a rounding too many: nearly every value is the very same.
    arrays = inputs(2, 8, SHAPES[-1], mx.bfloat16)
    _, normed = on_metal(call_for(arrays), arrays)
    assert np.mean(wide(normed) == wide(twin(arrays)[1])) > 0.999


def test_the_norm_of_a_row_of_zeros_and_the_size_of_eps(on_metal):
    arrays = [mx.zeros_like(array) for array in inputs(1, 2, SHAPES[0], mx.float32)[:4]]
    arrays += [mx.ones((12,)), mx.array(0.25)]
    _, normed = on_metal(call_for(arrays), arrays)
    np.testing.assert_array_equal(normed, np.zeros((1, 2, 12)))
    arrays[1] = mx.full((1, 2, 12), 0.5)
    _, normed = on_metal(call_for(arrays), arrays)
    np.testing.assert_allclose(normed, np.full((1, 2, 12), 0.5 / np.sqrt(0.5)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_when_products_are_fused(on_metal, dtype):
    arrays = inputs(2, 8, SHAPES[-2], dtype)
    tolerance = 4e-6 if dtype == mx.float32 else 2**-6
    for ours, theirs in zip(on_metal(call_for(arrays), arrays, fused=True), twin(arrays), strict=True):
        np.testing.assert_allclose(wide(ours), wide(theirs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]])
def test_no_rule_of_memory_is_broken(on_metal, sanitizer, shape):
    arrays = inputs(2, 3, shape, mx.bfloat16)
    check_against_twin(on_metal(call_for(arrays), arrays, sanitizer=sanitizer), arrays)


def test_address_spaces(on_metal):
    for rows, shape in ((1, (6, 1, 6)), (4, SHAPES[-1])):
        arrays = inputs(1, rows, shape, mx.bfloat16)
        on_metal.check_address_spaces(call_for(arrays), arrays)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_threads(on_metal, seed):
    for dtype in (*DTYPES, mx.float16):
        arrays = inputs(3, 7, SHAPES[-1], dtype, seed)
        got = on_metal(call_for(arrays), arrays, seed=seed)
        if dtype != mx.float16:
            check_against_twin(got, arrays)
        else:
            np.testing.assert_array_equal(wide(got[0]), wide(twin(arrays)[0]))
            np.testing.assert_allclose(wide(got[1]), wide(twin(arrays)[1]), rtol=2**-9, atol=1e-6)

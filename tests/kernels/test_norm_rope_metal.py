"""metal/norm_rope.metal, and its twin, against the float64 reference."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.call import KernelCall
from dflash2_mlx.kernels.norm_rope import norm_rope_call, norm_rope_twin
from tests.reference.drafter import rms_norm, rope

# (heads of a row, heads used, head size): fewer pairs than lanes, a last turn that is not full, whole turns.
SHAPES = [(3, 2, 6), (5, 5, 20), (4, 3, 80), (6, 4, 64), (3, 2, 128), (2, 1, 256)]
EPS, THETA = 1e-5, 1e6


def inputs(batch: int, rows: int, shape: tuple[int, int, int], dtype: mx.Dtype, first: int = 0) -> list[mx.array]:
    """rows, norms, start, settings."""
    available, heads, dim = shape
    rng = np.random.default_rng(rows)
    arrays = [
        mx.array(rng.normal(size=size).astype(np.float32)).astype(dtype)
        for size in ((batch, rows, available, dim), (heads, dim))
    ]
    start = mx.array([first + 11 * sequence for sequence in range(batch)], dtype=mx.int32)
    return [*arrays, start, mx.array([EPS, math.log2(THETA)], dtype=mx.float32)]


def call_for(arrays: list[mx.array]) -> KernelCall:
    return norm_rope_call(arrays[0].shape, arrays[0].dtype, arrays[1].shape[0])


def twin(arrays: list[mx.array]) -> mx.array:
    return norm_rope_twin(*arrays[:3], theta=THETA, eps=EPS)


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32), dtype=np.float64)


def by_reference(arrays: list[mx.array]) -> np.ndarray:
    rows, norms, start = wide(arrays[0]), wide(arrays[1]), arrays[2].tolist()
    found = []
    for sequence, first in zip(rows, start, strict=True):
        normed = rms_norm(sequence[:, : len(norms)], norms, EPS)
        found.append(rope(normed, range(first, first + len(sequence)), THETA).swapaxes(0, 1))
    return np.stack(found)


@pytest.mark.parametrize("first", [0, 5000])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference(on_metal, shape, first):
    for batch, rows in ((1, 1), (2, 5), (1, 16)):
        arrays = inputs(batch, rows, shape, mx.float32, first)
        (got,) = on_metal(call_for(arrays), arrays, seed=rows)
        assert got.shape == (batch, shape[1], rows, shape[2])
        # A float32 angle near position p is off by about p / 2**24.
        for ours in (got, twin(arrays)):
            np.testing.assert_allclose(wide(ours), by_reference(arrays), rtol=0, atol=2e-5 + first * 6e-7)


@pytest.mark.parametrize("rows", range(1, 17))
def test_bfloat16_is_rounded_and_no_worse_than_its_twin(on_metal, rows):
    # MLX's CPU back-end turns in bfloat16 itself, its Metal back-end and this kernel in float32.
    arrays = inputs(2, rows, SHAPES[3], mx.bfloat16, 300)
    (got,) = on_metal(call_for(arrays), arrays)
    want = by_reference(arrays)
    assert got.dtype == mx.bfloat16
    np.testing.assert_allclose(wide(got), want, rtol=2**-6, atol=2**-6)
    assert np.abs(wide(got) - want).mean() <= 1.05 * np.abs(wide(twin(arrays)) - want).mean()


def test_heads_after_the_last_used_one_do_not_matter(on_metal):
    arrays = inputs(2, 3, SHAPES[0], mx.float32)
    changed = [mx.concatenate([arrays[0][:, :, :2], mx.full((2, 3, 1, 6), 1e9)], axis=2), *arrays[1:]]
    np.testing.assert_array_equal(*(wide(on_metal(call_for(a), a)[0]) for a in (arrays, changed)))
    np.testing.assert_array_equal(*(wide(twin(a)) for a in (arrays, changed)))


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_rule_of_memory_is_broken(on_metal, sanitizer):
    for shape in (SHAPES[0], SHAPES[2]):
        arrays = inputs(2, 3, shape, mx.float32)
        (got,) = on_metal(call_for(arrays), arrays, sanitizer=sanitizer)
        np.testing.assert_allclose(wide(got), wide(twin(arrays)), rtol=0, atol=2e-5)


@pytest.mark.parametrize("shape", [(1, 1, 2), SHAPES[4]])
def test_address_spaces(on_metal, shape):
    # One head of two numbers: every input is small enough for MLX to put it into `constant`.
    arrays = inputs(1, 1, shape, mx.bfloat16)
    on_metal.check_address_spaces(call_for(arrays), arrays)


@pytest.mark.parametrize(("heads", "dim"), [(0, 8), (4, 8), (1, 7)])
def test_impossible_shapes_are_refused(heads, dim):
    with pytest.raises(ValueError, match="norm_rope: got"):
        norm_rope_call((1, 2, 3, dim), mx.float32, heads)

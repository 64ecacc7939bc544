"""`dynamic_conv` against the scalar loops, and the specification's own numbers (3.7; T1, T5, CK-7b)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx.drafters.dflash2.conv import DynamicConv
from dflash2_mlx.kernels import dynamic_conv as kernel
from tests.reference import conv as reference

# (batch, rows, channels, taps, channels per group)
SHAPES = [
    (1, 1, 4, 2, 2),
    (2, 5, 12, 2, 3),
    (3, 8, 20, 3, 5),
    (1, 2, 6, 4, 1),
    (2, 16, 64, 2, 16),
    (1, 7, 10, 1, 10),
    (1, 3, 8, 5, 4),
]


def dynamic_conv(x: mx.array, base: mx.array, delta: mx.array) -> mx.array:
    """One side: base [W, D], delta [B, L, W, G]. The other side's numbers must not matter."""
    both = [mx.stack([mx.full_like(a, 1e6), a], axis=axis) for a, axis in ((base, 0), (delta, 2))]
    flipped = [mx.take(array, mx.array([1, 0]), axis=axis) for array, axis in zip(both, (0, 2), strict=True)]
    groups = delta.shape[-1]
    first, second = (
        kernel.dynamic_conv(x, base, delta, side, split=split)
        for side, (base, delta) in enumerate([flipped, both])
        for split in (None, kernel.split_base(base, groups))[side:][:1]
    )
    np.testing.assert_array_equal(first.astype(mx.float32), second.astype(mx.float32))
    return first


def finish(conv: DynamicConv, y: mx.array, after: mx.array) -> mx.array:
    """The convolution alone of what follows a sublayer."""
    return conv.finish(y, after, mx.zeros_like(y), nn.RMSNorm(y.shape[-1]))[0]


def random(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def inputs(batch: int, rows: int, channels: int, taps: int, group: int) -> tuple[mx.array, mx.array, mx.array]:
    return (
        random(batch, rows, channels),
        random(taps, channels, seed=1),
        random(batch, rows, taps, channels // group, seed=2),
    )


def by_loops(x: mx.array, base: mx.array, delta: mx.array, group: int) -> np.ndarray:
    x, base, delta = (np.array(a.astype(mx.float32), dtype=np.float64) for a in (x, base, delta))
    return np.stack([reference.convolve(*pair, group) for pair in zip(x, [base] * len(x), delta, strict=True)])


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_scalar_loops(shape):
    x, base, delta = inputs(*shape)
    got = dynamic_conv(x, base, delta)
    assert got.dtype == mx.float32 and got.shape == x.shape
    np.testing.assert_allclose(got, by_loops(x, base, delta, shape[-1]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_is_summed_in_float32_and_rounded_once(shape):
    x, base, delta = (array.astype(mx.bfloat16) for array in inputs(*shape))
    got = dynamic_conv(x, base, delta)
    assert got.dtype == mx.bfloat16
    once = mx.array(by_loops(x, base, delta, shape[-1]).astype(np.float32)).astype(mx.bfloat16)
    np.testing.assert_array_equal(got.astype(mx.float32), once.astype(mx.float32))


@pytest.mark.parametrize("taps", [1, 2, 3])
def test_a_row_reads_itself_and_the_taps_before_it(taps):
    x, base, delta = inputs(1, 6, 8, taps, 4)
    whole = np.array(dynamic_conv(x, base, delta))
    for row in range(6):
        changed = mx.where(mx.arange(6)[None, :, None] == row, 50.0, x)
        touched = np.abs(np.array(dynamic_conv(changed, base, delta)) - whole).max(axis=(0, 2)) > 0
        np.testing.assert_array_equal(touched, [row <= i < row + taps for i in range(6)])


def test_the_first_row_has_no_left_neighbour():
    x, base, delta = inputs(2, 4, 8, 2, 4)
    alone = dynamic_conv(x[:, :1], base, delta[:, :1])
    np.testing.assert_array_equal(dynamic_conv(x, base, delta)[:, :1], alone)
    np.testing.assert_allclose(alone[:, 0], (base[0] + mx.repeat(delta[:, 0, 0], 4, axis=-1)) * x[:, 0], rtol=1e-6)


def test_sequences_of_a_batch_do_not_touch():
    x, base, delta = inputs(3, 5, 12, 2, 3)
    for row in range(3):
        one = dynamic_conv(x[row : row + 1], base, delta[row : row + 1])
        np.testing.assert_array_equal(dynamic_conv(x, base, delta)[row], one[0])


# The module around it: T1 and T5.

BASE = [[[1, 1, 1, 1], [0.5, 0, -0.5, 1]], [[1, 2, 1, 1], [0, 1, 0, -1]]]
PROJECTION = np.eye(4)[[0, 1, 2, 3, 3, 0, 1, 2]]
X = mx.array([[[1, 2, 0, -1], [0, 1, 1, 2], [2, 0, -1, 1]]], dtype=mx.float32)
Y = mx.array([[[1, 0, 1, 0], [2, 1, 0, -1], [0, 1, 1, 1]]], dtype=mx.float32)


def module(base: object, projection: object, taps: int = 2, group: int = 2) -> DynamicConv:
    conv = DynamicConv(mx.array(base).shape[-1], taps, group)
    conv.base_kernel = mx.array(base, dtype=mx.float32)
    conv.kernel_projection.weight = mx.array(projection, dtype=mx.float32)
    return conv


def test_t1():
    conv = module(BASE, PROJECTION)
    prepared, after = conv.prepare(X)
    np.testing.assert_array_equal(prepared[0], [[2, 4, 0, -3], [1.5, 3, 2, 1], [6, -1, -0.5, 5]])
    np.testing.assert_array_equal(finish(conv, Y, after)[0], [[0, 0, 2, 0], [7, 4, 1, -1], [0, 4, 3, 5]])


def test_t5_identity():
    identity = np.zeros((2, 2, 4))
    identity[:, 0] = 1
    conv = module(identity, np.zeros((8, 4)))
    prepared, after = conv.prepare(X)
    np.testing.assert_array_equal(prepared, X)
    np.testing.assert_array_equal(finish(conv, Y, after), Y)


@pytest.mark.parametrize(("taps", "group"), [(2, 2), (3, 4), (2, 12), (1, 1)])
def test_both_sides_against_the_scalar_loops(taps, group):
    channels = 12
    base, projection = random(2, taps, channels), random(2 * taps * (channels // group), channels, seed=5) / 3
    conv = module(base, projection, taps, group)
    x, y = random(2, 6, channels, seed=6), random(2, 6, channels, seed=7)
    prepared, after = conv.prepare(x)
    finished = finish(conv, y, after)
    for row in range(2):
        want, coefficients = reference.prepare(np.array(x[row]), np.array(base), np.array(projection), group)
        np.testing.assert_allclose(prepared[row], want, rtol=1e-5, atol=2e-6)
        want = reference.finish(np.array(y[row]), coefficients, np.array(base), group)
        np.testing.assert_allclose(finished[row], want, rtol=1e-5, atol=2e-6)

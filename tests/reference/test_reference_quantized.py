"""The float64 reference of quantized products against numbers worked out by hand, and against MLX's `dequantize`."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from .quantized import dequantize, product, unpack


def test_the_first_number_is_in_the_lowest_bits():
    words = np.array([[0x76543210, 0xFEDCBA98]], dtype=np.uint32)
    np.testing.assert_array_equal(unpack(words, 4), [range(16)])
    np.testing.assert_array_equal(unpack(words, 8), [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]])


def test_a_group_has_its_own_scale_and_bias():
    words = np.full((1, 8), 0x11111111, dtype=np.uint32)
    matrix = dequantize(words, np.array([[2.0, 3.0]]), np.array([[0.5, -1.0]]), 32, 4)
    np.testing.assert_array_equal(matrix, [[2.5] * 32 + [2.0] * 32])


def test_a_product_by_hand():
    y = product(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([0.5, -0.5]))
    np.testing.assert_array_equal(y, [[11.5, 16.5]])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_equals_mlx(bits, group_size):
    matrix = mx.random.normal((5, 256), key=mx.random.key(bits))
    packed = mx.quantize(matrix, group_size=group_size, bits=bits)
    want = mx.dequantize(*packed, group_size=group_size, bits=bits)
    got = dequantize(*(np.array(array) for array in packed), group_size, bits)
    np.testing.assert_allclose(got, np.array(want), rtol=0, atol=1e-6)

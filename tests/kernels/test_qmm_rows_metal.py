"""metal/qmm_rows.metal and metal/qmm_rows_mma.metal, and their twin, against the float64 reference."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels import qmm_calls
from dflash2_mlx.kernels.call import KernelCall
from dflash2_mlx.kernels.qmm_forms import MATRIX, TENSOR, TILE
from dflash2_mlx.kernels.qmm_rows import Packed, by_rows, call_for
from tests.reference.quantized import dequantize, product

FORMS = (TILE, MATRIX)
HALVES = (mx.float16, mx.bfloat16)
# (K, N, group size, bits): every group with both bit widths; K that fills no turn of the lanes, one, and one and a
# part, and K that ends inside a matrix block; odd N, N below one SIMD-group's outputs, one more than several groups'.
STORAGES = [
    (32, 1, 32, 8),
    (288, 9, 32, 4),
    (320, 3, 64, 4),
    (448, 7, 64, 8),
    (256, 17, 128, 4),
    (384, 5, 128, 8),
]
BITS_PER_TYPE = {mx.float32: 2e-6, mx.float16: 2**-10, mx.bfloat16: 2**-7}


@cache
def matrix(inputs: int, outputs: int, group_size: int, bits: int, offset: bool = False) -> Packed:
    rng = np.random.default_rng(inputs + bits)
    dense = mx.array(rng.normal(size=(outputs, inputs)).astype(np.float32) / inputs**0.5)
    added = mx.array(rng.normal(size=outputs).astype(np.float32)) if offset else None
    return Packed(*mx.quantize(dense, group_size=group_size, bits=bits), group_size, bits, offset=added)


def typed(packed: Packed, dtype: mx.Dtype) -> Packed:
    scales, biases, offset = (
        a if a is None else a.astype(dtype) for a in (packed.scales, packed.biases, packed.offset)
    )
    return Packed(packed.weight, scales, biases, packed.group_size, packed.bits, packed.mode, offset)


def rows(count: int, inputs: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(7).normal(size=(count, inputs)).astype(np.float32)).astype(dtype)


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32), dtype=np.float64)


def by_reference(x: mx.array, packed: Packed) -> np.ndarray:
    offset = None if packed.offset is None else wide(packed.offset)
    scales, biases = wide(packed.scales), wide(packed.biases)
    return product(wide(x), dequantize(np.array(packed.weight), scales, biases, packed.group_size, packed.bits), offset)


def call_of(form: str, x: mx.array, packed: Packed) -> KernelCall:
    call = call_for(form, packed.product(x), packed.offset is not None)
    assert call is not None
    return call


def close(got: mx.array, want: np.ndarray, dtype: mx.Dtype) -> None:
    assert got.dtype == dtype and got.shape == want.shape
    unit = BITS_PER_TYPE[dtype]
    np.testing.assert_allclose(wide(got), want, rtol=unit, atol=max(unit / 4, 2e-6))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("storage", STORAGES)
def test_equals_the_reference(on_metal, form, storage):
    # Two tiles of three rows, the last of them not full; then one matrix unit of five rows.
    x, packed = rows(11 if form == TILE else 5, storage[0]), matrix(*storage)
    want = by_reference(x, packed)
    for seed in (1, 2):
        (got,) = on_metal(call_of(form, x, packed), packed.inputs(x), seed=seed)
        close(got, want, mx.float32)
    close(by_rows(x, packed), want, mx.float32)


@pytest.mark.parametrize("form", FORMS)
def test_products_that_are_fused_with_sums(on_metal, form):
    x, packed = rows(11, 288), matrix(*STORAGES[1])
    (got,) = on_metal(call_of(form, x, packed), packed.inputs(x), fused=True)
    close(got, by_reference(x, packed), mx.float32)


@pytest.mark.parametrize(("form", "dtype"), [(TILE, mx.bfloat16), (MATRIX, mx.float16)])
def test_half_precision_is_rounded_once(on_metal, form, dtype):
    # Not against MLX's own product: on the CPU, its bfloat16 sums are coarse.
    x, packed = rows(5, 320, dtype), typed(matrix(320, 3, 64, 4, offset=True), dtype)
    (got,) = on_metal(call_of(form, x, packed), packed.inputs(x))
    close(got, by_reference(x, packed), dtype)


def test_activations_and_scales_may_differ_in_type(on_metal):
    x, packed = rows(2, 320), typed(matrix(320, 3, 64, 4), mx.bfloat16)
    (got,) = on_metal(call_of(TILE, x, packed), packed.inputs(x))
    close(got, by_reference(x, packed), mx.float32)


@pytest.mark.parametrize("form", FORMS)
def test_the_layers_own_bias_is_added(on_metal, form):
    x, packed = rows(3, 288), matrix(*STORAGES[1], offset=True)
    (got,) = on_metal(call_of(form, x, packed), packed.inputs(x))
    close(got, by_reference(x, packed), mx.float32)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_row_has_the_same_bits_alone_and_among_others(on_metal, dtype):
    # K so that a lane adds many products, and the last turn is not full.
    packed = typed(matrix(1088, 9, 64, 4), dtype)
    x = rows(16, 1088, dtype)
    all_rows = None
    for count in range(16, 0, -1) if dtype == mx.float32 else (16, 5, 3, 1):
        (got,) = on_metal(call_of(TILE, x[:count], packed), packed.inputs(x[:count]), seed=count)
        all_rows = got if all_rows is None else all_rows
        assert mx.array_equal(got, all_rows[:count]).item(), f"{count} rows"
    # Beyond the widths of decoding, and with products that may be fused with sums.
    more = mx.concatenate([x, x])
    (got,) = on_metal(call_of(TILE, more, packed), packed.inputs(more))
    assert mx.array_equal(got, mx.concatenate([all_rows, all_rows])).item()
    (got,) = on_metal(call_of(TILE, x[:3], packed), packed.inputs(x[:3]), fused=True)
    assert mx.array_equal(got, all_rows[:3]).item()


@pytest.mark.parametrize("count", [2, 8, 9, 16])
def test_both_tiles_of_the_matrix_units(on_metal, count):
    x, packed = rows(count, 320), matrix(320, 3, 64, 4)
    (got,) = on_metal(call_of(MATRIX, x, packed), packed.inputs(x))
    close(got, by_reference(x, packed), mx.float32)


def test_many_simdgroups_share_a_long_sum(on_metal):
    x, packed = rows(4, 2048), matrix(2048, 9, 64, 4)
    call = call_of(MATRIX, x, packed)
    assert call.threadgroup == (256, 1, 1)
    close(on_metal(call, packed.inputs(x))[0], by_reference(x, packed), mx.float32)


def by_rounded_weights(x: mx.array, packed: Packed) -> np.ndarray:
    """The reference with weights rounded to the type of x, as tensor units take them."""
    scales, biases = wide(packed.scales), wide(packed.biases)
    weights = dequantize(np.array(packed.weight), scales, biases, packed.group_size, packed.bits)
    rounded = wide(mx.array(weights.astype(np.float32)).astype(x.dtype))
    return product(wide(x), rounded, None if packed.offset is None else wide(packed.offset))


@pytest.mark.parametrize(
    ("storage", "dtype"),
    [
        (STORAGES[1], mx.float16),
        (STORAGES[3], mx.bfloat16),
        *(pytest.param(storage, dtype, marks=pytest.mark.slow) for storage in STORAGES for dtype in HALVES),
    ],
)
def test_tensor_operations_as_mlx_understands_them(on_metal, storage, dtype):
    """By a stand-in for Apple's header that imitates MLX's use of it: no proof for a device."""
    if mx.metal.is_available():
        pytest.skip("needs an M5; its self-test runs where DFLASH2_KERNELS=qmm_rows_tensor=auto asks for it")
    x, packed = rows(11, storage[0], dtype), typed(matrix(*storage, offset=True), dtype)
    (got,) = on_metal(call_of(TENSOR, x, packed), packed.inputs(x))
    close(got, by_rounded_weights(x, packed), dtype)
    np.testing.assert_allclose(wide(got), by_reference(x, packed), rtol=0, atol=4e-2)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_tensor_operations_break_no_rule_of_memory(on_metal, sanitizer):
    if mx.metal.is_available():
        pytest.skip("sanitizers watch the emulator only")
    x, packed = rows(11, 288, mx.float16), typed(matrix(*STORAGES[1], offset=True), mx.float16)
    (got,) = on_metal(call_of(TENSOR, x, packed), packed.inputs(x), sanitizer=sanitizer)
    close(got, by_rounded_weights(x, packed), mx.float16)


@pytest.mark.parametrize(("count", "dtype"), [(17, mx.bfloat16), (8, mx.float32)])
def test_what_tensor_operations_do_not_take(count, dtype):
    with pytest.raises(ValueError, match="qmm_rows_tensor: got"):
        qmm_calls.quantized_tensor((count, 64, 8), dtype, 64, 4, False)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("form", FORMS)
def test_no_rule_of_memory_is_broken(on_metal, form, sanitizer):
    x, packed = rows(11, 288), matrix(*STORAGES[1], offset=True)
    (got,) = on_metal(call_of(form, x, packed), packed.inputs(x), sanitizer=sanitizer)
    close(got, by_reference(x, packed), mx.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("storage", [STORAGES[0], (512, 12, 64, 4)])
def test_address_spaces(on_metal, form, storage):
    # One output of 32 columns: weight, scales and biases are small enough for MLX to put them into `constant`.
    x, packed = rows(2, storage[0], mx.bfloat16), typed(matrix(*storage), mx.bfloat16)
    on_metal.check_address_spaces(call_of(form, x, packed), packed.inputs(x))


@pytest.mark.parametrize(
    ("shape", "group_size", "bits"), [((2, 64, 8), 64, 3), ((2, 64, 8), 16, 4), ((2, 96, 8), 64, 4)]
)
def test_impossible_storages_are_refused(shape, group_size, bits):
    for make in (qmm_calls.quantized_tile, qmm_calls.quantized_matrix):
        with pytest.raises(ValueError, match="quantized rows: got"):
            make(shape, mx.float32, group_size, bits, False)


def test_the_matrix_units_take_sixteen_rows():
    with pytest.raises(ValueError, match="qmm_rows_mma: got 17 rows"):
        qmm_calls.quantized_matrix((17, 64, 8), mx.float32, 64, 4, False)


def test_what_is_compiled_depends_on_width_and_storage_only():
    def template(rows_: int, inputs: int, outputs: int) -> object:
        return qmm_calls.quantized_tile((rows_, inputs, outputs), mx.float32, 64, 4, False).template

    assert template(5, 5120, 17408) == template(5, 4096, 1024) == template(10, 64, 3) == template(9, 64, 3)
    assert len({template(rows_, 64, 8) for rows_ in range(1, 33)}) == 8

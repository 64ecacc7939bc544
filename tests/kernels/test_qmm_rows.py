"""The one function for products with quantized matrices: what it picks, and that the numbers stay right."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.device.chips import read_chip
from dflash2_mlx.errors import SettingError
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels import qmm_rows
from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.kernels.qmm_forms import MATRIX, PAD, STOCK, TENSOR, TILE
from dflash2_mlx.kernels.qmm_rows import Packed, by_rows, quantized_rows, random_product, run_form, stock_product

K, N = 128, 37


@pytest.fixture
def m4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qmm_rows, "this_chip", lambda: read_chip("applegpu_g16s"))


def packed(dtype: mx.Dtype = mx.float32, offset: bool = False, bits: int = 4) -> Packed:
    return random_product((1, K, N), 32, bits, dtype, mx.zeros((N,), dtype=dtype) if offset else None)


def rows(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal((*shape, K), key=mx.random.key(5)).astype(dtype)


def multiply(x: mx.array, matrix: Packed, **options: bool) -> mx.array:
    arrays = (matrix.weight, matrix.scales, matrix.biases, matrix.group_size, matrix.bits, matrix.mode)
    return quantized_rows(x, *arrays, offset=matrix.offset, **options)


def picked(monkeypatch: pytest.MonkeyPatch, x: mx.array, matrix: Packed, **options: bool) -> str:
    """The form in which a product is computed."""
    seen = []
    run = qmm_rows._run
    monkeypatch.setattr(qmm_rows, "_run", lambda form, *rest: (seen.append(form), run(form, *rest))[1])
    multiply(x, matrix, **options)
    monkeypatch.setattr(qmm_rows, "_run", run)
    return seen[0] if seen else "not asked"


@pytest.mark.parametrize("shape", [(1,), (5,), (1, 1), (1, 5), (2, 3), (17,)])
@pytest.mark.parametrize("offset", [False, True])
def test_the_numbers_and_the_shape(metal, m4, shape, offset):
    x, matrix = rows(*shape), packed(offset=offset)
    y = multiply(x, matrix)
    assert y.shape == (*shape, N) and y.dtype == mx.float32
    want = by_rows(x.reshape(-1, K), matrix).reshape(y.shape)
    np.testing.assert_allclose(np.array(y), np.array(want), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", [STOCK, TILE, MATRIX, PAD])
def test_every_form(metal, form):
    x, matrix = rows(1, 5), packed(offset=True)
    assert qmm_rows.usable(dispatcher(), form, x, matrix)
    np.testing.assert_allclose(
        np.array(run_form(form, x, matrix)), np.array(by_rows(x[0], matrix))[None], rtol=0, atol=1e-5
    )


def test_the_rule_decides_until_a_race_was_run(metal, m4, monkeypatch):
    x, matrix = rows(5), packed()
    assert picked(monkeypatch, x, matrix) == TILE
    assert picked(monkeypatch, rows(1), matrix) == "not asked"
    key = matrix.product(x).key
    for form in (MATRIX, STOCK, PAD, TILE):
        dispatcher().adopt({("qmm_rows", key): form})
        assert picked(monkeypatch, x, matrix) == form
    dispatcher().adopt({("qmm_rows", key): "a form of another version"})
    assert picked(monkeypatch, x, matrix) == TILE


def test_a_choice_is_remembered_for_its_own_product_alone(monkeypatch):
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (lambda **_: None, False))
    dispatcher.cache_clear()
    chosen = []
    monkeypatch.setattr(qmm_rows, "_choose", lambda *what: (chosen.append(what), (STOCK, None))[1])
    plain, half = packed(), packed(mx.bfloat16)
    eight = random_product((1, K // 2, N), 32, 8, mx.float32)  # its words are as many
    groups = random_product((1, K, N), 64, 4, mx.float32)
    other = random_product((1, K, N + 1), 32, 4, mx.float32)
    products = [
        *[(rows(count), plain, {}) for count in (2, 5)],
        (rows(5, dtype=mx.bfloat16), plain, {}),
        *[(rows(5), matrix, {}) for matrix in (half, groups, other)],
        (rows(5)[:, : K // 2], eight, {}),
        *[(rows(5), plain._replace(offset=mx.zeros((N,), dtype=dtype)), {}) for dtype in (mx.float32, mx.bfloat16)],
        (rows(5), plain, {"exact": True}),
    ]
    for expected in (len(products), len(products)):
        for x, matrix, options in products:
            multiply(x, matrix, **options)
        assert len(chosen) == expected


def test_a_kernel_that_is_off_leaves_the_others(msl_cache, metal, m4, monkeypatch):
    monkeypatch.setenv("DFLASH2_KERNELS", "auto,qmm_rows=mlx")
    dispatcher.cache_clear()
    x, matrix = rows(5), packed()
    assert picked(monkeypatch, x, matrix) == STOCK
    dispatcher().adopt({("qmm_rows", matrix.product(x).key): MATRIX})
    assert picked(monkeypatch, x, matrix) == MATRIX
    with pytest.raises(SettingError) as caught:
        multiply(x, matrix, exact=True)
    reason = "kernel qmm_rows does not run (switched off by DFLASH2_KERNELS)"
    assert str(caught.value) == f"exactness: got 'exact', expected 'fast': {reason}"


def test_tensor_operations_are_off_unless_they_are_asked_for(metal, m4, monkeypatch):
    x, matrix = rows(5, dtype=mx.bfloat16), packed(mx.bfloat16)
    dispatcher().adopt({("qmm_rows", matrix.product(x).key): TENSOR})
    assert picked(monkeypatch, x, matrix) == TILE
    monkeypatch.setenv("DFLASH2_KERNELS", "qmm_rows_tensor=auto")
    dispatcher.cache_clear()
    assert picked(monkeypatch, x, matrix) == TILE  # allowed, and not raced
    if not mx.metal.is_available():
        dispatcher().adopt({("qmm_rows", matrix.product(x).key): TENSOR})
        assert picked(monkeypatch, x, matrix) == TENSOR
        np.testing.assert_allclose(wide(multiply(x, matrix)), wide(by_rows(x, matrix)), rtol=0, atol=4e-2)
        assert not qmm_rows.usable(dispatcher(), TENSOR, rows(5), packed())  # float32


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


def test_exact_products_are_the_tile_at_every_number_of_rows(metal, monkeypatch):
    matrix = packed()
    x = rows(32)
    whole = multiply(x, matrix, exact=True)
    for count in (1, 2, 9):
        assert picked(monkeypatch, x[:count], matrix, exact=True) == TILE
        assert mx.array_equal(multiply(x[:count], matrix, exact=True), whole[:count]).item()
    assert picked(monkeypatch, rows(33), matrix, exact=True) == "not asked"


def test_without_metal_nothing_changes(monkeypatch):
    monkeypatch.setattr(qmm_rows, "this_chip", lambda: pytest.fail("no chip is asked for"))
    x, matrix = rows(5), packed(offset=True)
    assert mx.array_equal(multiply(x, matrix), stock_product(x, matrix)).item()
    with pytest.raises(SettingError, match="exactness: got 'exact', expected 'fast': MLX has no Metal here"):
        multiply(x, matrix, exact=True)


@pytest.mark.parametrize(("broken", "form"), [("qmm_rows", TILE), ("qmm_rows_mma", MATRIX)])
def test_wrong_numbers_switch_a_kernel_off(metal, m4, monkeypatch, broken, form):
    make, eager = _dispatch.kernel_factory()

    def factory(*, name, **options):
        kernel = make(name=name, **options)
        return (lambda **call: [y + 1 for y in kernel(**call)]) if name == f"dflash2_{broken}" else kernel

    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (factory, eager))
    dispatcher.cache_clear()
    x, matrix = rows(5), packed()
    dispatcher().adopt({("qmm_rows", matrix.product(x).key): form})
    np.testing.assert_allclose(np.array(multiply(x, matrix)), np.array(by_rows(x, matrix)), rtol=0, atol=1e-5)
    (note,) = dispatcher().notes()
    assert note.startswith(f"kernel {broken}: runs as its MLX twin ({broken}: off by")


def test_other_storages_are_for_the_stock_product(metal, m4, monkeypatch):
    dense = mx.random.normal((N, K))
    odd = Packed(*mx.quantize(dense, group_size=32, bits=3), 32, 3)
    assert picked(monkeypatch, rows(5), odd) == STOCK
    weight, scales = mx.quantize(dense, mode="mxfp4")
    other = Packed(weight, scales, None, 32, 4, "mxfp4")
    assert picked(monkeypatch, rows(5), other) == "not asked"
    assert mx.array_equal(multiply(rows(5), other), stock_product(rows(5), other)).item()
    with pytest.raises(SettingError, match="exactness"):
        multiply(rows(5), odd, exact=True)


@pytest.mark.parametrize("offset", [None, mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("scales", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_result_has_the_type_that_mlx_gives_it(dtype, scales, offset):
    matrix = random_product((1, K, N), 32, 4, scales, None if offset is None else mx.zeros((N,), dtype=offset))
    x = rows(2, dtype=dtype)
    assert matrix.product(x).dtype == stock_product(x, matrix).dtype


def test_inside_a_compiled_graph(metal, m4, monkeypatch):
    x, matrix = rows(5), packed()
    want = multiply(x, matrix)
    # The emulator computes at once, which a graph cannot hold; what is tested is that choosing works while tracing.
    calls = []
    monkeypatch.setattr(
        qmm_rows, "_run", lambda form, call, x, packed: (calls.append(form), stock_product(x, packed))[1]
    )
    dispatcher().adopt({})
    got = mx.compile(lambda x: multiply(x, matrix))(x)
    assert calls == [TILE]
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=0, atol=1e-5)

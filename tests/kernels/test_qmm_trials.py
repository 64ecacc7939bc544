"""The races of products with quantized matrices: which there are, and that what is raced is the product."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx.device.chips import read_chip
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels.dispatch import KernelMismatch, dispatcher
from dflash2_mlx.kernels.qmm_rows import Packed, random_product, stock_product
from dflash2_mlx.targets.registry import make_target
from dflash2_mlx.tuning import qmm_trials as qmm_contests
from dflash2_mlx.tuning import trial
from dflash2_mlx.tuning.qmm_trials import contests
from tests.runs import target_config
from tests.tiny import make_mlx_model, make_tiny_drafter


class Layers:
    """A model that has these matrices."""

    def __init__(self, *matrices: Packed) -> None:
        self.matrices = matrices

    def quantized_matrices(self) -> tuple[Packed, ...]:
        return self.matrices


def matrix(inputs: int = 128, outputs: int = 37, bits: int = 4, dtype: mx.Dtype = mx.float32) -> Packed:
    return random_product((1, inputs, outputs), 32, bits, dtype)


@pytest.fixture(autouse=True)
def small_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "ROTATED_BYTES", 9000)


def test_every_kind_of_product_has_a_race_for_every_number_of_rows(metal):
    target = Layers(matrix(), matrix(), matrix(bits=8), matrix(outputs=38), matrix(dtype=mx.bfloat16))
    races = contests(target, Layers(matrix(inputs=64), matrix()), [5, 1, 8, 5, 17])
    kinds = ("128x37 4bit g32 float32", "128x37 8bit g32 float32", "128x38 4bit g32 float32")
    kinds = (*kinds, "128x37 4bit g32 bfloat16", "64x37 4bit g32 float32")
    assert [race.key for race in races] == [f"{kind} rows {rows}" for kind in kinds for rows in (5, 8)]
    assert {(race.kernel, race.stock) for race in races} == {("qmm_rows", "stock")}
    assert all(list(race.chains) == ["stock", "tile", "matrix"] for race in races)


def test_tensor_operations_are_raced_where_they_are_asked_for(metal, monkeypatch):
    monkeypatch.setenv("DFLASH2_KERNELS", "qmm_rows_tensor=auto")
    dispatcher.cache_clear()
    half, single = contests(Layers(matrix(dtype=mx.bfloat16), matrix()), None, [5])
    assert "matmul2d" in half.chains and "matmul2d" not in single.chains


def test_no_race_where_there_is_nothing_to_race(msl_cache, metal, monkeypatch):
    assert contests(Layers(), None, [8]) == []
    monkeypatch.setenv("DFLASH2_KERNELS", "mlx")
    dispatcher.cache_clear()
    assert contests(Layers(matrix()), None, [8]) == []


def test_padding_is_raced_where_it_can_win(metal, monkeypatch):
    monkeypatch.setattr(qmm_contests, "this_chip", lambda: read_chip("applegpu_g17s", "M5", "26.2", "0.32.4"))
    wide, narrow = contests(Layers(matrix(inputs=32, outputs=8200), matrix(inputs=4128, outputs=1)), None, [8])
    assert list(wide.chains) == ["stock", "tile", "matrix", "pad"]
    assert "pad" not in narrow.chains


@pytest.fixture
def run(believing, monkeypatch) -> list[tuple[str, int]]:
    """Forms and weights of the products that were run, all by MLX's own; every kernel is believed in, and none runs."""
    made: list[tuple[str, int]] = []

    def run_form(form: str, x: mx.array, packed: Packed) -> mx.array:
        made.append((form, id(packed.weight)))
        return stock_product(x, packed)

    monkeypatch.setattr(qmm_contests, "run_form", run_form)
    return made


def test_a_chain_takes_the_matrices_in_turn_and_changes_no_number(run):
    (race,) = contests(Layers(matrix(), matrix()), None, [3])
    for form, chain in race.chains.items():
        run.clear()
        y = chain(7)
        assert {name for name, _ in run} == {form} and len(run) == 7
        assert len({which for _, which in run}) == 3, "the model's two matrices and a copy take turns"
        np.testing.assert_array_equal(np.array(y), np.array(chain(1)))


def test_copies_are_made_only_when_a_race_begins_and_as_few_as_do(run, monkeypatch):
    made = []
    copy = qmm_contests._copy
    monkeypatch.setattr(qmm_contests, "_copy", lambda packed: (made.append(packed), copy(packed))[1])
    one = matrix()
    each = one.weight.nbytes + one.scales.nbytes + one.biases.nbytes
    assert 2 * each < 9000 <= 3 * each
    first, second = contests(Layers(one), None, [3, 5])
    assert made == [] and first.bytes == second.bytes == 2 * each
    mx.eval(first.chains["stock"](4), second.chains["tile"](4))
    assert len(made) == 2, "races of one kind share them"
    assert contests(Layers(*(matrix() for _ in range(5))), None, [3])[0].bytes == 0


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_numbers_are_checked(metal, dtype):
    (race,) = contests(Layers(matrix(dtype=dtype)), None, [5])
    for form in ("stock", "tile", "matrix"):
        race.check(form)


def test_wrong_numbers_are_a_mismatch(metal, monkeypatch):
    make, eager = _dispatch.kernel_factory()
    monkeypatch.setattr(
        _dispatch,
        "kernel_factory",
        lambda: (lambda **made: lambda **call: [y + 1 for y in make(**made)(**call)], eager),
    )
    dispatcher.cache_clear()
    (race,) = contests(Layers(matrix()), None, [5])
    with pytest.raises(KernelMismatch, match=r"tile: does not run here \(kernel qmm_rows: .* off by"):
        race.check("tile")
    # A kernel that is right on the self-test's shape only.
    monkeypatch.setattr(qmm_contests, "usable", lambda *_: True)
    with pytest.raises(KernelMismatch, match="matrix product: off by"):
        race.check("matrix")


def test_the_products_of_a_pair(metal):
    config = target_config("qwen3")
    drafter = make_tiny_drafter(vocab_size=211)
    nn.quantize(drafter, group_size=32, bits=8, class_predicate=lambda path, _: path.endswith("_proj"))
    drafter.compile_for_inference()
    target = make_target(make_mlx_model(config, bits=4), config)
    keys = {race.key for race in contests(target, drafter, [5])}
    hidden, inner, vocab = 64, 96, 211
    wanted = [
        (hidden, 128, 4),
        (hidden, 64, 4),
        (128, hidden, 4),
        (hidden, inner, 4),
        (inner, hidden, 4),
        (hidden, vocab, 4),
    ]
    # The drafter's q, k and v are one product, the context rows' keys and values of all layers another.
    joined = 4 * 16 + 2 * 2 * 16
    wanted += [
        (hidden, joined, 8),
        (64, hidden, 8),
        (hidden, inner, 8),
        (inner, hidden, 8),
        (hidden, 2 * 2 * 2 * 16, 8),
    ]
    assert keys == {f"{k}x{n} {bits}bit g32 float32 rows 5" for k, n, bits in wanted}

"""Which form a product with a quantized matrix takes before anybody has raced: the model, and MLX's own rules."""

from __future__ import annotations

import mlx.core as mx
import pytest

from dflash2_mlx.device.chips import Chip, read_chip
from dflash2_mlx.kernels.qmm_forms import MATRIX, PAD, STOCK, TENSOR, TILE, Product, default_form, modelled_costs

M1_PRO, M3_MAX, M4_PRO = (read_chip(f"applegpu_{name}") for name in ("g13s", "g15s", "g16s"))
M2_ULTRA, M3_ULTRA = read_chip("applegpu_g14d"), read_chip("applegpu_g15d")
M5_MAX = read_chip("applegpu_g17s", "Apple M5 Max", "26.2", "0.32.4")
M5_OLD_SYSTEM = read_chip("applegpu_g17s", "Apple M5 Max", "26.1", "0.32.4")
WIDE, NARROW = (5120, 17408), (5120, 1024)


def product(rows: int, sides: tuple[int, int] = WIDE, bits: int = 4, group_size: int = 64) -> Product:
    return Product(rows, *sides, bits, group_size, mx.bfloat16)


def forms(chip: Chip, sides: tuple[int, int] = WIDE, bits: int = 4) -> str:
    """The first letters of the forms for 1 to 16 rows."""
    return "".join(default_form(chip, product(rows, sides, bits))[0] for rows in range(1, 17))


@pytest.mark.parametrize(
    ("chip", "sides", "expected"),
    [
        (M1_PRO, WIDE, "sttttttttttttt" + "mm"),
        (M3_MAX, WIDE, "sss" + "ttttttttttt" + "mm"),
        (M4_PRO, WIDE, "ss" + "tttttttttttt" + "mm"),
        (M2_ULTRA, WIDE, "sttttttttttttt" + "mm"),
        (M3_ULTRA, WIDE, "sss" + "ttttttttttt" + "mm"),
        # With tensor units, MLX's own tile is near what memory allows: 13 rows and more, and padding gets there.
        (M5_MAX, WIDE, "ssss" + "tttt" + "pppp" + "ssss"),
        (M5_MAX, NARROW, "ssss" + "tttttttttt" + "mm"),
        (M5_OLD_SYSTEM, WIDE, "ssss" + "tttttttttt" + "mm"),
    ],
)
def test_forms_by_rows(chip, sides, expected):
    assert forms(chip, sides) == expected


def test_m1_and_m2_never_leave_six_rows_to_the_stock_product():
    for chip in (M1_PRO, read_chip("applegpu_g14g"), M2_ULTRA):
        for sides in (WIDE, NARROW, (2048, 2048), (256, 64)):
            for bits in (4, 8):
                assert STOCK not in {default_form(chip, product(rows, sides, bits)) for rows in range(6, 17)}


@pytest.mark.parametrize("rows", [0, 1, 17, 40])
def test_one_row_and_many_are_for_the_stock_product(rows):
    assert {default_form(chip, product(rows)) for chip in (M1_PRO, M4_PRO, M5_MAX)} == {STOCK}


def test_an_unknown_machine_and_an_unknown_storage():
    assert default_form(read_chip(), product(8)) == STOCK
    assert default_form(M4_PRO, product(8, bits=3)) == STOCK
    assert default_form(M4_PRO, product(8, group_size=16)) == STOCK


# Published microseconds of one 5120 x 17408 product, and operations per microsecond of the chip.
PUBLISHED = [
    (M4_PRO, 4.04e6, {3: 224, 4: 283, 5: 363, 8: 571, 12: 863, 16: 939}),
    (M3_MAX, 7.16e6, {4: 165, 6: 263, 8: 323, 16: 509}),
]


@pytest.mark.parametrize(("chip", "per_us", "timings"), PUBLISHED)
def test_the_model_gives_published_timings_of_the_stock_product(chip, per_us, timings):
    for rows, microseconds in timings.items():
        modelled = modelled_costs(chip, product(rows))[STOCK] * 5120 * 17408 / per_us
        assert modelled == pytest.approx(microseconds, rel=0.12), rows


def test_the_matrix_units_against_a_published_kernel():
    for rows, microseconds in ((5, 316), (8, 316), (12, 533), (16, 533)):
        modelled = modelled_costs(M4_PRO, product(rows))[MATRIX] * 5120 * 17408 / 4.04e6
        assert modelled == pytest.approx(microseconds, rel=0.06)


def test_nothing_is_quicker_than_memory():
    for chip in (M1_PRO, M4_PRO, M5_MAX):
        for bits in (4, 8):
            one = modelled_costs(chip, product(1, bits=bits))[STOCK]
            for rows in range(1, 17):
                assert min(modelled_costs(chip, product(rows, bits=bits)).values()) >= one


def test_padding_is_offered_where_it_reaches_the_tensor_units():
    assert all((PAD in modelled_costs(M5_MAX, product(rows))) == (rows < 13) for rows in range(1, 17))
    assert PAD not in modelled_costs(M5_MAX, product(8, NARROW))
    assert PAD not in modelled_costs(M4_PRO, product(8))


def test_a_key_says_all_that_a_race_depends_on():
    assert product(8).key == "5120x17408 4bit g64 bfloat16 rows 8"
    assert len({product(8).key, product(7).key, product(8, NARROW).key, product(8, bits=8).key}) == 4
    assert TILE == "tile" and TENSOR == "matmul2d" and MATRIX == "matrix" and PAD == "pad" and STOCK == "stock"

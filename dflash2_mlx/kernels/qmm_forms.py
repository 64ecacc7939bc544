"""In which form a few rows are multiplied by a quantized matrix, before a race on the machine has decided.

Owns: what identifies such a product, the ways to do it, and the model of their costs. Pure functions; runs nothing.

The model counts operations per weight: unpacking, and one multiply-add for each row, against what one weight's bytes
take from memory in the same time. It reproduces published timings of MLX 0.32 within a tenth; it was not measured by
this project. MLX's own rules (`get_qmv_batch_limit` and what follows it) are those of 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ..device.chips import Chip
from .qmm_calls import BITS, GROUP_SIZES, MATRIX_ROWS, tile_rows

STOCK, TILE, MATRIX, PAD, TENSOR = "stock", "tile", "matrix", "pad", "matmul2d"
FORMS = (STOCK, TILE, MATRIX, PAD, TENSOR)  # the last one only ever by a race
MOST_ROWS = 16  # of a product that is worth a form of its own
PADDED_ROWS = 16  # with which MLX is sure to use its tensor-unit tile
AFFINE = "affine"

# Operations per weight: to unpack it; for each row in MLX's few-row kernel and in our vector tile; for a row that
# MLX passes alone. Then the rows of MLX's padded product, the share of peak its arithmetic reaches, and that of
# 8-row units.
UNPACKING, STOCK_ROW, TILE_ROW, LONE_ROW = 3, 2.5, 1.3, 5.5
PADDED_TILE, PADDED_SHARE, UNIT_SHARE = 32, 0.78, 0.75
STOCK_ROWS = 5  # most rows that MLX's few-row kernel decodes a weight for

_ULTRA = "d"
# Operations that a chip does per weight while 4 bits in groups of 64 come from memory: bandwidth against arithmetic.
_FLOOR = {13: 8.8, 14: 9.0, 15: 10.4, 16: 9.3, 17: 11.9}
_FLOOR_BYTES = 0.5625
_MARGIN = 1.1  # a form of our own has to be better by this, as long as nobody has measured
_ACCELERATED = 1.15  # of the floor: what tensor units are taken to need; nobody has published it
_WIDE_OUTPUTS = 8192  # above, MLX keeps one product whole, and the Neural Accelerators can take it


@dataclass(frozen=True)
class Product:
    """Rows [rows, inputs] times the transpose of a quantized matrix [outputs, inputs].

    Attributes:
        dtype: of the result.
    """

    rows: int
    inputs: int
    outputs: int
    bits: int
    group_size: int
    dtype: mx.Dtype

    @property
    def key(self) -> str:
        """The words a race's winner is kept under."""
        dtype = str(self.dtype).rpartition(".")[2]
        return f"{self.inputs}x{self.outputs} {self.bits}bit g{self.group_size} {dtype} rows {self.rows}"

    @property
    def suits_kernels(self) -> bool:
        """Whether our kernels know this storage."""
        return self.bits in BITS and self.group_size in GROUP_SIZES and self.inputs % self.group_size == 0


def default_form(chip: Chip, product: Product) -> str:
    """The form with the lowest modelled cost; MLX's own unless another is clearly better.

    On an unknown chip, and for a single row, MLX's own.
    """
    rows = product.rows
    if chip.generation is None or not 1 < rows <= MOST_ROWS or not product.suits_kernels:
        return STOCK
    costs = modelled_costs(chip, product)
    best = min(costs, key=lambda form: (costs[form], FORMS.index(form)))
    return best if costs[best] * _MARGIN < costs[STOCK] else STOCK


def modelled_costs(chip: Chip, product: Product) -> dict[str, float]:
    """Operations per weight of every form that is possible."""
    rows, floor = product.rows, _floor(chip, product)
    costs = {STOCK: _stock(chip, product), TILE: tile_operations(rows, floor)}
    if rows <= MATRIX_ROWS:
        costs[MATRIX] = unit_operations(rows, floor)
    if _padding_helps(chip, product):
        costs[PAD] = _ACCELERATED * floor
    return costs


def _stock(chip: Chip, product: Product) -> float:
    """What MLX's own product costs, by the kernel that it picks."""
    rows, floor, generation = product.rows, _floor(chip, product), chip.generation or 0
    if rows >= _vector_limit(chip, product):
        return _ACCELERATED * floor if _on_accelerators(chip, product) else PADDED_TILE / PADDED_SHARE
    if generation < 15:  # every row reads all weights for itself
        return rows * max(floor, LONE_ROW)
    return few_row_operations(rows, floor)


def few_row_operations(rows: int, floor: float) -> float:
    """Of MLX's few-row kernel, per weight: each tile of at most 5 rows reads and unpacks all weights for itself.

    Args:
        floor: operations that fit into the time in which a weight comes from memory; here and below.
    """
    tiles = -(-rows // STOCK_ROWS)
    return tiles * max(floor, UNPACKING + STOCK_ROW * -(-rows // tiles))


def tile_operations(rows: int, floor: float) -> float:
    """Of our vector tile: each tile of at most 8 rows unpacks all weights; beside each other they are read once."""
    tile = tile_rows(rows)
    return max(floor, -(-rows // tile) * (UNPACKING + TILE_ROW * tile))


def unit_operations(rows: int, floor: float) -> float:
    """Of our 8-row matrix units: weights are unpacked once for up to 16 rows."""
    return max(floor, UNPACKING + -(-rows // 8) * 8 / UNIT_SHARE)


def _vector_limit(chip: Chip, product: Product) -> int:
    """Rows from which MLX takes a 32-row tile."""
    generation, side = chip.generation or 0, max(product.inputs, product.outputs)
    if chip.suffix == _ULTRA:
        limits = (32, 18, 12)
    elif generation >= 17:
        limits = (33, 25, 13)
    elif generation >= 15:
        limits = (13, 15, 13)
    else:
        limits = (14, 10, 6)
    return limits[0 if side <= 2048 else 1 if side <= 4096 else 2]


def _on_accelerators(chip: Chip, product: Product) -> bool:
    return chip.neural_accelerators and product.outputs > _WIDE_OUTPUTS


def _padding_helps(chip: Chip, product: Product) -> bool:
    """Whether more rows would bring MLX to the Neural Accelerators."""
    limit = _vector_limit(chip, product)
    return _on_accelerators(chip, product) and product.rows < limit <= PADDED_ROWS


def _floor(chip: Chip, product: Product) -> float:
    """Operations while a weight comes from memory. Newer chips than we know are taken for the newest we do."""
    known = _FLOOR[min(max(chip.generation or 0, min(_FLOOR)), max(_FLOOR))]
    return known * (product.bits / 8 + 4 / product.group_size) / _FLOOR_BYTES

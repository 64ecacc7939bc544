"""How the kernels for a few rows times a quantized matrix are called; see `call.py`.

Differs from the other kernels: how many rows a SIMD-group holds is a template value, as its sums live in registers. So
Metal compiles one kernel for each width that is used, 8 at most, and none for a layer's size.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from .call import KernelCall

TILE, MATRIX, TENSOR = "qmm_rows", "qmm_rows_mma", "qmm_rows_tensor"  # the kernels' names
BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)
TILE_ROWS = 8  # most rows of one SIMD-group of qmm_rows
MATRIX_ROWS = 16  # most rows of qmm_rows_mma and qmm_rows_tensor
TENSOR_TYPES = (mx.float16, mx.bfloat16)
_MATRIX_HEADER = "#include <metal_simdgroup_matrix>\n"  # as MLX's own kernels do
_TENSOR_HEADER = "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
_OUTPUTS = 4  # of one SIMD-group of qmm_rows
_TILE_SIMDGROUPS = 2  # of a threadgroup, for each tile of rows
_MANY_BLOCKS = 32  # of 8 words: enough for 8 SIMD-groups to share the sums of one output
_INPUTS = ("x", "weight", "scales", "biases", "offset")


@cache
def tile_rows(rows: int) -> int:
    """Rows of one SIMD-group where there are `rows` in all: as few tiles as there can be, of even size."""
    return -(-rows // -(-rows // TILE_ROWS))


@cache
def quantized_tile(
    shape: tuple[int, int, int], dtype: mx.Dtype, group_size: int, bits: int, offset: bool, *, tile: int | None = None
) -> KernelCall:
    """Rows times a quantized matrix, by ordinary lanes.

    Shapes:
        x [M, K], weight [N, K * bits / 32] uint32, scales, biases [N, K / group_size], offset [N] (any array where
        `offset` is False) -> y [M, N]
    Args:
        shape: (M, K, N).
        dtype: of y.
        tile: rows of one SIMD-group, 1..8; None for `tile_rows(M)`.
    """
    rows, inputs, outputs = shape
    _check(inputs, group_size, bits)
    each = tile_rows(rows) if tile is None else tile
    tiles = -(-rows // each)
    # Tiles of the same outputs share a threadgroup as far as its 512 threads reach.
    beside = min(tiles, 512 // (32 * _TILE_SIMDGROUPS))
    return KernelCall(
        name=TILE,
        inputs=_INPUTS,
        outputs=("y",),
        template=(("T", dtype), ("ROWS", each), ("GROUP", group_size), ("BITS", bits), ("OFFSET", offset)),
        grid=(32 * -(-outputs // _OUTPUTS), tiles, 1),
        threadgroup=(32 * _TILE_SIMDGROUPS, beside, 1),
        output_shapes=((rows, outputs),),
        output_dtypes=(dtype,),
    )


@cache
def quantized_matrix(
    shape: tuple[int, int, int],
    dtype: mx.Dtype,
    group_size: int,
    bits: int,
    offset: bool,
    *,
    simdgroups: int | None = None,
) -> KernelCall:
    """Rows times a quantized matrix, on the 8x8 matrix units; M is at most 16.

    Shapes: as in `quantized_tile`
    Args:
        simdgroups: that share the sums over K; None for what suits K.
    """
    rows, inputs, _ = shape
    _check(inputs, group_size, bits)
    if rows > MATRIX_ROWS:
        raise ValueError(f"{MATRIX}: got {rows} rows, expected at most {MATRIX_ROWS}")
    blocks = inputs * bits // 256
    parts = (8 if blocks >= _MANY_BLOCKS else 2) if simdgroups is None else simdgroups
    tiles = -(-rows // 8)
    template = (
        ("T", dtype),
        ("TILES", tiles),
        ("GROUP", group_size),
        ("BITS", bits),
        ("OFFSET", offset),
        ("SIMDGROUPS", parts),
    )
    return _shared_sums(MATRIX, template, shape, dtype, parts=parts, each=8, header=_MATRIX_HEADER)


@cache
def quantized_tensor(
    shape: tuple[int, int, int],
    dtype: mx.Dtype,
    group_size: int,
    bits: int,
    offset: bool,
    *,
    simdgroups: int | None = None,
) -> KernelCall:
    """Rows times a quantized matrix, on the tensor units of the M5; x and y are of one 16-bit type.

    Arguments as for `quantized_matrix`.
    """
    rows, inputs, _ = shape
    _check(inputs, group_size, bits)
    if rows > MATRIX_ROWS or dtype not in TENSOR_TYPES:
        raise ValueError(f"{TENSOR}: got {rows} rows of {dtype}, expected at most {MATRIX_ROWS} of a 16-bit type")
    parts = (8 if inputs >= 2048 else 2) if simdgroups is None else simdgroups
    template = (("T", dtype), ("GROUP", group_size), ("BITS", bits), ("OFFSET", offset), ("SIMDGROUPS", parts))
    return _shared_sums(TENSOR, template, shape, dtype, parts=parts, each=32, header=_TENSOR_HEADER)


def _shared_sums(
    name: str,
    template: tuple[tuple[str, Any], ...],
    shape: tuple[int, int, int],
    dtype: mx.Dtype,
    *,
    parts: int,
    each: int,
    header: str,
) -> KernelCall:
    """A call whose threadgroups are `parts` SIMD-groups that share the sums of `each` outputs."""
    rows, _, outputs = shape
    return KernelCall(
        name=name,
        inputs=_INPUTS,
        outputs=("y",),
        template=template,
        grid=(32 * parts * -(-outputs // each), 1, 1),
        threadgroup=(32 * parts, 1, 1),
        output_shapes=((rows, outputs),),
        output_dtypes=(dtype,),
        header=header,
    )


def _check(inputs: int, group_size: int, bits: int) -> None:
    if bits not in BITS or group_size not in GROUP_SIZES or inputs % group_size:
        raise ValueError(
            f"quantized rows: got {bits} bits in groups of {group_size} of {inputs} columns, expected 4 or 8 bits in "
            "groups of 32, 64 or 128 that divide the columns"
        )

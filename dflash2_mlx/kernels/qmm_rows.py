"""A few rows times a quantized matrix, in the form that suits the shape and the machine.

Owns: the one function through which target, drafter and head multiply, the choice behind it, and the self-tests of
metal/qmm_rows.metal and metal/qmm_rows_mma.metal. The twin is `mx.quantized_matmul`. Knows nothing of layers.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from ..device.chips import this_chip
from . import qmm_calls
from .call import KernelCall
from .dispatch import EXACT_ROWS, Dispatcher, check_equal, dispatcher, inexact
from .qmm_forms import AFFINE, MATRIX, MOST_ROWS, PAD, PADDED_ROWS, STOCK, TENSOR, TILE, Product, default_form

NAME = qmm_calls.TILE
KERNEL_OF = {TILE: qmm_calls.TILE, MATRIX: qmm_calls.MATRIX, TENSOR: qmm_calls.TENSOR}
_CALL_OF = {
    TILE: qmm_calls.quantized_tile,
    MATRIX: qmm_calls.quantized_matrix,
    TENSOR: qmm_calls.quantized_tensor,
}


class Packed(NamedTuple):  # made at every product, and cheaper to make than a dataclass
    """A quantized matrix [N, K], and the bias of its layer.

    Shapes: weight [N, K * bits / 32] uint32; scales, biases [N, K / group_size] (biases None outside affine mode);
        offset [N] or None, added to every row of a product
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    mode: str = AFFINE
    offset: mx.array | None = None

    def product(self, x: mx.array) -> Product:
        """What `x` [..., K] times this is, for a choice of form."""
        return Product(
            x.size // max(1, x.shape[-1]),
            x.shape[-1],
            self.weight.shape[0],
            self.bits,
            self.group_size,
            _result(x.dtype, self.scales, self.offset),
        )

    def inputs(self, x: mx.array) -> tuple[mx.array, ...]:
        """As the kernels take them. An absent offset is never read; the scales stand in for it."""
        assert self.biases is not None
        return (x, self.weight, self.scales, self.biases, self.scales if self.offset is None else self.offset)


def quantized_rows(
    x: mx.array,
    weight: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    mode: str = AFFINE,
    *,
    offset: mx.array | None = None,
    exact: bool = False,
) -> mx.array:
    """`x . dequantized(weight)^T`, plus `offset` where there is one.

    Shapes:
        x: [..., K] -> [..., N]; see `Packed` for the rest
    Args:
        exact: a row gets the same bits whatever rows stand beside it, up to 32 rows.
    Raises:
        SettingError: `exact` was asked for and the kernel does not run here.

    Without Metal, and, unless `exact`, for one row and for more than 16, this is `mx.quantized_matmul`. Kernels have no
    gradients.
    """
    packed = Packed(weight, scales, biases, group_size, bits, mode, offset)
    kernels = dispatcher()
    rows = x.size // max(1, x.shape[-1])
    few = 0 < rows <= EXACT_ROWS if exact else 1 < rows <= MOST_ROWS
    if not few or mode != AFFINE or (kernels.factory is None and not exact):
        return stock_product(x, packed)
    key = (NAME, rows, weight.shape, group_size, bits, x.dtype, scales.dtype, offset is None or offset.dtype, exact)
    form, call = kernels.remembered(key, lambda: _choose(kernels, x, packed, exact))
    return _run(form, call, x, packed)


def run_form(form: str, x: mx.array, packed: Packed) -> mx.array:
    """The product in a form that is `usable`, for a race or a comparison."""
    return _run(form, call_for(form, packed.product(x), packed.offset is not None), x, packed)


def _run(form: str, call: KernelCall | None, x: mx.array, packed: Packed) -> mx.array:
    if call is not None:
        flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        y = dispatcher().run(call, packed.inputs(flat))[0]
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], -1)
    return padded_product(x, packed) if form == PAD else stock_product(x, packed)


def stock_product(x: mx.array, packed: Packed) -> mx.array:
    """MLX's own product; it has a gradient."""
    y = mx.quantized_matmul(
        x,
        packed.weight,
        scales=packed.scales,
        biases=packed.biases,
        transpose=True,
        group_size=packed.group_size,
        bits=packed.bits,
        mode=packed.mode,
    )
    return y if packed.offset is None else y + packed.offset


def padded_product(x: mx.array, packed: Packed) -> mx.array:
    """MLX's own product of more rows than there are, for a back-end that is quicker with them."""
    rows = x.size // x.shape[-1]
    flat = mx.pad(x.reshape(rows, -1), [(0, max(0, PADDED_ROWS - rows)), (0, 0)])
    return stock_product(flat, packed)[:rows].reshape(*x.shape[:-1], -1)


def call_for(form: str, product: Product, offset: bool) -> KernelCall | None:
    """The call of a kernel's form; None for MLX's own forms."""
    if form not in KERNEL_OF:
        return None
    shape = (product.rows, product.inputs, product.outputs)
    return _CALL_OF[form](shape, product.dtype, product.group_size, product.bits, offset)


def usable(kernels: Dispatcher, form: str, x: mx.array, packed: Packed) -> bool:
    """Whether this form can do this product here: its kernel may run, and gives the twin's numbers."""
    product = packed.product(x)
    if form == PAD:
        return product.rows < PADDED_ROWS
    if form not in KERNEL_OF:
        return form == STOCK
    if not product.suits_kernels or (form != TILE and product.rows > qmm_calls.MATRIX_ROWS):
        return False
    if form == TENSOR and (product.dtype not in qmm_calls.TENSOR_TYPES or x.dtype != product.dtype):
        return False
    call = call_for(form, product, packed.offset is not None)
    if call is None or not kernels.wants_metal(KERNEL_OF[form]):
        return False
    return kernels.passes(call, packed.inputs(x), partial(self_test, form, call, x.dtype, packed))


def exactness_problem(x_dtype: mx.Dtype, packed: Packed) -> str | None:
    """Why products with this matrix cannot be exact here, or None after the kernel passed its test at every width."""
    if packed.mode != AFFINE or not packed.product(mx.zeros((1, _columns(packed)), dtype=x_dtype)).suits_kernels:
        return f"{packed.bits} bits in groups of {packed.group_size} ({packed.mode})"
    kernels = dispatcher()
    for rows in range(1, qmm_calls.TILE_ROWS + 1):
        if not usable(kernels, TILE, mx.zeros((rows, _columns(packed)), dtype=x_dtype), packed):
            return kernels.why_not(NAME)
    return None


def _choose(kernels: Dispatcher, x: mx.array, packed: Packed, exact: bool) -> tuple[str, KernelCall | None]:
    """The form for this product, and the call where it is a kernel's."""
    product, offset = packed.product(x), packed.offset is not None
    if exact:
        problem = exactness_problem(x.dtype, packed)
        if problem is not None:
            raise inexact(problem)
        return TILE, call_for(TILE, product, offset)
    for form in (kernels.winner(NAME, product.key), default_form(this_chip(), product)):
        if form is not None and usable(kernels, form, x, packed):
            return form, call_for(form, product, offset)
    return STOCK, None


def _columns(packed: Packed) -> int:
    return packed.scales.shape[1] * packed.group_size


def _result(x: mx.Dtype, scales: mx.array, offset: mx.array | None) -> mx.Dtype:
    """The type of a product, as MLX promotes it."""
    for array in (scales, offset):
        if array is not None and array.dtype != x:
            x = (mx.zeros((), dtype=x) + mx.zeros((), dtype=array.dtype)).dtype
    return x


def self_test(form: str, call: KernelCall, x_dtype: mx.Dtype, packed: Packed) -> None:
    """Run the kernel that `call` compiles on random numbers of another shape, and compare.

    The yardstick is float32 and row by row: MLX's CPU product of bfloat16 rows is coarse, and so may be tensor units.

    Raises:
        KernelMismatch: they differ.
    """
    template = dict(call.template)
    inputs, outputs = 384, 37  # more than one turn of the lanes, and no multiple of what a SIMD-group computes
    rows = {TILE: 2 * template.get("ROWS", 0) - 1, MATRIX: 8 * template.get("TILES", 0) - 3, TENSOR: 11}[form]
    shape = (rows, inputs, outputs)
    test = random_product(shape, packed.group_size, packed.bits, packed.scales.dtype, packed.offset)
    x = mx.random.normal(shape[:2], key=mx.random.key(1)).astype(x_dtype)
    arguments = (shape, template["T"], packed.group_size, packed.bits, packed.offset is not None)
    fixed = {"tile": template["ROWS"]} if form == TILE else {"simdgroups": template["SIMDGROUPS"]}
    same = _CALL_OF[form](*arguments, **fixed)
    assert same.template == call.template, "the test has to run what was asked for"
    (got,) = dispatcher().run(same, test.inputs(x))
    check_equal(got, by_rows(x, test), tolerance=tolerance(template["T"]), what=call.name)


def random_product(
    shape: tuple[int, int, int], group_size: int, bits: int, dtype: mx.Dtype, offset: mx.array | None = None
) -> Packed:
    """A matrix whose products with standard normal rows have a deviation of about one.

    Args:
        shape: (rows, K, N).
        dtype: of scales and biases.
        offset: what the layer's bias is like, or None.
    """
    _, inputs, outputs = shape
    keys = mx.random.split(mx.random.key(0), 4)
    weight = mx.random.randint(0, 256, (outputs, inputs * bits // 8), key=keys[0]).astype(mx.uint8).view(mx.uint32)
    spread = 2**bits / 12**0.5  # of numbers 0..2^bits - 1, all alike
    scales = (mx.random.uniform(0.5, 1.3, (outputs, inputs // group_size), key=keys[1])) / (spread * inputs**0.5)
    biases = -scales * 2**bits * mx.random.uniform(0.4, 0.6, scales.shape, key=keys[2])
    added = None if offset is None else mx.random.normal((outputs,), key=keys[3]).astype(offset.dtype)
    return Packed(weight, scales.astype(dtype), biases.astype(dtype), group_size, bits, AFFINE, added)


def by_rows(x: mx.array, packed: Packed) -> mx.array:
    """The product in float32, each row of x [M, K] alone: one order of summation, and no tensor units."""
    assert packed.biases is not None
    wide = Packed(
        packed.weight,
        packed.scales.astype(mx.float32),
        packed.biases.astype(mx.float32),
        packed.group_size,
        packed.bits,
        packed.mode,
        None if packed.offset is None else packed.offset.astype(mx.float32),
    )
    rows: Any = mx.split(x.astype(mx.float32), x.shape[0])
    return mx.concatenate([stock_product(row, wide) for row in rows])


def tolerance(dtype: mx.Dtype) -> float:
    """What one rounding of numbers up to about 5 may do, twice over."""
    return {mx.float32: 1e-4, mx.float16: 6e-3}.get(dtype, 4e-2)

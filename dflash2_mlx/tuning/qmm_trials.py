"""The races of `qmm_rows`: every quantized product of a loaded pair, in every form that may win.

Owns: which products a pair has, and how their numbers are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Protocol

import mlx.core as mx

from ..device.chips import this_chip
from ..kernels.dispatch import KernelMismatch, check_equal, dispatcher
from ..kernels.qmm_calls import TENSOR_TYPES
from ..kernels.qmm_forms import FORMS, MOST_ROWS, PAD, STOCK, TENSOR, Product, modelled_costs
from ..kernels.qmm_rows import KERNEL_OF, NAME, Packed, by_rows, run_form, tolerance, usable
from .trial import Contest, Outputs, chain_of, does_not_run, sets_needed

_PRECISE = 5.0  # magnitude up to which `tolerance` is meant
Matrices = Callable[[], Sequence[Packed]]


class HasMatrices(Protocol):
    """A target or drafter that knows its quantized products."""

    def quantized_matrices(self) -> Iterable[Packed]:
        """Every matrix that a few rows are multiplied by."""


def contests(target: HasMatrices, drafter: HasMatrices | None, rows: Sequence[int]) -> list[Contest]:
    """One race for each kind of product and number of rows.

    Args:
        rows: of the passes that will be run; those of 1 row and of more than 16 are MLX's own and not raced.
    """
    by_kind: dict[tuple[object, ...], list[Packed]] = {}
    for model in (target, drafter):
        for packed in model.quantized_matrices() if model is not None else ():
            by_kind.setdefault(_kind(packed), []).append(packed)
    found = []
    for matrices in by_kind.values():
        copies = max(0, sets_needed(_bytes(matrices[0])) - len(matrices))
        rotated = cache(partial(_with_copies, matrices, copies))
        for count in sorted(set(rows)):
            if 1 < count <= MOST_ROWS:
                found += _contest(matrices[0], rotated, count, copies * _bytes(matrices[0]))
    return found


def _with_copies(matrices: Sequence[Packed], copies: int) -> Sequence[Packed]:
    """The model's own matrices, as many as take turns, and copies where it has too few."""
    own = list(matrices[: sets_needed(_bytes(matrices[0]))])
    return own + [_copy(own[number % len(own)]) for number in range(copies)]


def _contest(first: Packed, rotated: Matrices, rows: int, size: int) -> list[Contest]:
    x = _rows(rows, first)
    product = first.product(x)
    forms = [form for form in FORMS if _may_win(form, product)]
    if forms == [STOCK]:
        return []

    def sets() -> list[tuple[mx.array, Packed]]:
        return [(x, packed) for packed in rotated()]

    return [
        Contest(
            kernel=NAME,
            key=product.key,
            stock=STOCK,
            chains={form: chain_of(partial(_product, form), sets) for form in forms},
            check=partial(_check, first, x),
            bytes=size,
        )
    ]


def _may_win(form: str, product: Product) -> bool:
    if form == STOCK:
        return True
    if form == PAD:
        return PAD in modelled_costs(this_chip(), product)
    fits = product.suits_kernels and (form != TENSOR or product.dtype in TENSOR_TYPES)
    return fits and dispatcher().wants_metal(KERNEL_OF[form])


def _product(form: str, x: mx.array, packed: Packed) -> Outputs:
    return (run_form(form, x, packed),)


def _check(packed: Packed, x: mx.array, form: str) -> None:
    if form == STOCK:
        return
    if not usable(dispatcher(), form, x, packed):
        raise KernelMismatch(does_not_run(form))
    want = by_rows(x, packed)
    scale = mx.maximum(mx.abs(want).max() / _PRECISE, 1.0)
    got = run_form(form, x, packed).astype(mx.float32)
    check_equal(got / scale, want / scale, tolerance=tolerance(packed.product(x).dtype), what=f"{form} product")


def _rows(rows: int, packed: Packed) -> mx.array:
    columns = packed.scales.shape[1] * packed.group_size
    return mx.random.normal((rows, columns), key=mx.random.key(rows)).astype(packed.scales.dtype)


def _kind(packed: Packed) -> tuple[object, ...]:
    return (*packed.weight.shape, packed.scales.shape[1], packed.bits, packed.group_size, packed.scales.dtype)


def _bytes(packed: Packed) -> int:
    arrays = (packed.weight, packed.scales, packed.biases, packed.offset)
    return sum(array.nbytes for array in arrays if array is not None)


def _copy(packed: Packed) -> Packed:
    arrays = (packed.weight, packed.scales, packed.biases, packed.offset)
    weight, scales, biases, offset = (array if array is None else array + 0 for array in arrays)
    assert weight is not None and scales is not None
    made = Packed(weight, scales, biases, packed.group_size, packed.bits, packed.mode, offset)
    mx.eval([array for array in (weight, scales, biases, offset) if array is not None])
    return made

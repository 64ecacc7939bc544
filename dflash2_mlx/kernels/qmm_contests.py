"""The races of `qmm_rows`: every quantized product of a loaded pair, in every form that may win.

Owns: which products a pair has, and how one is timed fairly: each call waits for the one before, and the weights
change from call to call, so that they come from memory as they do in a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import mlx.core as mx

from ..chips import this_chip
from ._contest import Contest
from ._dispatch import KernelMismatch, check_equal, dispatcher
from ._metal_qmm import TENSOR_TYPES
from .qmm_forms import FORMS, MOST_ROWS, PAD, STOCK, TENSOR, Product, modelled_costs
from .qmm_rows import KERNEL_OF, NAME, Packed, by_rows, run_form, tolerance, usable

_ROTATED_BYTES = 128_000_000  # more than any cache between GPU and memory holds
_MOST_MATRICES = 16
_PRECISE = 5.0  # magnitude up to which `tolerance` is meant


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
        rotation = Rotation(matrices[:_MOST_MATRICES])
        for count in sorted(set(rows)):
            if 1 < count <= MOST_ROWS:
                found += _contest(rotation, count)
    return found


@dataclass
class Rotation:
    """Matrices of one kind, used in turn; copies are made, when a race begins, where the model has too few."""

    matrices: list[Packed]
    _all: list[Packed] = field(default_factory=list)

    def all(self) -> list[Packed]:
        if not self._all:
            each = sum(
                array.nbytes for array in (self.matrices[0].weight, self.matrices[0].scales) if array is not None
            )
            wanted = min(_MOST_MATRICES, -(-_ROTATED_BYTES // each))
            self._all = list(self.matrices)
            while len(self._all) < wanted:
                self._all.append(_copy(self.matrices[len(self._all) % len(self.matrices)]))
        return self._all


def _contest(rotation: Rotation, rows: int) -> list[Contest]:
    first = rotation.matrices[0]
    x = _rows(rows, first)
    product = first.product(x)
    forms = [form for form in FORMS if _may_win(form, product)]
    if forms == [STOCK]:
        return []
    return [
        Contest(
            kernel=NAME,
            key=product.key,
            stock=STOCK,
            chains={form: partial(_chain, form, rotation, rows) for form in forms},
            check=partial(_check, rotation, rows),
        )
    ]


def _may_win(form: str, product: Product) -> bool:
    if form == STOCK:
        return True
    if form == PAD:
        return PAD in modelled_costs(this_chip(), product)
    fits = product.suits_kernels and (form != TENSOR or product.dtype in TENSOR_TYPES)
    return fits and dispatcher().wants_metal(KERNEL_OF[form])


def _chain(form: str, rotation: Rotation, rows: int, calls: int) -> mx.array:
    matrices = rotation.all()
    x = _rows(rows, matrices[0])
    for number in range(calls):
        y = run_form(form, x, matrices[number % len(matrices)])
        x = x + 0 * y[:, :1].astype(x.dtype)  # nothing changes, and nothing may begin before y is there
    return x


def _check(rotation: Rotation, rows: int, form: str) -> None:
    if form == STOCK:
        return
    packed = rotation.matrices[0]
    x = _rows(rows, packed)
    if not usable(dispatcher(), form, x, packed):
        notes = "; ".join(dispatcher().notes())
        raise KernelMismatch(f"{form}: does not run here{f' ({notes})' if notes else ''}")
    want = by_rows(x, packed)
    scale = mx.maximum(mx.abs(want).max() / _PRECISE, 1.0)
    got = run_form(form, x, packed).astype(mx.float32)
    check_equal(got / scale, want / scale, tolerance=tolerance(packed.product(x).dtype), what=f"{form} product")


def _rows(rows: int, packed: Packed) -> mx.array:
    columns = packed.scales.shape[1] * packed.group_size
    return mx.random.normal((rows, columns), key=mx.random.key(rows)).astype(packed.scales.dtype)


def _kind(packed: Packed) -> tuple[object, ...]:
    return (*packed.weight.shape, packed.scales.shape[1], packed.bits, packed.group_size, packed.scales.dtype)


def _copy(packed: Packed) -> Packed:
    arrays = (packed.weight, packed.scales, packed.biases, packed.offset)
    weight, scales, biases, offset = (array if array is None else array + 0 for array in arrays)
    assert weight is not None and scales is not None
    made = Packed(weight, scales, biases, packed.group_size, packed.bits, packed.mode, offset)
    mx.eval([array for array in (weight, scales, biases, offset) if array is not None])
    return made

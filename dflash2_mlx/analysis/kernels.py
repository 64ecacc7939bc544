"""What became of each of our own kernels in this process, and what they are worth against their twins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..device.runtime import owner
from ..drafters.dflash2.config import DrafterConfig
from ..drafters.dflash2.model import DraftModel
from ..kernels.dispatch import KernelState, dispatcher, rounding
from ..kernels.few_row_attention import Sight, attention_twin, few_row_attention, mask_of
from ..kernels.qmm_calls import MATRIX as MATRIX_KERNEL
from ..kernels.qmm_calls import MATRIX_ROWS
from ..kernels.qmm_calls import TILE as TILE_KERNEL
from ..kernels.qmm_forms import MATRIX, TILE
from ..kernels.qmm_rows import Packed, run_form, stock_product, usable
from ..tuning.drafter_trials import Arrays, codebooks_of, drafter_cases
from ..tuning.trial import Case

_CALLS, _REPEATS = 8, 5
_CONTEXT = 1024  # rows that full attention looks back on


@dataclass(frozen=True)
class KernelTime:
    """Milliseconds of one call of a kernel and of its twin, at the shapes of one drafter."""

    name: str
    kernel_ms: float
    twin_ms: float


def kernel_states() -> list[KernelState]:
    """One entry per kernel: what was asked for, what runs, whether it was tested here, and why it is off.

    Raises:
        ConfigError: `DFLASH2_KERNELS` cannot be read.
    """
    return dispatcher().states()


def time_kernels(drafter: DraftModel) -> list[KernelTime]:
    """Time the kernels that run on Metal here against their twins; empty where none does."""
    running = {state.name for state in kernel_states() if state.runs == "metal"}
    if not running:
        return []
    return owner().call(
        lambda: [
            KernelTime(case.name, _milliseconds(case, case.kernel), _milliseconds(case, case.twin))
            for case in _first_of_each(drafter)
            if case.name in running
        ]
    )


def _first_of_each(drafter: DraftModel) -> list[Case]:
    """One shape of each kernel: that of the whole block."""
    config, dtype = drafter.config, drafter.dtype
    cases = [
        *drafter_cases(config, dtype, config.block_size, codebooks_of(drafter)),
        _attention(config, dtype),
        *_products(config, dtype),
    ]
    return list({case.name: case for case in reversed(cases)}.values())[::-1]


def _attention(config: DrafterConfig, dtype: mx.Dtype) -> Case:
    """Of one block over a context that fills a sliding layer's window, or over as many rows."""
    rows, context, window = config.block_size, config.sliding_window or _CONTEXT, config.sliding_window
    start = mx.array([context], dtype=mx.int32)
    mask = mask_of(start, 0, rows, context + rows, causal=False, window=window, sink=0)
    sight = Sight(mask, start, 0, causal=False, window=window)

    def make(key: mx.array) -> Arrays:
        heads = (1, config.num_heads, rows, config.head_dim)
        kv = (1, config.num_kv_heads, context + rows, config.head_dim)
        keys = mx.random.split(key, 3)
        return tuple(mx.random.normal(s, key=own).astype(dtype) for s, own in zip((heads, kv, kv), keys, strict=True))

    return Case(
        "few_row_attention",
        "",
        make,
        lambda queries, keys, values: (few_row_attention(queries, keys, values, sight),),
        lambda queries, keys, values: (attention_twin(queries, keys, values, mask),),
        rounding(dtype),
    )


def _products(config: DrafterConfig, dtype: mx.Dtype) -> Iterator[Case]:
    """The products with a 4-bit matrix of the MLP's size; a form that cannot be used here is left out."""
    inputs, outputs = config.hidden_size, config.intermediate_size
    group_size = next((size for size in (64, 32) if inputs % size == 0), None)
    if group_size is None:
        return

    def packed(weight: mx.array, scales: mx.array, biases: mx.array) -> Packed:
        return Packed(weight, scales, biases, group_size, 4)

    def make(key: mx.array) -> Arrays:
        rows, weights = mx.random.split(key, 2)
        x = mx.random.normal((1, min(config.block_size, MATRIX_ROWS), inputs), key=rows).astype(dtype)
        matrix = mx.random.normal((outputs, inputs), key=weights).astype(dtype)
        return (x, *mx.quantize(matrix, group_size=group_size, bits=4))

    def product(form: str) -> Callable[..., tuple[mx.array, ...]]:
        return lambda x, *arrays: (run_form(form, x, packed(*arrays)),)

    sample = make(mx.random.key(0))
    for name, form in ((TILE_KERNEL, TILE), (MATRIX_KERNEL, MATRIX)):
        if usable(dispatcher(), form, sample[0], packed(*sample[1:])):
            twin: Callable[..., tuple[mx.array, ...]] = lambda x, *arrays: (stock_product(x, packed(*arrays)),)  # noqa: E731
            yield Case(name, "", make, product(form), twin, rounding(dtype))


def _milliseconds(case: Case, way: Callable[..., object]) -> float:
    """Median over repeats of one call's share of several queued together."""
    times, copies = [], case.inputs()
    for number in range(_REPEATS + 1):
        began = time.perf_counter()
        mx.eval([way(*copies[number % len(copies)]) for number in range(_CALLS)])
        if number:  # the first one compiles
            times.append(1e3 * (time.perf_counter() - began) / _CALLS)
    return statistics.median(times)

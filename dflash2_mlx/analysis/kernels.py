"""What became of each of our own kernels in this process, and what they are worth against their twins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from ..drafter.model import DraftModel
from ..kernels._dispatch import KernelState, dispatcher
from ..kernels.contests import Case, codebooks_of, drafter_cases
from ..runtime import owner

_CALLS, _REPEATS = 8, 5


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
    cases = drafter_cases(drafter.config, drafter.dtype, drafter.config.block_size, codebooks_of(drafter))
    return list({case.name: case for case in reversed(list(cases))}.values())[::-1]


def _milliseconds(case: Case, way: Callable[..., object]) -> float:
    """Median over repeats of one call's share of several queued together."""
    times, copies = [], case.inputs()
    for number in range(_REPEATS + 1):
        began = time.perf_counter()
        mx.eval([way(*copies[number % len(copies)]) for number in range(_CALLS)])
        if number:  # the first one compiles
            times.append(1e3 * (time.perf_counter() - began) / _CALLS)
    return statistics.median(times)

"""Contests whose contenders need a set time, by a clock that they move on: a busy machine changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import mlx.core as mx
import pytest

from dflash2_mlx.device import timing
from dflash2_mlx.kernels.dispatch import KernelMismatch
from dflash2_mlx.tuning.trial import Contest

STOCK = "mlx"


class Clock:
    """The real time, and what contests have added to it."""

    ahead = 0.0

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead


CLOCK = Clock()


def use_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have passes timed by `CLOCK`."""
    monkeypatch.setattr(timing, "time", CLOCK)


def contest(
    seconds: Mapping[str, float],
    *,
    wrong: Mapping[str, Exception] | None = None,
    key: str = "8x64 float32",
    watch: Callable[[], None] = lambda: None,
) -> Contest:
    """A race of contenders that sleep; those in `wrong` fail their check in that way; `watch` sees each run."""
    faults = wrong or {}

    def chain(cost: float) -> Callable[[int], mx.array]:
        def run(calls: int) -> mx.array:
            watch()
            CLOCK.ahead += cost * calls
            return mx.zeros((1,))

        return run

    def check(name: str) -> None:
        if name in faults:
            raise faults[name]

    return Contest("norm_rope", key, STOCK, {name: chain(cost) for name, cost in seconds.items()}, check)


WRONG = KernelMismatch("norm_rope: off by 3, expected at most 0.1")
REFUSED = RuntimeError("[metal::Device] Unable to build\nmetal library from source")

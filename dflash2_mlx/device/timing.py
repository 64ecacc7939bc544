"""How chains of device work are timed against each other, in turns and in slices.

Owns: how long a run has to be, and the order of turns. Knows nothing of what a chain computes. To be called on the
thread that owns MLX.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Mapping
from typing import TypeVar

import mlx.core as mx

LONG_ENOUGH_S = 0.05  # what a run of a chain should take


MOST_PASSES = 16  # of one run

Name = TypeVar("Name", bound=Hashable)


Result = TypeVar("Result")


def time_in_turns(chains: Mapping[Name, Chain], repeats: int) -> dict[Name, list[float]]:
    """Seconds of one pass of each chain, `repeats` times in turns: a slow moment of the machine hits all alike."""
    return at_once(timing_in_turns(chains, repeats))


def at_once(slices: Generator[None, None, Result]) -> Result:
    """The result of work in slices, without pauses."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result


def timing_in_turns(
    chains: Mapping[Name, Chain], repeats: int, *, most: int = MOST_PASSES, limit_s: float | None = None
) -> Generator[None, None, dict[Name, list[float]]]:
    """`time_in_turns` in slices: one chain is run, or tried, between two pauses.

    Args:
        most: passes of one run.
        limit_s: after so many seconds no further turn begins; there is always one.
    """
    passes: dict[Name, int] = {}
    spent = 0.0
    for key, chain in chains.items():
        passes[key], took = _enough_passes(chain, most)
        spent += took
        yield
    seconds: dict[Name, list[float]] = {key: [] for key in chains}
    for turn in range(repeats if chains else 0):
        if turn and limit_s is not None and spent >= limit_s:
            break
        order = list(chains)
        for key in order[turn % len(order) :] + order[: turn % len(order)]:
            took = _timed(chains[key], passes[key])
            spent += took
            seconds[key].append(took / passes[key])
            yield
    return seconds


def _enough_passes(chain: Chain, most: int) -> tuple[int, float]:
    """Passes of a run that is long enough, and the seconds it took to find that out."""
    first = _timed(chain, 1)  # compiles, and allocates what is reused
    second = _timed(chain, 1)
    return long_enough(second, most), first + second


def _timed(chain: Chain, passes: int) -> float:
    began = time.perf_counter()
    mx.eval(chain(passes))
    return time.perf_counter() - began


def long_enough(seconds: float, most: int) -> int:
    """Passes of a run that is long enough, where one takes so many seconds."""
    return max(1, min(most, round(LONG_ENOUGH_S / max(seconds, 1e-9))))


Chain = Callable[[int], mx.array]  # builds n calls, each waiting for the one before; its result depends on the last

"""Runs one contest and says who won.

Owns: the order of the runs, and when a difference counts. A contender whose numbers are wrong, or that Metal refuses,
is out with its reason. The others run in turns; the stock operation stays unless another one was clearly faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import dataclass, field

from ..costs import timing_in_turns
from ..kernels._contest import Contest
from ..kernels._dispatch import KernelMismatch

REPEATS = 7
MOST_CALLS = 256  # of a chain: a call may take microseconds
MARGIN = 0.03  # a winner must save this share of the stock operation's time in the median
OFTEN = 0.7  # and be faster in this share of the turns


@dataclass(frozen=True)
class RaceResult:
    """One race. `seconds` is the median time of a call by contender; `out` says why others did not run."""

    kernel: str
    key: str
    stock: str
    winner: str
    seconds: dict[str, float]
    out: dict[str, str] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """The stock operation's time over the winner's."""
        return self.seconds[self.stock] / self.seconds[self.winner] if self.seconds.get(self.winner) else 1.0


def racing(contest: Contest, repeats: int = REPEATS) -> Generator[None, None, RaceResult]:
    """Run a contest in slices: one contender is checked, or runs, between two pauses."""
    out: dict[str, str] = {}
    for name in contest.chains:
        try:
            contest.check(name)
        except (KernelMismatch, RuntimeError, ValueError, OSError) as error:
            # MLX reports what the Metal compiler or a launch refuses as RuntimeError or ValueError.
            out[name] = " ".join(str(error).split())[:200]
        yield
    running = {name: chain for name, chain in contest.chains.items() if name not in out or name == contest.stock}
    times: dict[str, list[float]] = {}
    if set(running) - {contest.stock}:
        times = yield from timing_in_turns(running, repeats, most=MOST_CALLS)
    winner = choose(contest.stock, times)
    seconds = {name: statistics.median(of_name) for name, of_name in times.items()}
    return RaceResult(contest.kernel, contest.key, contest.stock, winner, seconds, out)


def choose(stock: str, times: dict[str, list[float]]) -> str:
    """The winner: the fastest in the median, if it beats the stock operation clearly and mostly."""
    if stock not in times:
        return stock
    best = min(times, key=lambda name: statistics.median(times[name]))
    before, after = statistics.median(times[stock]), statistics.median(times[best])
    often = sum(mine < theirs for mine, theirs in zip(times[best], times[stock], strict=True))
    clear = after < (1.0 - MARGIN) * before and often >= OFTEN * len(times[stock])
    return best if clear else stock

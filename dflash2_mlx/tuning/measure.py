"""Runs one contest and says who won.

Owns: the order of the runs, and when a difference counts. A contender whose numbers are wrong, or that Metal refuses,
is out with its reason. The others run in turns; the stock operation stays unless another one was clearly faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import dataclass, field

from ..device.timing import LONG_ENOUGH_S, timing_in_turns
from ..kernels.dispatch import KernelMismatch
from .trial import Contest

REPEATS = 7
LIMIT_S = 5.0  # after so many seconds of one race no further turn begins
FEWEST = 3  # turns that a winner needs
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
        times = yield from timing_in_turns(running, repeats, most=MOST_CALLS, limit_s=LIMIT_S)
    turns = len(times.get(contest.stock, ()))
    if 0 < turns < min(FEWEST, repeats):
        out |= dict.fromkeys(set(running) - {contest.stock}, f"too slow to tell: {turns} of {repeats} turns")
    winner = choose(contest.stock, times)
    seconds = {name: statistics.median(of_name) for name, of_name in times.items()}
    return RaceResult(contest.kernel, contest.key, contest.stock, winner, seconds, out)


def slices_of(contest: Contest) -> int:
    """Most slices that `racing` takes: each contender is checked, tried, and run in turns."""
    return len(contest.chains) * (2 + REPEATS)


def most_seconds(contest: Contest) -> float:
    """About how long `racing` takes where a call is short, besides what Metal has to compile."""
    return min(LIMIT_S, len(contest.chains) * REPEATS * LONG_ENOUGH_S)


def choose(stock: str, times: dict[str, list[float]]) -> str:
    """The winner: the fastest in the median, if it beats the stock operation clearly, mostly and in enough turns."""
    if len(times.get(stock, ())) < FEWEST:
        return stock
    best = min(times, key=lambda name: statistics.median(times[name]))
    before, after = statistics.median(times[stock]), statistics.median(times[best])
    often = sum(mine < theirs for mine, theirs in zip(times[best], times[stock], strict=True))
    clear = after < (1.0 - MARGIN) * before and often >= OFTEN * len(times[stock])
    return best if clear else stock

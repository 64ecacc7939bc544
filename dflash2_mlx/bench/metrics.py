"""What is reported of measured rounds and times, by the definitions of the specification.

Owns: the formulas, as pure functions of numbers; those of shares by position are in `shares`. Knows nothing of engines,
prompts or clocks.

Reference: docs/dflash2.md 6.1.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..decode.stats import conditional_shares, reached_positions


@dataclass(frozen=True)
class Round:
    """One round: `num_accepted` of `drafted` tokens were agreed to, `committed` were emitted.

    `committed` is counted after the cut at a stop token or the token limit, `num_accepted` before it.
    """

    num_accepted: int
    drafted: int
    committed: int


@dataclass(frozen=True)
class Spread:
    """A median, and the middle half of the values around it."""

    median: float
    quarter: float
    three_quarters: float


def acceptance_length(rounds: Sequence[Round]) -> float | None:
    """Tokens emitted per round of one request, 1..B; None where no round drafted anything."""
    if not any(done.drafted for done in rounds):
        return None
    return statistics.fmean(done.committed for done in rounds)


def mean_over_requests(values: Iterable[float | None]) -> float | None:
    """The unweighted mean over requests: a long reply counts as much as a short one. None is left out."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def acceptance_rate(rounds: Sequence[Round]) -> float | None:
    """Accepted drafts over drafts; a draft that fell behind the cut counts as drafted, not as accepted."""
    drafted = sum(done.drafted for done in rounds)
    return sum(min(done.num_accepted, done.committed) for done in rounds) / drafted if drafted else None


def conditional_acceptance(rounds: Sequence[Round]) -> list[float | None]:
    """Share of rounds that accept draft j, of those that accepted all before it and drafted j at all.

    None at a position that no round reached.
    """
    accepted, drafted = [done.num_accepted for done in rounds], [done.drafted for done in rounds]
    return conditional_shares(*reached_positions(accepted, drafted))


def time_per_token(tokens: int, seconds: float) -> float | None:
    """Seconds per token after the first, which belongs to the prefill; None for replies of one token."""
    return seconds / (tokens - 1) if tokens > 1 and seconds > 0 else None


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of a single value, that value three times."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    quarter, _, three_quarters = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), quarter, three_quarters)


def variation(values: Sequence[float]) -> float | None:
    """How far repeats lie apart: (largest - smallest) / median; None for a single one."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / statistics.median(values)

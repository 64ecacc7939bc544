"""What the runs of a measurement amount to, and the block size that follows.

Owns: the sums: per arm and setting, and the recommendation with its reason. Pure functions of what `runner` told,
complete or not: an interrupted measurement is reported like any other.

Reference: docs/dflash2.md 6.1.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..decode.stats import expected_length
from .metrics import (
    Spread,
    acceptance_length,
    acceptance_rate,
    conditional_acceptance,
    mean_over_requests,
    spread,
    time_per_token,
    variation,
)
from .runner import PLAIN, Comparison, Event, PhaseTimes, Run, Setting

UNSTEADY = 0.15  # repeats of one arm that lie further apart than this, over their median, are told of

Request = tuple[int, int]  # prompt, turn


@dataclass(frozen=True)
class Texts:
    """How many drafted replies were compared with plain decoding's, and what differed."""

    compared: int
    identical: int
    differences: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ArmReport:
    """One width in one setting.

    `tokens_per_second` is one over the mean, over requests, of the time per token after the first; a request's time
    is the median of its repeats. `speedup` is the ratio of those means over the requests that both arms have.
    `acceptance_length` is the mean over requests of the mean over rounds; `acceptance_by_position` pools all rounds,
    and `expected_length` is what it stands for. None: nothing to report.
    """

    width: int
    requests: int
    rounds: int
    generated_tokens: int
    prompt_tokens: float
    tokens_per_second: float | None
    tokens_per_second_by_repeat: list[float]
    speedup: float | None
    speedup_by_repeat: Spread | None
    acceptance_length: float | None
    acceptance_rate: float | None
    acceptance_by_position: list[float | None]
    expected_length: float | None
    prefill_s: float
    peak_memory_bytes: int
    milliseconds: dict[str, Spread]
    texts: Texts | None


@dataclass(frozen=True)
class SettingReport:
    """All arms of one setting, by width."""

    setting: Setting
    arms: list[ArmReport]


@dataclass(frozen=True)
class Advice:
    """The block size to use, None for plain decoding, and why; `caution` when the measurement is unsteady."""

    block_size: int | None
    speedup: float | None
    reason: str
    caution: str | None


def summarize(events: Iterable[Event]) -> list[SettingReport]:
    """Sum up what was measured, setting by setting in the order of the events."""
    runs: dict[Setting, dict[int, list[Run]]] = {}
    compared: dict[tuple[Setting, int], list[Comparison]] = {}
    phases: dict[tuple[Setting, int], dict[str, Spread]] = {}
    for event in events:
        if isinstance(event, Run):
            runs.setdefault(event.setting, {}).setdefault(event.width, []).append(event)
        elif isinstance(event, Comparison):
            compared.setdefault((event.setting, event.width), []).append(event)
        elif isinstance(event, PhaseTimes):
            phases[event.setting, event.width] = event.milliseconds
    return [
        SettingReport(
            setting,
            [
                _arm(
                    width,
                    arms[width],
                    arms.get(PLAIN, []),
                    _texts(compared.get((setting, width), [])),
                    phases.get((setting, width), {}),
                )
                for width in sorted(arms)
            ],
        )
        for setting, arms in runs.items()
    ]


def _arm(
    width: int, runs: Sequence[Run], plain: Sequence[Run], texts: Texts | None, milliseconds: dict[str, Spread]
) -> ArmReport:
    first = {(run.prompt, run.turn): run for run in reversed(runs)}.values()  # repeats have the same rounds
    rounds = [done for run in first for done in run.rounds]
    drafted = any(done.drafted for done in rounds)
    shares = conditional_acceptance(rounds)
    times = _request_times(runs)
    rates = [1 / statistics.fmean(_request_times(part).values()) for part in _by_repeat(runs) if _request_times(part)]
    ratios = [] if width == PLAIN else _ratios(runs, plain)
    return ArmReport(
        width=width,
        requests=len(first),
        rounds=len(rounds),
        generated_tokens=sum(run.generated_tokens for run in first),
        prompt_tokens=statistics.fmean(run.prompt_tokens for run in first),
        tokens_per_second=1 / statistics.fmean(times.values()) if times else None,
        tokens_per_second_by_repeat=rates,
        speedup=_ratio(runs, plain),
        speedup_by_repeat=spread(ratios) if ratios else None,
        acceptance_length=mean_over_requests(acceptance_length(run.rounds) for run in first),
        acceptance_rate=acceptance_rate(rounds),
        acceptance_by_position=shares,
        expected_length=expected_length(shares) if drafted else None,
        prefill_s=statistics.fmean(_medians(runs, [run.prefill_s for run in runs]).values()),
        peak_memory_bytes=max(run.peak_memory_bytes for run in runs),
        milliseconds=milliseconds,
        texts=texts,
    )


def _by_repeat(runs: Sequence[Run]) -> list[list[Run]]:
    return [[run for run in runs if run.repeat == repeat] for repeat in sorted({run.repeat for run in runs})]


def _medians(runs: Sequence[Run], values: Sequence[float | None]) -> dict[Request, float]:
    """A value of each request: the median of its repeats. Runs without one are left out."""
    found: dict[Request, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        if value is not None:
            found.setdefault((run.prompt, run.turn), []).append(value)
    return {request: statistics.median(several) for request, several in found.items()}


def _request_times(runs: Sequence[Run]) -> dict[Request, float]:
    """Seconds per token of each request."""
    return _medians(runs, [time_per_token(run.generated_tokens, run.decode_s) for run in runs])


def _ratio(runs: Sequence[Run], plain: Sequence[Run]) -> float | None:
    """Plain decoding's mean time per token over this arm's, on the requests that both have."""
    ours, theirs = _request_times(runs), _request_times(plain)
    both = ours.keys() & theirs.keys()
    if not both:
        return None
    return statistics.fmean(theirs[key] for key in both) / statistics.fmean(ours[key] for key in both)


def _ratios(runs: Sequence[Run], plain: Sequence[Run]) -> list[float]:
    """The same repeat by repeat."""
    pairs = zip(_by_repeat(runs), _by_repeat(plain), strict=False)  # an interrupted arm has fewer
    found = [_ratio(ours, theirs) for ours, theirs in pairs]
    return [ratio for ratio in found if ratio is not None]


def _texts(compared: Sequence[Comparison]) -> Texts | None:
    if not compared:
        return None
    differences = [
        {"prompt": found.prompt, "turn": found.turn, "repeat": found.repeat, **found.first_difference}
        for found in compared
        if found.first_difference is not None
    ]
    return Texts(len(compared), sum(found.identical for found in compared), differences)


# The recommendation.


def advise(reports: Sequence[SettingReport]) -> Advice:
    """The fastest width by the mean of its speedups over all settings; of equals the narrowest."""
    found: dict[int, list[ArmReport]] = {}
    for report in reports:
        for arm in report.arms:
            if arm.width != PLAIN and arm.speedup is not None:
                found.setdefault(arm.width, []).append(arm)
    if not found:
        return Advice(None, None, "nothing to choose from: plain decoding and a drafted width are both needed", None)
    complete = max(len(arms) for arms in found.values())
    speeds = {width: _mean_speed(arms) for width, arms in found.items() if len(arms) == complete}
    best = max(speeds, key=lambda width: (speeds[width], -width))
    requests = _count(sum(arm.requests for arm in found[best]), "request")
    settings = _count(complete, "setting")
    reason = f"{speeds[best]:.2f}x plain decoding over {requests} in {settings}: {_price(found[best])}"
    others = sorted((width for width in speeds if width != best), key=lambda width: -speeds[width])
    if others:
        reason += f"; width {others[0]} reaches {speeds[others[0]]:.2f}x: {_price(found[others[0]])}"
    chosen: int | None = best
    if speeds[best] <= 1:
        chosen, reason = None, f"no width is faster; the best, {best}, reaches {reason}"
    return Advice(chosen, speeds[best], reason, _caution(reports))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _mean_speed(arms: Sequence[ArmReport]) -> float:
    return statistics.fmean(arm.speedup for arm in arms if arm.speedup is not None)


def _price(arms: Sequence[ArmReport]) -> str:
    """What a round brings and, by the measured speedup, what it costs."""
    tokens = mean_over_requests(arm.acceptance_length for arm in arms)
    if tokens is None:
        return "no rounds"
    return f"a round commits {tokens:.2f} tokens and takes as long as {tokens / _mean_speed(arms):.2f} plain passes"


def _caution(reports: Sequence[SettingReport]) -> str | None:
    """Say that repeats lie far apart, or that there was only one."""
    rates = [arm.tokens_per_second_by_repeat for report in reports for arm in report.arms]
    known = [value for value in map(variation, rates) if value is not None]
    if not known:
        return "one repeat: how much the numbers vary is not known"
    if max(known) <= UNSTEADY:
        return None
    return (
        f"repeats of the same arm lie up to {100 * max(known):.0f}% apart: other work or heat disturbed the "
        "measurement; trust the ratios by repeat more than tokens/s, or measure again"
    )

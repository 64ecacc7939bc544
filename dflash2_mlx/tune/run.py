"""Tuning a loaded pair: what it measures, in the foreground or beside replies, and how results take effect.

Owns: the order of the work in slices, the job that runs them while nobody asks for anything, and the adoption of a
record by an engine. All measuring happens on the owner thread. Nothing is raced where no kernel of ours can run.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from ..chips import this_chip
from ..costs import KEPT, PassCosts, cost_slices, measuring_costs
from ..kernels._dispatch import dispatcher
from ..kernels.contests import contests
from ..load import Engine
from ..runtime import owner
from .race import REPEATS, RaceResult, racing
from .record import TuneFolder, TuneRecord, identity_of

DEEP = 4096  # positions behind which passes are timed once more
NOTHING_TO_RACE = "no kernel of ours can run here, so there is nothing to race: MLX has no Metal"


@dataclass(frozen=True)
class Progress:
    """How far tuning is: steps done, steps in all, and what comes next."""

    done: int
    total: int
    what: str


@dataclass(frozen=True)
class Attached:
    """What an engine found in its folder: its record, if there is one that can be used, and what to tell."""

    record: TuneRecord | None
    notes: tuple[str, ...] = ()


T = TypeVar("T")
Steps = Generator[Progress, None, TuneRecord]


def attach(engine: Engine, folder: TuneFolder) -> Attached:
    """Let an engine use what was found for it earlier, and keep there the costs it measures from now on."""
    identity = identity_of(this_chip(), engine.fingerprint)
    if not identity.lasting:
        return Attached(None)
    record, note = folder.find(identity)

    def keep(costs: PassCosts) -> str | None:
        before, _ = folder.find(identity)
        raced, races = (False, ()) if before is None else (before.raced, before.races)
        try:
            folder.save(_record(engine, 0.0, costs, raced, races))
        except OSError as error:  # costs can be measured again: a full disk must not end a reply
            return f"the costs of passes are not kept: {folder.folder}: {error.strerror or error}"
        return None

    engine.costs.keep = keep
    if record is not None:
        owner().call(lambda: adopt(engine, record))
    return Attached(record, (note,) if note else ())


def adopt(engine: Engine, record: TuneRecord) -> None:
    """Use a record: its winners run from the next pass on, its costs decide widths. On the owner thread."""
    dispatcher().adopt(record.winners)
    if record.costs is not None:
        engine.costs.adopt(record.costs, KEPT)


def tune(engine: Engine, folder: TuneFolder | None = None) -> Generator[Progress, None, TuneRecord]:
    """Measure now, from any thread: yields how far it is and returns the record, adopted and, with a folder, saved.

    Raises:
        OSError: the record cannot be written.
    """
    steps = tuning(engine)
    while True:
        outcome = owner().call(lambda: _next(steps))
        if isinstance(outcome, TuneRecord):
            if folder is not None and outcome.identity.lasting:
                folder.save(outcome)
            return outcome
        yield outcome


def tuning(engine: Engine) -> Steps:
    """Everything tuning does, in slices; runs on the owner thread and adopts what it finds."""
    began = time.perf_counter()
    most = engine.block_size or 1
    dispatcher().forget_winners()  # what won before must not stand in for what is raced now
    matches = contests(engine.target, engine.drafter, range(1, most + 1))
    # A race is checked, tried and repeated for each contender; passes are tried and repeated.
    sizes = [len(contest.chains) * (2 + REPEATS) for contest in matches]
    rows = range(1, most + 1)
    limit = engine.context_length
    deep = DEEP if limit is None or limit > DEEP + most else None
    total = sum(sizes) + cost_slices(engine.drafter, rows, deep)
    races: list[RaceResult] = []
    for number, contest in enumerate(matches):
        what = Progress(sum(sizes[:number]), total, f"{contest.kernel} {contest.key}")
        races.append((yield from _slices(racing(contest), what)))
    dispatcher().adopt({(race.kernel, race.key): race.winner for race in races})
    what = Progress(sum(sizes), total, "passes by rows")
    costs = yield from _slices(measuring_costs(engine.target, engine.drafter, rows, deep=deep), what)
    yield Progress(total, total, "done")
    record = _record(engine, time.perf_counter() - began, costs, True, tuple(races))
    adopt(engine, record)
    return record


def _slices(steps: Generator[None, None, T], first: Progress) -> Generator[Progress, None, T]:
    """Count the slices of one piece of work, from its first one on."""
    done = first.done
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield replace(first, done=done)
        done += 1


def _next(steps: Steps) -> Progress | TuneRecord:
    try:
        return next(steps)
    except StopIteration as end:
        record: TuneRecord = end.value
        return record


def _record(engine: Engine, seconds: float, costs: PassCosts, raced: bool, races: tuple[RaceResult, ...]) -> TuneRecord:
    identity = identity_of(this_chip(), engine.fingerprint)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return TuneRecord(identity, engine.target_name, engine.drafter_name, at, seconds, costs, raced, races)

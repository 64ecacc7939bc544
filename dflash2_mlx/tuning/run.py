"""Tuning a loaded pair: what it measures, in the foreground or beside replies, and how results take effect.

Owns: the order of the work in slices, what it may take, and the adoption of a record by an engine. All measuring
happens on the owner thread. Nothing is raced where no kernel of ours can run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

import mlx.core as mx

from ..checkpoints.memory import Precision, memory_estimate
from ..decode.costs import KEPT, MOST_ROWS, PassCosts, cost_slices, measuring_costs, seconds_to_measure
from ..device.chips import this_chip
from ..device.runtime import owner
from ..engine import Engine
from ..errors import SettingError
from ..kernels.dispatch import MLX, dispatcher
from .drafter_trials import can_win, contests
from .measure import RaceResult, most_seconds, racing, slices_of
from .record import TuneFolder, TuneRecord, identity_of
from .trial import Contest

DEEP = 4096  # positions behind which passes are timed once more
MOST_BYTES = 2 * 10**9  # beside the model, and never more than half of what is free; the rest is left out
_PATIENCE_S = 10.0  # for another process to end its slice
MOST_SECONDS = 600.0  # of all races; the rest is left out


@dataclass(frozen=True)
class Progress:
    """How far tuning is: steps done, steps in all, and what comes next."""

    done: int
    total: int
    what: str


@dataclass(frozen=True)
class Plan:
    """What tuning a pair will take.

    Attributes:
        races, contenders: that will be run.
        most_rows: of the passes that will be timed, from 1 row on.
        bytes: most memory beside the model, as far as shapes tell it.
        race_seconds: about the most that races take, without what Metal has to compile.
        pass_seconds: about what timing passes takes; None where nothing is known of their costs.
        deep: positions behind which passes are timed once more; None where that is left out.
        limit: bytes beside the model that tuning may take.
        notes: what is left out, and why.
    """

    races: int
    contenders: int
    most_rows: int
    bytes: int
    race_seconds: float
    pass_seconds: float | None
    deep: int | None
    limit: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attached:
    """What an engine found in its folder: its record, if there is one that can be used, and what to tell."""

    record: TuneRecord | None
    notes: tuple[str, ...] = ()


T = TypeVar("T")
Steps = Generator[Progress, None, TuneRecord]


def nothing_to_race() -> str | None:
    """Why no kernel of ours can be raced in this process; None where one can."""
    if dispatcher().factory is None:
        return "no kernel of ours can run here, so there is nothing to race: MLX has no Metal"
    if all(choice == MLX for choice in dispatcher().wanted.values()):
        return "no kernel of ours can run here, so there is nothing to race: DFLASH2_KERNELS switches them off"
    return None


def attach(engine: Engine, folder: TuneFolder) -> Attached:
    """Let an engine use what was found for it earlier, and keep there the costs it measures from now on."""
    identity = identity_of(this_chip(), engine.fingerprint)
    if not identity.lasting:
        return Attached(None)
    record, note = folder.find(identity)

    def keep(costs: PassCosts) -> str | None:
        before, _ = folder.find(identity)
        made = _record(engine, 0.0, costs, False, ())
        if before is not None:  # the races stand
            made = replace(before, costs=costs, at=made.at)
        try:
            folder.save(made)
        except OSError as error:  # costs can be measured again: a full disk must not end a reply
            return f"the costs of passes are not kept: {folder.folder}: {error.strerror or error}"
        return None

    engine.costs.keep = keep
    notes = [note] if note else []
    if record is not None:
        kept = record
        notes += [f"{folder.file_of(identity)}: {told}" for told in impossible_winners(record)]
        owner().call(lambda: adopt(engine, kept))
    return Attached(record, tuple(notes))


def impossible_winners(record: TuneRecord) -> list[str]:
    """A line where a record names winners that cannot run here; the rule decides in their places."""
    lost = [race for race in record.races if not can_win(race.kernel, race.winner)]
    if not lost:
        return []
    names = ", ".join(sorted({f"{race.winner} of {race.kernel}" for race in lost}))[:200]
    return [f"{len(lost)} of {len(record.races)} winners cannot run here and are not used: {names}"]


def adopt(engine: Engine, record: TuneRecord) -> None:
    """Use a record: its winners run from the next pass on, its costs decide widths. On the owner thread."""
    dispatcher().adopt({race: winner for race, winner in record.winners.items() if can_win(race[0], winner)})
    if record.costs is not None:
        engine.costs.adopt(record.costs, KEPT)


def tune(engine: Engine, folder: TuneFolder | None = None) -> Generator[Progress, None, TuneRecord]:
    """Measure now, from any thread: yields how far it is and returns the record, adopted and, with a folder, saved.

    Raises:
        OSError: the record cannot be written; where that can be known before, nothing was measured.
        SettingError: another process is tuning; what it does in the background makes way.
    """
    kept = folder if identity_of(this_chip(), engine.fingerprint).lasting else None
    if kept is None:
        return (yield from _measured(engine))
    kept.check()
    with kept.alone(_PATIENCE_S) as alone:
        if not alone:
            raise SettingError(f"tune: got another process that tunes with {kept.folder}, expected it to have ended")
        record = yield from _measured(engine)
    kept.save(record)
    return record


def _measured(engine: Engine) -> Generator[Progress, None, TuneRecord]:
    steps = tuning(engine)
    try:
        while True:
            outcome = owner().call(lambda: _next(steps))
            if isinstance(outcome, TuneRecord):
                return outcome
            yield outcome
    finally:
        if not owner().ended:
            owner().post(steps.close)  # where it was given up: lets go of memory, and of what it had set aside


def plan(engine: Engine) -> Plan:
    """What tuning would take, from any thread; measures nothing."""
    return owner().call(lambda: _plan(engine, _contests(engine)))


def _contests(engine: Engine) -> list[Contest]:
    return contests(engine.target, engine.drafter, _rows(engine))


def _rows(engine: Engine) -> range:
    return range(1, (engine.block_size or 1) + 1)


def _plan(engine: Engine, matches: Sequence[Contest]) -> Plan:
    most = _most_bytes()
    run = [contest for contest in matches if contest.bytes <= most]
    notes, too_much = [], f"need more than {most / 1e9:.3g} GB beside the model: left out"
    if len(run) < len(matches):
        notes.append(f"{len(matches) - len(run)} of {len(matches)} races {too_much}")
    if not matches:
        notes.append(nothing_to_race() or "nothing to race: no product or layer of this model has a rival here")
    deep, states = _deep(engine, most)
    if deep is None and states > most:
        notes.append(f"passes behind {DEEP} positions {too_much}, so costs do not grow with the depth of a text")
        states = _state_bytes(engine, MOST_ROWS)
    known = engine.costs.costs(engine.target, engine.drafter) if engine.costs.known and engine.drafter else None
    return Plan(
        races=len(run),
        contenders=sum(len(contest.chains) for contest in run),
        most_rows=_rows(engine)[-1],
        bytes=max([states, *(contest.bytes for contest in run)]),
        race_seconds=min(MOST_SECONDS, sum(most_seconds(contest) for contest in run)),
        pass_seconds=None if known is None else seconds_to_measure(known, engine.drafter, _rows(engine), deep),
        deep=deep,
        limit=most,
        notes=tuple(notes),
    )


def _most_bytes() -> int:
    free = _free_bytes()
    return MOST_BYTES if free is None else max(0, min(MOST_BYTES, free // 2))


def _free_bytes() -> int | None:
    """What the system would still let this process hold for the GPU; None where it does not say."""
    size = dict(mx.device_info()).get("max_recommended_working_set_size") if mx.metal.is_available() else None
    return None if size is None else int(size) - mx.get_active_memory()


def _deep(engine: Engine, most: int) -> tuple[int | None, int]:
    """Where passes are timed once more, and the bytes of the states of both places."""
    longest = engine.context_length
    if longest is not None and longest <= DEEP + (engine.block_size or 1):
        return None, _state_bytes(engine, MOST_ROWS)
    size = _state_bytes(engine, MOST_ROWS) + _state_bytes(engine, DEEP)
    return (DEEP if size <= most else None), size


def _state_bytes(engine: Engine, context: int) -> int:
    """Of the target's caches at a length of context; 0 where the config does not tell."""
    if not engine.target_config:
        return 0
    width = engine.target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype.size
    drafter = None if engine.drafter is None else engine.drafter.config
    return memory_estimate(engine.target_config, drafter, context, precision=Precision(target_bytes=width)).target_cache


def tuning(engine: Engine) -> Steps:
    """Everything tuning does, in slices; runs on the owner thread and adopts what it finds."""
    began = time.perf_counter()
    matches = _contests(engine)
    planned = _plan(engine, matches)
    waiting = deque(contest for contest in matches if contest.bytes <= planned.limit)
    del matches  # with the last race of a kind its inputs leave memory
    raced = [(contest.kernel, contest.key) for contest in waiting]
    costs_take = cost_slices(engine.drafter, _rows(engine), planned.deep)
    total = sum(map(slices_of, waiting)) + costs_take
    notes, races, clock = list(planned.notes), [], _Clock()
    # What won before must not stand in for what is raced now. Other pairs' winners stay.
    before = dispatcher().forget(raced)
    try:
        done = 0
        while waiting and clock.seconds < MOST_SECONDS:
            contest = waiting.popleft()
            what = Progress(done, total, f"{contest.kernel} {contest.key}")
            done += slices_of(contest)
            races.append((yield from clock.slices(racing(contest), what)))
            del contest
            mx.clear_cache()  # what its inputs were would stay with this process
        if waiting:
            notes.append(f"{len(waiting)} of {len(raced)} races: left out after {MOST_SECONDS:g} seconds")
            waiting.clear()
        dispatcher().adopt({(race.kernel, race.key): race.winner for race in races})
        measuring = measuring_costs(engine.target, engine.drafter, _rows(engine), deep=planned.deep)
        costs = yield from clock.slices(measuring, Progress(total - costs_take, total, "passes by rows"))
        yield Progress(total, total, "done")
        record = _record(engine, time.perf_counter() - began, costs, True, tuple(races), tuple(notes))
    except BaseException:
        dispatcher().forget(raced)
        dispatcher().adopt(before)
        raise
    adopt(engine, record)
    return record


class _Clock:
    """Counts what slices take; not what happens between them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def slices(self, steps: Generator[None, None, T], first: Progress) -> Generator[Progress, None, T]:
        """Do one piece of work slice by slice; yields how far it is, from its first slice on."""
        done = first.done
        while True:
            began = time.perf_counter()
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += time.perf_counter() - began
            yield replace(first, done=done)
            done += 1


def _next(steps: Steps) -> Progress | TuneRecord:
    try:
        return next(steps)
    except StopIteration as end:
        record: TuneRecord = end.value
        return record


def _record(
    engine: Engine,
    seconds: float,
    costs: PassCosts,
    raced: bool,
    races: tuple[RaceResult, ...],
    notes: tuple[str, ...] = (),
) -> TuneRecord:
    identity = identity_of(this_chip(), engine.fingerprint)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return TuneRecord(identity, engine.target_name, engine.drafter_name, at, seconds, costs, raced, races, notes)

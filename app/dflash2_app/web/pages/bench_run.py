"""One measurement at a time, run beside the requests of the server.

Owns: its course (a place in line, the model, the thread that measures, the record that is kept) and what those who
follow it are told. Invariant: whatever ends it, the place and the model are given back, and what was measured until
then is kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...bench.history import KeptRun, RunStore
from ...bench.pair import PairBench
from ...bench.record import settings_json
from ...errors import AppError, explain, one_line
from ..http.errors import CONFLICT, NOT_FOUND, ApiError
from ..http.signal import Bell
from ..serving.queue import Seat
from ..serving.service import Service
from .bench_request import BenchAsk

if TYPE_CHECKING:
    from dflash2_mlx import bench

log = logging.getLogger("dflash2.serve")
WAITING, LOADING, MEASURING = "waiting", "loading", "measuring"
DONE, CANCELLED, FAILED = "done", "cancelled", "failed"
ENDED = (DONE, CANCELLED, FAILED)
LIVE_S = 1.0  # how often the rows so far are summed up: it costs time between the requests
END_S = 20.0  # for the thread to stop when the server ends


class _Stopped(Exception):
    """Somebody cancelled the measurement."""


class BenchRun:
    """One measurement and how far it is; belongs to the event loop's thread."""

    def __init__(self, name: str, ask: BenchAsk):
        self.id, self.ask = name, ask
        self.state, self.stage = WAITING, "waiting for its turn"
        self.done, self.total = 0, 0
        self.settings: list[dict[str, Any]] = []
        self.rows = 0  # counts changes of `settings`
        self.record: dict[str, Any] | None = None
        self.problem: str | None = None
        self.kept = False
        self.notes: list[str] = []
        self.began = datetime.now(UTC)
        self.bell = Bell()
        self.stop = threading.Event()
        self._since = time.monotonic()
        self._ended: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._since

    def tell(self, state: str, stage: str) -> None:
        """Note what goes on now."""
        self.state, self.stage = state, stage
        if self.ended:
            self._ended = time.monotonic()
        self.bell.ring()

    def progress(self, stage: str, done: int, settings: list[dict[str, Any]] | None) -> None:
        """Note how far it is; `settings` when they were summed up anew."""
        self.stage, self.done = stage, done
        if settings is not None:
            self.settings, self.rows = settings, self.rows + 1
        self.bell.ring()

    def to_dict(self) -> dict[str, Any]:
        """All but its rows and record."""
        return {"id": self.id, "model": self.ask.model, "state": self.state, "stage": self.stage,
                "requests": self.done, "requests_planned": self.total, "seconds": round(self.seconds, 3),
                "began": iso(self.began), "problem": self.problem, "kept": self.kept,
                "notes": self.notes}  # fmt: skip


class BenchRunner:
    """Runs measurements, one at a time.

    Args:
        store: where they are kept; asked when one begins.
    """

    def __init__(self, service: Service, store: Callable[[], RunStore]):
        self._service, self._store = service, store
        self.current: BenchRun | None = None  # under way, or the last one
        self._task: asyncio.Task[None] | None = None

    def start(self, ask: BenchAsk) -> BenchRun:
        """Begin a measurement.

        Raises:
            ApiError: no such model (404), one is under way (409), or the line is full.
        """
        self._service.pool.check(ask.model)
        if self.current is not None and not self.current.ended:
            raise ApiError("bench: one is under way, expected it to have ended", status=CONFLICT, code="bench_running")
        store = self._store()
        seat = self._service.desk.take()
        self.current = run = BenchRun(store.fresh_id(), ask)
        self._task = asyncio.create_task(self._run(run, seat, store))
        return run

    def cancel(self) -> BenchRun:
        """End the measurement under way within about a round.

        Raises:
            ApiError: none is under way (404).
        """
        run = self.under_way()
        run.stop.set()
        run.bell.ring()
        return run

    def under_way(self) -> BenchRun:
        """Raises ApiError: none is (404)."""
        if self.current is None or self.current.ended:
            raise ApiError("bench: none is under way", status=NOT_FOUND, code="no_bench")
        return self.current

    def find(self, name: str) -> BenchRun:
        """The one of this id, also when it has just ended. Raises ApiError: it is not the last one (404)."""
        if self.current is None or self.current.id != name:
            raise ApiError(f"run: got {name[:100]!r}, expected the last measurement", status=NOT_FOUND, param="run")
        return self.current

    async def close(self) -> None:
        """End what runs: the server is about to end."""
        if self.current is not None:
            self.current.stop.set()
            self.current.bell.ring()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=END_S)

    async def _run(self, run: BenchRun, seat: Seat, store: RunStore) -> None:
        desk = self._service.desk
        try:
            await self._wait_for_turn(run, seat)
            run.tell(LOADING, f"loading {run.ask.model}")
            async with self._service.pool.using(run.ask.model) as served:
                run.tell(LOADING, "preparing the prompts")
                measurement = await asyncio.to_thread(run.ask.prepare, served)
                run.total, run.notes = measurement.requests, list(measurement.notes)
                before = desk.admitted
                beside = desk.running - 1
                run.tell(MEASURING, "warming up")
                log.info("bench of %s: %d requests", run.ask.model, run.total)
                events, problem = await self._measure(run, measurement)
                others = beside + desk.admitted - before
                await asyncio.to_thread(_conclude, run, store, measurement, events, problem, others)
            self._end(run, problem)
        except Exception as error:  # noqa: BLE001 - the boundary: whoever follows is told, and the server goes on
            self._end(run, error)
        finally:
            seat.leave()

    async def _wait_for_turn(self, run: BenchRun, seat: Seat) -> None:
        while not seat.called.is_set():
            if run.stop.is_set():
                raise _Stopped
            run.tell(WAITING, f"waiting for its turn: {seat.position} in line")
            try:
                await asyncio.wait_for(seat.called.wait(), 0.5)
            except TimeoutError:
                continue
        if run.stop.is_set():
            raise _Stopped

    async def _measure(self, run: BenchRun, measurement: PairBench) -> tuple[list[bench.Event], Exception | None]:
        """All events, and what ended them early."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[list[bench.Event], Exception | None]] = loop.create_future()

        def end(outcome: tuple[list[bench.Event], Exception | None]) -> None:
            if not ended.done():
                ended.set_result(outcome)

        def work() -> None:
            outcome = _events(run, measurement, lambda *told: loop.call_soon_threadsafe(run.progress, *told))
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, outcome)

        threading.Thread(target=work, name="dflash2-bench", daemon=True).start()
        return await ended

    def _end(self, run: BenchRun, problem: Exception | None) -> None:
        if isinstance(problem, _Stopped):
            run.tell(CANCELLED, "cancelled")
        elif problem is not None:
            run.problem = _line(problem)
            log.warning("bench of %s failed: %s", run.ask.model, type(problem).__name__)
            run.tell(FAILED, "failed")
        else:
            run.tell(DONE, "done")
        log.info("bench of %s: %s after %.1f s", run.ask.model, run.state, run.seconds)


Tell = Callable[[str, int, "list[dict[str, Any]] | None"], object]


def _events(run: BenchRun, measurement: PairBench, tell: Tell) -> tuple[list[bench.Event], Exception | None]:
    """Measure, in a thread of its own."""
    from dflash2_mlx import bench

    events: list[bench.Event] = []
    stage, done, last = "warming up", 0, 0.0

    def check() -> None:
        if run.stop.is_set():
            raise _Stopped

    try:
        for event in bench.measure(measurement.engine, measurement.prompts.prompts, measurement.plan, check):
            events.append(event)
            check()
            if isinstance(event, bench.Stage):
                stage = _stage(event)
            done += isinstance(event, bench.Run)
            rows = None
            if time.monotonic() - last >= LIVE_S and done:
                rows, last = settings_json(bench.summarize(events), server=False), time.monotonic()
            tell(stage, done, rows)
    except Exception as error:  # noqa: BLE001 - handed on: what was measured until then is worth keeping
        return events, error
    return events, None


def _stage(stage: bench.Stage) -> str:
    temperature = stage.setting.temperature
    assert temperature is not None, "here it is us who draw"
    return f"temperature {temperature:g}, depth {stage.setting.depth}: {stage.doing}"


def _conclude(
    run: BenchRun,
    store: RunStore,
    measurement: PairBench,
    events: Sequence[bench.Event],
    problem: Exception | None,
    others: int,
) -> None:
    """Sum up what was measured, as far as it came, and keep it."""
    from dflash2_mlx import bench

    if not any(isinstance(event, bench.Run) for event in events):
        return
    record = measurement.record(events, complete=problem is None)
    if others:
        what = "1 other request" if others == 1 else f"{others} other requests"
        told = f"{what} ran on this server meanwhile: timings and advice are unreliable"
        record["busy"] = "; ".join(filter(None, (record["busy"], told)))
    run.done, run.settings, run.record = record["requests"], record["settings"], record
    try:
        store.save(KeptRun(run.id, run.ask.model, iso(run.began), round(run.seconds, 1), record))
        run.kept = True
    except AppError as error:
        run.notes.append(_line(error))


def _line(problem: Exception) -> str:
    """What ended it, in one line; a field is called as in a request, not as on the command line."""
    import dflash2_mlx as d2

    if isinstance(problem, (ApiError, AppError, d2.Dflash2Error)):
        return one_line(str(problem)).removeprefix("--")
    return explain(problem).message


def iso(moment: datetime) -> str:
    """A time as pages and files have it: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

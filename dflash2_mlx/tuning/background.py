"""Tuning beside replies: a job of the owner thread that works only while nobody wants anything.

Owns: when it may work, how it is stopped, and what became of it. `run.tuning` does the work. A request that comes waits
for the slice under way, about the time of one pass, and for nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..device.chips import this_chip
from ..device.runtime import owner
from ..engine import Engine
from ..errors import Dflash2Error
from .record import TuneFolder, TuneRecord, identity_of
from .run import Progress, Steps, nothing_to_race, tuning

QUIET_S = 3.0  # without replies before tuning begins, or goes on
WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"


def why_not(engine: Engine, record: TuneRecord | None) -> str | None:
    """Why there is nothing to tune in the background; None where there is.

    Args:
        record: what is known already.
    """
    nothing = nothing_to_race()
    if nothing is not None:
        return nothing
    if engine.drafter is None:
        return "no drafter: plain decoding has no width to choose"
    if not identity_of(this_chip(), engine.fingerprint).lasting:
        return "this pair has no files: what was found could not be kept for it"
    if record is not None and record.raced:
        return f"tuned already, {record.at}"
    return None


class BackgroundTuning:
    """One tuning in the background; `start` hands it to the owner thread.

    Args:
        folder: where the record goes.
        done: is called once at the end, on the owner thread, with a line for a log.
        quiet_s: seconds without any other work before it works.
    """

    def __init__(
        self,
        engine: Engine,
        folder: TuneFolder,
        *,
        done: Callable[[str], None] = lambda line: None,
        quiet_s: float = QUIET_S,
    ):
        self._engine: Engine | None = engine
        self._folder, self._done, self._quiet_s = folder, done, quiet_s
        self._steps: Steps | None = None
        self._stopped = threading.Event()
        self.name = f"{engine.target_name} + {engine.drafter_name}"
        self.state = WAITING
        self.progress: Progress | None = None
        self.problem: str | None = None

    def start(self) -> None:
        """Hand it to the owner thread; it returns at once."""
        owner().submit_idle(self)

    def stop(self) -> None:
        """End it before its next slice, and let go of the engine soon; what was measured so far is lost."""
        self._stopped.set()
        if not owner().ended:
            owner().post(self._let_go)

    # On the owner thread.

    def ready(self) -> bool:
        """Whether a slice may run now."""
        if self._stopped.is_set():
            return True
        if owner().quiet_s < self._quiet_s:
            return False
        with self._folder.alone() as alone:
            return alone

    def step(self) -> bool:
        """One slice; False when there is no more to do."""
        if self._stopped.is_set() or self._engine is None:
            self._let_go()
            return False
        try:
            with self._folder.alone() as alone:
                return self._advance(self._engine) if alone else True
        except Exception as error:  # noqa: BLE001 - the owner thread goes on, whatever became of this
            expected = isinstance(error, Dflash2Error | OSError)
            said = str(error) if expected else f"{type(error).__name__}: {error}"
            self.problem = " ".join(said.split())[:300]
            self._end(FAILED, f"{self.name}: tuning failed: {self.problem}")
            return False

    def _advance(self, engine: Engine) -> bool:
        if self._steps is None:
            self._steps, self.state = tuning(engine), RUNNING
        try:
            self.progress = next(self._steps)
        except StopIteration as end:
            record: TuneRecord = end.value
            self._steps = None
            self._folder.save(record)
            won = sum(race.winner != race.stock for race in record.races)
            self._end(DONE, f"{self.name}: tuned, {won} of {len(record.races)} races won by our kernels")
            return False
        return True

    def _let_go(self) -> None:
        if self.state in (WAITING, RUNNING):
            self._end(STOPPED, f"{self.name}: tuning was stopped")

    def _end(self, state: str, line: str) -> None:
        self.state, self._engine = state, None
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        self._done(line)

"""The queue of downloads: one transfer at a time, the others in line, every state kept as long as the server runs.

Owns: the tasks, their order and states, progress and speed. One thread works the queue off; the event loop only reads.
Invariant: a task that was cancelled or failed keeps what has come, and goes on there when it is tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import AppError, one_line
from ..http.errors import CONFLICT, NOT_FOUND, ApiError

if TYPE_CHECKING:
    from ...models.pull import RepoPlan
    from ...models.transfer import Job

log = logging.getLogger("dflash2.serve")

PENDING, DOWNLOADING, COMPLETED, FAILED, CANCELLED = "pending", "downloading", "completed", "failed", "cancelled"
ENDED = (COMPLETED, FAILED, CANCELLED)
MOST_TASKS = 100
SPEED_WINDOW_S = 10.0


@dataclass
class _File:
    repo_id: str
    name: str
    size: int
    done: int
    blob: object = None


@dataclass
class _Task:
    number: int
    repo_id: str
    drafter: str | None
    state: str = PENDING
    phase: str = ""
    created_at: float = field(default_factory=time.time)
    started_at: float | None = None
    ended_at: float | None = None
    tries: int = 0
    repos: list[str] = field(default_factory=list)
    files: list[_File] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    waiting: str | None = None  # why the network is waited for
    stop: threading.Event = field(default_factory=threading.Event)
    marks: deque[tuple[float, int]] = field(default_factory=deque)  # (when, bytes here)

    @property
    def total(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def done(self) -> int:
        return sum(file.done for file in self.files)


class Downloads:
    """The queue.

    Args:
        on_done: called, in the queue's thread, when a download has been completed.
        clock: seconds, for speeds.
    """

    def __init__(self, on_done: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic):
        self._on_done, self._clock = on_done, clock
        self._tasks: dict[int, _Task] = {}
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._numbers = 0
        self.version = 0

    def add(self, repo_id: str, drafter: str | None) -> dict[str, Any]:
        """Put a model in line; `drafter` as `manage.fetching.ask_pair` takes it.

        Raises:
            ApiError: it is in line already, or the list is full (409).
        """
        with self._lock:
            for task in self._tasks.values():
                if task.state not in ENDED and repo_id in (task.repo_id, *task.repos):
                    raise ApiError(
                        f"model: {repo_id} is {task.state} already, expected one that is not in line",
                        status=CONFLICT, param="model",
                    )  # fmt: skip
            if len(self._tasks) >= MOST_TASKS:
                raise ApiError(
                    f"downloads: got {len(self._tasks)} in the list, expected fewer: remove some", status=CONFLICT
                )
            self._numbers += 1
            task = self._tasks[self._numbers] = _Task(self._numbers, repo_id, drafter)
            self._changed()
            return self._shown(task)

    def cancel(self, number: int) -> dict[str, Any]:
        """Call a download off; what has come is kept."""
        with self._lock:
            task = self._find(number)
            if task.state in ENDED:
                raise _wrong_state(task, "one that is pending or downloading")
            task.stop.set()
            if task.state == PENDING:
                self._end(task, CANCELLED)
            else:
                task.phase = "stopping"
            self._changed()
            return self._shown(task)

    def retry(self, number: int) -> dict[str, Any]:
        """Put a failed or cancelled download in line again; it goes on where it stood."""
        with self._lock:
            task = self._find(number)
            if task.state not in (FAILED, CANCELLED):
                raise _wrong_state(task, "one that failed or was cancelled")
            del self._tasks[number]
            self._tasks[number] = task  # at the end of the line
            task.state, task.error, task.ended_at, task.waiting = PENDING, None, None, None
            task.stop = threading.Event()
            self._changed()
            return self._shown(task)

    def remove(self, number: int) -> None:
        """Take a download that has ended off the list; files stay as they are."""
        with self._lock:
            task = self._find(number)
            if task.state not in ENDED:
                raise _wrong_state(task, "one that has ended: cancel it first")
            del self._tasks[number]
            self._changed()

    def clear(self) -> int:
        """Take all downloads off the list that were completed; how many."""
        with self._lock:
            gone = [number for number, task in self._tasks.items() if task.state == COMPLETED]
            for number in gone:
                del self._tasks[number]
            self._changed()
            return len(gone)

    def working_on(self) -> list[str]:
        """The Hub ids that are in line or under way."""
        with self._lock:
            return [name for task in self._tasks.values() if task.state not in ENDED
                    for name in (task.repo_id, *task.repos)]  # fmt: skip

    def status(self) -> dict[str, Any]:
        with self._lock:
            return {"tasks": [self._shown(task) for task in self._tasks.values()]}

    def close(self) -> None:
        """Stop what runs; the server is about to end."""
        with self._lock:
            self._closed = True
            for task in self._tasks.values():
                task.stop.set()
            self._changed()

    # The rest is called with the lock held, or in the queue's own thread.

    def _find(self, number: int) -> _Task:
        if number not in self._tasks:
            raise ApiError(f"download: got {number}, expected one of the list", status=NOT_FOUND, param="download")
        return self._tasks[number]

    def _changed(self) -> None:
        self.version += 1
        if self._thread is None and not self._closed and any(t.state == PENDING for t in self._tasks.values()):
            # A daemon: a server that ends does not wait for the network.
            self._thread = threading.Thread(target=self._work, name="downloads", daemon=True)
            self._thread.start()
        self._lock.notify_all()

    def _end(self, task: _Task, state: str, error: str | None = None) -> None:
        task.state, task.error, task.phase, task.waiting = state, error, "", None
        task.ended_at = time.time()
        task.marks.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                task = next((one for one in self._tasks.values() if one.state == PENDING), None)
                if task is None or self._closed:
                    self._thread = None
                    return
                task.state, task.phase, task.tries = DOWNLOADING, "asking the Hub", task.tries + 1
                task.started_at, task.notes = time.time(), []
                self._changed()
            self._run(task)

    def _run(self, task: _Task) -> None:
        from ...models.transfer import Stopped

        state, error = COMPLETED, None
        try:
            _fetch(task, self)
        except Stopped:
            state = CANCELLED
        except AppError as problem:
            state, error = FAILED, one_line(str(problem)) + (f" ({problem.hint})" if problem.hint else "")
        except Exception as problem:
            log.exception("the download of %s failed", task.repo_id)
            state, error = FAILED, f"{type(problem).__name__}: {one_line(str(problem))}"
        if task.stop.is_set() and state == FAILED:
            state, error = CANCELLED, None
        if error is not None:
            log.warning("cannot download %s: %s", task.repo_id, error)
        with self._lock:
            self._end(task, state, error)
            self._changed()
        if state == COMPLETED:
            log.info("downloaded %s", " and ".join(task.repos))
            self._on_done()

    def begin(self, task: _Task, plans: list[RepoPlan], notes: list[str]) -> None:
        """All is known of the files to come."""
        from ...models.transfer import present

        with self._lock:
            task.repos, task.notes = [plan.page.repo_id for plan in plans], notes
            task.files = []
            for plan in plans:
                jobs = {job.file.etag: job for job in plan.jobs}
                for file in plan.files:
                    job = jobs.get(file.etag)
                    here = file.size if job is None else present(job)
                    blob = None if job is None else job.blob
                    task.files.append(_File(plan.page.repo_id, file.name, file.size, here, blob))
            task.phase = "fetching"
            task.marks.append((self._clock(), task.done))
            self._changed()

    def reached(self, task: _Task, job: Job, size: int) -> None:
        with self._lock:
            for file in task.files:
                if file.blob == job.blob:
                    file.done = size
            now = self._clock()
            task.marks.append((now, task.done))
            while len(task.marks) > 2 and now - task.marks[0][0] > SPEED_WINDOW_S:
                task.marks.popleft()
            task.waiting = None
            if task.done >= task.total and task.phase == "fetching":
                task.phase = "checking"
            self._changed()

    def waits(self, task: _Task, seconds: float, reason: str) -> None:
        with self._lock:
            task.waiting = f"{reason}; trying again in {seconds:.0f} s"
            self._changed()

    def _speed(self, task: _Task) -> float | None:
        if task.state != DOWNLOADING or len(task.marks) < 2:
            return None
        (began, first), (_, last) = task.marks[0], task.marks[-1]
        took = self._clock() - began
        return max(last - first, 0) / took if took > 0 else None

    def _shown(self, task: _Task) -> dict[str, Any]:
        total, done, speed = task.total, task.done, self._speed(task)
        return {
            "id": task.number, "model": task.repo_id, "drafter": task.drafter, "repos": list(task.repos),
            "state": task.state, "phase": task.phase, "total_bytes": total, "done_bytes": done,
            "progress": 1.0 if task.state == COMPLETED else min(done / total, 0.99) if total else 0.0,
            "bytes_per_second": speed, "seconds_left": (total - done) / speed if speed else None,
            "files": [{"repo": file.repo_id, "name": file.name, "size_bytes": file.size, "done_bytes": file.done}
                      for file in task.files],
            "notes": list(task.notes), "error": task.error, "waiting": task.waiting, "tries": task.tries,
            "created_at": task.created_at, "started_at": task.started_at, "ended_at": task.ended_at,
        }  # fmt: skip


@dataclass(frozen=True)
class _Ears:
    """Hears how one task's files come along; as `transfer.Listener`."""

    task: _Task
    downloads: Downloads

    def reached(self, job: Job, size: int) -> None:
        self.downloads.reached(self.task, job, size)

    def waits(self, job: Job, seconds: float, reason: str) -> None:
        self.downloads.waits(self.task, seconds, reason)


def _fetch(task: _Task, downloads: Downloads) -> None:
    from ...manage.fetching import ask_pair, terms
    from ...models.pull import check_disk, plan, pull
    from ...models.transfer import Stopped

    asked, notes = ask_pair(task.repo_id, task.drafter)
    if task.stop.is_set():
        raise Stopped
    notes += [note for one in asked for note in terms(one.page)]
    plans = [plan(one.page) for one in asked]
    downloads.begin(task, plans, notes)
    check_disk(plans)
    pull(plans, _Ears(task, downloads), task.stop)


def _wrong_state(task: _Task, expected: str) -> ApiError:
    return ApiError(f"download: {task.repo_id} is {task.state}, expected {expected}", status=CONFLICT, param="download")

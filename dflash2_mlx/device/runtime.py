"""The one thread that does all MLX work of the process.

Owns: that thread, its queue of calls, and the jobs it steps in turn. MLX's lazy arrays and streams belong to
the thread that made them, so loading, generating and dropping all happen here; other threads get plain Python
values. Several jobs share the thread fairly, one step each. Knows nothing of models.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

import mlx.core as mx

T = TypeVar("T")
_FORKED = "the MLX owner thread does not survive a fork: start worker processes afresh (spawn)"
_ENDED = "the MLX owner thread has ended: the process is about to exit"
_IDLE_S = 0.05  # how soon a job that waits for its reader is looked at again


class Job(Protocol):
    """Work done in steps."""

    def ready(self) -> bool:
        """False while the reader has fallen behind."""

    def step(self) -> bool:
        """Do one piece; False when there is no more. Must not raise."""


class Owner:
    """The MLX owner thread; use `owner()` to get the process's one."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs: deque[Job] = deque()
        self._idle_jobs: deque[Job] = deque()
        self._last_work = time.monotonic()
        self._stopped = False
        self._pid = os.getpid()
        self._ended = False
        self._ending = threading.RLock()  # no call may slip in behind the thread's last look at its queue
        self._thread = threading.Thread(target=self._run, name="dflash2-mlx", daemon=True)
        self._thread.start()
        # A daemon thread inside MLX while the interpreter goes away would crash it.
        atexit.register(self.stop)

    @property
    def ended(self) -> bool:
        """True once the interpreter is on its way out: iterators that die later have nothing left to cancel."""
        return self._ended

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the owner thread and return its result, or raise its error here.

        Raises:
            RuntimeError: the thread has ended, or this process is a fork of the one that started it.
        """
        self._check_process()
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            if self._ended:
                future.set_exception(RuntimeError(_ENDED))
                return
            self._work()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who asked for the work
                future.set_exception(error)
            finally:
                self._work()

        with self._ending:
            if self._ended:
                raise RuntimeError(_ENDED)
            self._calls.put(run)
        return future.result()

    def post(self, function: Callable[[], None]) -> None:
        """Have `function`, which must not raise, run on the owner thread; do not wait for it.

        For tidying up: unlike a call, it does not count as somebody's wish.
        """
        self._check_process()
        self._calls.put(function)

    def submit(self, job: Job) -> None:
        """Step `job` in turn with the others until it has no more to do."""
        self._check_process()
        self._calls.put(lambda: self._begin(job))

    def submit_idle(self, job: Job) -> None:
        """Step `job` while no other job is there and no call waits; `ready` says whether it has been quiet enough."""
        self._check_process()
        self._calls.put(lambda: self._idle_jobs.append(job))

    @property
    def quiet_s(self) -> float:
        """Seconds since somebody's job or call had anything to do; idle jobs do not count."""
        return 0.0 if self._jobs else time.monotonic() - self._last_work

    def _begin(self, job: Job) -> None:
        self._work()
        self._jobs.append(job)

    def _work(self) -> None:
        self._last_work = time.monotonic()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(_FORKED)

    def stop(self) -> None:
        """Finish the current step and end the thread."""
        self._stopped = True
        self._calls.put(None)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._stopped:
            self._take_calls()
            worked = self._step_jobs()
            if not self._jobs and self._calls.empty():
                worked = self._step_idle_job()
            if not worked and (self._jobs or self._idle_jobs):
                self._await_call()
        self._jobs.clear()
        self._idle_jobs.clear()
        with self._ending:
            self._ended = True
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call()
        mx.clear_streams()  # MLX aborts the process if a stream outlives the thread that made it

    def _step_jobs(self) -> bool:
        """Give each job one step, until a call comes in; False when none was ready."""
        # A method of its own: while the thread waits, no local name may keep a finished job, and with it a
        # session's buffers, alive. The same goes for calls, below.
        worked = False
        for _ in range(len(self._jobs)):
            job = self._jobs.popleft()
            if not job.ready():
                self._jobs.append(job)
                continue
            worked = True
            if job.step():
                self._jobs.append(job)
            self._work()
            if not self._calls.empty() or self._stopped:
                break
        return worked

    def _step_idle_job(self) -> bool:
        """One step of the first of the idle jobs; False when it is not ready, or there is none."""
        if not self._idle_jobs or not self._idle_jobs[0].ready():
            return False
        job = self._idle_jobs.popleft()
        if job.step():
            self._idle_jobs.appendleft(job)
        return True

    def _await_call(self) -> None:
        """Wait a little, or until a call comes."""
        with contextlib.suppress(queue.Empty):
            self._run_call(self._calls.get(timeout=_IDLE_S))

    def _run_call(self, call: Callable[[], None] | None) -> None:
        if call is not None:
            call()

    def _take_calls(self) -> None:
        """Run what was asked for; with no job to step, wait for the next call."""
        while True:
            try:
                call = self._calls.get(block=not self._jobs and not self._idle_jobs)
            except queue.Empty:
                return
            if call is None:
                return
            call()
            del call


@functools.cache
def owner() -> Owner:
    """The owner thread of this process, started at first use."""
    return Owner()

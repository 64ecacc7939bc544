"""Who is served now and who waits: the line of requests, and the threads that read their replies.

Owns: admission in order of arrival with a limit on both sides, the way of one reply's events from its thread into the
event loop, and the watch over replies that stand still. Knows no model and no interface. The replies that run at once
share the MLX owner thread round by round; that is the library's doing. Invariant: a seat is free again only when
nothing of its reply runs any more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..http.errors import QUEUE_FULL, UNAVAILABLE, ApiError
from ..http.wire import EventStream

T = TypeVar("T")


AHEAD = 64  # events a reply may be ahead of the client that reads it


class Seat:
    """One request's place: first in line, then running."""

    def __init__(self, desk: Desk):
        self._desk = desk
        self.called = asyncio.Event()
        self.last_sign: float | None = None  # when its reply last moved; None while nothing of it runs

    @property
    def position(self) -> int:
        """How many are in front of it; 0 when it runs."""
        return self._desk.position(self)

    async def turn(self, wait_s: float) -> bool:
        """Wait for its turn, so long; whether it has come."""
        try:
            await asyncio.wait_for(self.called.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    def leave(self) -> None:
        """Give the place up, in line or running; harmless when done twice."""
        self._desk.leave(self)


@dataclass
class _End:
    error: BaseException | None = None


class Desk:
    """Admits requests in order of arrival.

    Args:
        most_running: replies that share the machine at once.
        most_waiting: requests in line behind them.
        stuck_s: seconds without a sign of life after which a running reply counts as stuck.
    """

    def __init__(self, most_running: int = 8, most_waiting: int = 64, stuck_s: float = 120.0):
        self.most_running, self.most_waiting = most_running, most_waiting
        self._stuck_s = stuck_s
        self._running: set[Seat] = set()
        self._line: deque[Seat] = deque()
        self._closed = False
        self.admitted = 0  # seats that were ever called

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def take(self) -> Seat:
        """Join the line.

        Raises:
            ApiError: the line is full (429), or the server is about to end (503).
        """
        if self._closed:
            raise ApiError("the server is shutting down", status=UNAVAILABLE)
        if self.stuck_for is not None:
            raise ApiError(f"a reply has stood still for {self.stuck_for:.0f} s", status=UNAVAILABLE, code="stuck")
        if len(self._running) >= self.most_running and len(self._line) >= self.most_waiting:
            raise ApiError(
                f"queue: got request {len(self._line) + 1} in line, expected at most {self.most_waiting}: try later",
                status=QUEUE_FULL, code="queue_full",
            )  # fmt: skip
        seat = Seat(self)
        self._line.append(seat)
        self._call_next()
        return seat

    def position(self, seat: Seat) -> int:
        return 0 if seat in self._running else self._line.index(seat) + 1

    def leave(self, seat: Seat) -> None:
        if seat in self._running:
            self._running.remove(seat)
        elif seat in self._line:
            self._line.remove(seat)
        self._call_next()

    @property
    def stuck_for(self) -> float | None:
        """Seconds since the quietest running reply gave a sign of life, when that is too long."""
        signs = [seat.last_sign for seat in self._running if seat.last_sign is not None]
        if not signs:
            return None
        quiet = time.monotonic() - min(signs)
        return quiet if quiet >= self._stuck_s else None

    def close(self) -> None:
        """Admit nobody from now on."""
        self._closed = True

    def _call_next(self) -> None:
        while self._line and len(self._running) < self.most_running:
            seat = self._line.popleft()
            self._running.add(seat)
            self.admitted += 1
            seat.called.set()


async def read(events: Generator[T, None, None], seat: Seat) -> AsyncGenerator[T, None]:
    """The events of one reply or of several in a row, read in a thread of their own; with it the seat is left.

    Closing this iterator cancels the reply: its thread sees it at the next event, so at most one more round than the
    one under way is worked off.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[T | _End] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)
    gone = threading.Event()

    def pass_on(item: T | _End) -> None:
        seat.last_sign = time.monotonic()
        arrived.put_nowait(item)
        if isinstance(item, _End):
            seat.leave()

    def work() -> None:
        end = _End()
        try:
            with closing(events):
                for event in events:
                    room.acquire()
                    if gone.is_set():
                        break
                    loop.call_soon_threadsafe(pass_on, event)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever reads the events
            end.error = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(pass_on, end)

    seat.last_sign = time.monotonic()
    threading.Thread(target=work, name="dflash2-reply", daemon=True).start()
    try:
        while True:
            item = await arrived.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            room.release()
            seat.last_sign = time.monotonic()
            yield item
    finally:
        gone.set()
        room.release()


PLACE_S = 5.0  # how often a waiting client is told its place


class Waiting(Protocol):
    """Something with a place in the server's line."""

    @property
    def position(self) -> int:
        """How many are in front of it; 0 when it runs."""

    async def turn(self, wait_s: float) -> bool:
        """Wait for its turn, so long; whether it has come."""


async def wait_in_line(waiting: Waiting, stream: EventStream) -> None:
    """Wait for a turn, and tell the client its place."""
    while waiting.position:
        await stream.comment(f"queue position {waiting.position}")
        await waiting.turn(PLACE_S)
    await stream.comment("running")

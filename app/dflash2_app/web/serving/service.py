"""What the endpoints share: the models, the line of requests, the counters, and one reply from its request on.

Owns: the order of things for every request that makes text: a place in line, the model in memory, the request checked
against it, the turn, the reply. Knows no interface.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import one_line
from ...settings.paths import Base, find_base
from ..http.errors import INTERNAL, ApiError
from ..http.wire import Limits
from .metrics import Metrics
from .parts import Part
from .pool import ModelPool
from .queue import Desk, Seat, read
from .reply import Outcome, Reply
from .request import Ask
from .source import Served

if TYPE_CHECKING:
    import dflash2_mlx as d2

log = logging.getLogger("dflash2.serve")

Told = tuple[list[Part], "list[d2.TokenLogprob]"]


@dataclass
class Service:
    """Everything a request needs."""

    pool: ModelPool
    desk: Desk
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    load_pinned: bool = True  # at start
    base_path: Path | None = None  # what the command line says of the base folder

    @property
    def connection(self) -> tuple[Limits, asyncio.Event]:
        """What an endpoint of `http` must know: the limits of a request, and the event of the server's end."""
        return self.limits, self.stopping

    def base(self) -> Base:
        """The base folder, found anew each time: `DFLASH2_BASE_PATH` or the default where the command says nothing.

        Raises:
            UsageError: it is no folder.
        """
        return find_base(self.base_path)

    def stop(self) -> None:
        """End what runs and admit nobody: the server is about to end."""
        self.desk.close()
        self.stopping.set()

    @asynccontextmanager
    async def reply(self, model: str, make: Callable[[Served], Ask]) -> AsyncIterator[Running]:
        """A reply in line, its request checked.

        Raises:
            ApiError: unknown model, a request it cannot serve, a full line.
        """
        await self.pool.follow()
        self.pool.check(model)
        seat = self.desk.take()
        running = None
        try:
            async with self.pool.using(model) as served:
                reply = await asyncio.to_thread(lambda: Reply(served, make(served)))
                running = Running(reply, seat, self.metrics)
                yield running
        finally:
            if running is None or not running.began:
                seat.leave()  # later on, the thread that reads the reply leaves it


class Running:
    """One reply of this server, waiting or under way."""

    def __init__(self, reply: Reply, seat: Seat, metrics: Metrics):
        self._reply, self._seat, self._metrics = reply, seat, metrics
        self._since = time.perf_counter()
        self.began = False

    @property
    def position(self) -> int:
        """How many requests are in front of it; 0 when it runs."""
        return self._seat.position

    @property
    def outcome(self) -> Outcome:
        return self._reply.outcome

    @property
    def served(self) -> Served:
        return self._reply.served

    async def turn(self, wait_s: float) -> bool:
        """Wait for this reply's turn, so long; whether it has come."""
        return await self._seat.turn(wait_s)

    async def parts(self) -> AsyncIterator[Told]:
        """Run the reply; what each of its events adds.

        Raises:
            ApiError: the reply failed half-way.
        """
        await self._seat.called.wait()
        self.began = True
        queued_s = time.perf_counter() - self._since
        try:
            async with aclosing(read(self._reply.events, self._seat)) as events:
                async for event in events:
                    yield self._reply.take(event)
                    if self._reply.finished:
                        break
        except Exception as error:
            self._metrics.failed()
            log.exception("a reply of %s failed", self.served.name)
            raise ApiError(
                f"the reply failed: {one_line(str(error)) or type(error).__name__}", status=INTERNAL
            ) from None
        finally:
            self._metrics.count(self.served.name, self._reply, queued_s)

    async def run(self) -> Outcome:
        """Run the reply to its end."""
        async with aclosing(self.parts()) as parts:  # type: ignore[type-var]
            async for _ in parts:
                pass
        return self.outcome

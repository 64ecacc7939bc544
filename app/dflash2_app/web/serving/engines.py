"""The engines in memory: loading, making room, leaving.

Owns: one `Held` per load key, the order of last use, and who is using what. Knows no names; `pool.py` gives them. All
methods belong to the event loop's thread; loading and freeing happen in worker threads, loading one engine at a time.
Invariant: an engine in use is never dropped; one whose settings have moved on goes when its last user leaves.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ...engine.loading import share_prefix_memory
from ...errors import AppError, one_line
from ..http.errors import UNAVAILABLE, ApiError
from .source import Served, Source

log = logging.getLogger("dflash2.serve")


@dataclass
class Held:
    """An engine in memory, or one that was asked for."""

    source: Source  # what loads it
    served: Served | None = None
    users: int = 0
    task: asyncio.Task[Served] | None = None  # while it is being loaded
    last_use: float = 0.0
    problem: str | None = None  # why the last attempt to load failed
    retired: bool = False
    names: set[str] = field(default_factory=set)  # of the sources that used it

    @property
    def loading(self) -> bool:
        return self.task is not None

    @property
    def idle(self) -> bool:
        return self.served is not None and not self.users and not self.loading


class Engines:
    """Loads what is asked for and makes room for it.

    Args:
        most_bytes: weights in memory at once; None sets no limit. A source of unknown size counts nothing. Prefix
            caches share what the models leave of it.
        most_loaded: engines in memory at once; None sets no limit.
        pinned: whether the engine of a key must stay.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        *,
        most_bytes: int | None = None,
        most_loaded: int | None = None,
        pinned: Callable[[Hashable], bool],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._held: dict[Hashable, Held] = {}
        self._leaving: list[Held] = []
        self._most_bytes, self._most_loaded = most_bytes, most_loaded
        self._pinned, self._clock = pinned, clock
        self._lock = asyncio.Lock()  # one load at a time: two could fill the memory together
        self._freed = asyncio.Event()
        self._freeing: set[asyncio.Task[None]] = set()

    def find(self, key: Hashable) -> Held | None:
        return self._held.get(key)

    def items(self) -> list[tuple[Hashable, Held]]:
        return list(self._held.items())

    @property
    def leaving(self) -> list[Held]:
        """Engines in use whose settings have moved on."""
        return list(self._leaving)

    def idle_s(self, held: Held) -> float | None:
        return self._clock() - held.last_use if held.idle else None

    def adopt(self, source: Source, served: Served) -> None:
        """Take an engine that was loaded elsewhere, before anybody asked for it."""
        held = self._held.setdefault(source.key, Held(source))
        held.served, held.last_use = served, self._clock()
        held.names.add(source.name)
        self._share()

    @asynccontextmanager
    async def using(self, source: Source) -> AsyncIterator[Served]:
        """Hold an engine in memory, loading it first if need be.

        Raises:
            ApiError: it cannot be loaded, or no room can be made (503).
        """
        held = self._held.setdefault(source.key, Held(source))
        if held.served is None:
            held.source = source  # the newest settings of this key load it
        held.names.add(source.name)
        held.users += 1  # before waiting, so that nobody unloads it in between
        try:
            yield await self._loaded(held)
        finally:
            held.users -= 1
            held.last_use = self._clock()
            self._let_go(held)

    def retire(self, key: Hashable) -> bool | None:
        """Forget the engine of a key: at once when it is idle (True), else when its last user leaves (False).

        None: there was nothing.
        """
        held = self._held.pop(key, None)
        if held is None or (held.served is None and not held.users and not held.loading):
            return None
        held.retired = True
        self._leaving.append(held)
        return self._let_go(held)

    def drop(self, held: Held) -> None:
        """Take an idle engine out of memory; `freed` says when the memory is back."""
        if held.served is None:
            return
        held.served.stop()
        # A prefix cache that ends first writes what waits for the disk: not on the thread of all requests.
        last, held.served = [held.served], None
        task = asyncio.create_task(asyncio.to_thread(_free, last))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)
        self._share()

    async def freed(self) -> None:
        """Wait until the memory of everything that was dropped is back."""
        await asyncio.gather(*self._freeing)

    def _let_go(self, held: Held) -> bool:
        """Drop a retired engine nobody needs any more."""
        if not held.retired or held.users or held.loading:
            return False
        if held in self._leaving:
            self._leaving.remove(held)
            if held.served is not None:
                log.info("unloaded %s: its settings have changed", held.source.name)
            self.drop(held)
            self._freed.set()
        return True

    async def _loaded(self, held: Held) -> Served:
        if held.served is not None:
            return held.served
        if held.task is None:
            held.task = asyncio.create_task(self._bring(held))
            held.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # asked for by nobody now
        # Shielded: who asked may leave; the load goes on for the next.
        return await asyncio.shield(held.task)

    async def _bring(self, held: Held) -> Served:
        try:
            async with self._lock:
                await self._check(held)
                await self._make_room(held.source)
                return await self._read(held)
        finally:
            held.task = None
            self._let_go(held)

    async def _check(self, held: Held) -> None:
        """Refuse before others are unloaded for nothing."""
        try:
            await asyncio.to_thread(held.source.check)
        except AppError as error:
            held.problem = one_line(str(error))
            raise _cannot(held) from None

    async def _read(self, held: Held) -> Served:
        log.info("loading %s", held.source.name)
        began = time.perf_counter()
        try:
            served = await asyncio.to_thread(held.source.load)
        except Exception as error:  # noqa: BLE001 - the boundary: whoever asked is told, and the server goes on
            held.problem = one_line(str(error)) or type(error).__name__
            log.warning("cannot load %s: %s", held.source.name, held.problem)
            raise _cannot(held) from None
        held.served, held.problem = served, None
        held.last_use = self._clock()
        self._share()
        log.info("loaded %s in %.1f s", held.source.name, time.perf_counter() - began)
        return served

    async def _make_room(self, source: Source) -> None:
        need = source.weight_bytes or 0
        if self._most_bytes is not None and need > self._most_bytes:
            raise ApiError(
                f"model: {source.name} needs {need} bytes, expected at most {self._most_bytes}",
                status=UNAVAILABLE, param="model", code="out_of_memory",
            )  # fmt: skip
        while not self._fits(need):
            idle = [held for key, held in self._held.items() if held.idle and not self._pinned(key)]
            if idle:
                oldest = min(idle, key=lambda held: held.last_use)
                log.info("unloading %s to make room for %s", oldest.source.name, source.name)
                self.drop(oldest)
            elif any(held.served is not None for held in self._leaving):
                self._freed.clear()
                await self._freed.wait()
            else:
                raise ApiError(
                    f"model: no room for {source.name}: every loaded model is in use or pinned",
                    status=UNAVAILABLE, param="model", code="out_of_memory",
                )  # fmt: skip
        await self.freed()

    def _share(self) -> None:
        """Fit the prefix caches to the models that are in memory now."""
        if self._most_bytes is not None:
            loaded = [held.served.pair.loaded for held in self._in_memory() if held.served is not None]
            share_prefix_memory(loaded, self._most_bytes)

    def _in_memory(self) -> list[Held]:
        return [held for held in (*self._held.values(), *self._leaving) if held.served is not None]

    def _fits(self, need: int) -> bool:
        held = self._in_memory()
        if self._most_loaded is not None and len(held) >= self._most_loaded:
            return False
        taken = sum(item.source.weight_bytes or 0 for item in held)
        return self._most_bytes is None or taken + need <= self._most_bytes


def _free(last: list[Any]) -> None:
    # Modules of a model refer to each other in circles. Off meanwhile: a collection of Python's own, on the thread of
    # all requests, could find them first and end the model there.
    gc.disable()
    try:
        last.clear()  # the only references there are
        gc.collect()
    finally:
        gc.enable()


def _cannot(held: Held) -> ApiError:
    return ApiError(
        f"model: {held.source.name} cannot be loaded: {held.problem}",
        status=UNAVAILABLE, param="model", code="model_not_loaded",
    )  # fmt: skip

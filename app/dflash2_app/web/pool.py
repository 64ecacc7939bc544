"""The models a server can answer for: which are in memory, which has to go, and who is using one.

Owns: loading and unloading, the order of last use, pins and idle limits. Knows no request. All methods belong to the
event loop's thread; loading itself happens in a worker thread, one model at a time. Invariant: a model in use is never
unloaded.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import one_line
from .api.errors import CONFLICT, NOT_FOUND, UNAVAILABLE, ApiError
from .served import Served, Source

log = logging.getLogger("dflash2.serve")


@dataclass
class _Entry:
    source: Source
    served: Served | None = None
    users: int = 0
    loading: bool = False
    pinned: bool = False
    ttl_s: float | None = None
    last_use: float = 0.0
    problem: str | None = None  # why the last attempt to load failed


class ModelPool:
    """Loads what is asked for and makes room for it.

    Args:
        sources: every model this server can answer for; the first is the default.
        most_bytes: weights in memory at once; None sets no limit. A source of unknown size counts nothing.
        most_loaded: models in memory at once; None sets no limit.
        ttl_s: idle seconds after which a model is unloaded; None keeps it.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        most_bytes: int | None = None,
        most_loaded: int | None = None,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._entries = {source.name: _Entry(source, ttl_s=ttl_s) for source in sources}
        assert len(self._entries) == len(sources), "two models of one name"
        self._most_bytes, self._most_loaded = most_bytes, most_loaded
        self._clock = clock
        self._lock = asyncio.Lock()  # one load at a time: two could fill the memory together

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def adopt(self, served: Served) -> None:
        """Take a model that was loaded elsewhere, before anybody asked for it."""
        entry = self._find(served.name)
        entry.served, entry.last_use = served, self._clock()

    def check(self, name: str) -> None:
        """Refuse a name nobody knows.

        Raises:
            ApiError: no such model (404).
        """
        self._find(name)

    def peek(self, name: str) -> Served | None:
        """The model if it is in memory; nothing is loaded and its last use stays as it is.

        Raises:
            ApiError: no such model (404).
        """
        return self._find(name).served

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Served]:
        """Hold a model in memory, loading it first if need be.

        Raises:
            ApiError: no such model (404), it cannot be loaded, or no room can be made (503).
        """
        entry = self._find(name)
        entry.users += 1  # before waiting, so that nobody unloads it in between
        try:
            yield await self._loaded(entry)
        finally:
            entry.users -= 1
            entry.last_use = self._clock()

    async def load(self, name: str) -> dict[str, Any]:
        """Load a model now; its status when done."""
        async with self.using(name):
            pass
        return self._status(self._find(name))

    async def unload(self, name: str) -> dict[str, Any]:
        """Drop a model from memory.

        Raises:
            ApiError: no such model (404), or it is in use (409).
        """
        entry = self._find(name)
        if entry.users or entry.loading:
            doing = "being loaded" if entry.loading else f"used by {entry.users} request(s)"
            raise ApiError(f"model: {name} is {doing}, expected an idle one", status=CONFLICT, param="model")
        self._drop(entry)
        return self._status(entry)

    def change(self, name: str, *, pinned: bool | None = None, ttl_s: float | None = None) -> dict[str, Any]:
        """Pin or unpin a model, or set its idle limit (0 removes it)."""
        entry = self._find(name)
        if pinned is not None:
            entry.pinned = pinned
        if ttl_s is not None:
            entry.ttl_s = ttl_s or None
        return self._status(entry)

    def unload_idle(self) -> list[str]:
        """Unload what has been idle beyond its limit; the names of what went."""
        now, gone = self._clock(), []
        for entry in self._entries.values():
            limit = entry.ttl_s
            if self._idle(entry) and not entry.pinned and limit is not None and now - entry.last_use >= limit:
                self._drop(entry)
                gone.append(entry.source.name)
        return gone

    def status(self) -> list[dict[str, Any]]:
        return [self._status(entry) for entry in self._entries.values()]

    def _find(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(self._entries)
            raise ApiError(
                f"model: got {name[:100]!r}, expected one of: {known}",
                status=NOT_FOUND, param="model", code="model_not_found",
            )  # fmt: skip
        return entry

    async def _loaded(self, entry: _Entry) -> Served:
        if entry.served is not None:
            return entry.served
        async with self._lock:
            if entry.served is not None:
                return entry.served
            self._make_room(entry)
            entry.loading = True
            try:
                # Shielded: who asked may leave; the load goes on for the next.
                entry.served = await asyncio.shield(asyncio.create_task(self._read(entry)))
            finally:
                entry.loading = False
            return entry.served

    async def _read(self, entry: _Entry) -> Served:
        log.info("loading %s", entry.source.name)
        began = time.perf_counter()
        try:
            served = await asyncio.to_thread(entry.source.load)
        except Exception as error:  # noqa: BLE001 - the boundary: whoever asked is told, and the server goes on
            entry.problem = one_line(str(error)) or type(error).__name__
            log.warning("cannot load %s: %s", entry.source.name, entry.problem)
            raise ApiError(
                f"model: {entry.source.name} cannot be loaded: {entry.problem}",
                status=UNAVAILABLE, param="model", code="model_not_loaded",
            ) from None  # fmt: skip
        entry.served, entry.problem = served, None
        entry.last_use = self._clock()
        log.info("loaded %s in %.1f s", entry.source.name, time.perf_counter() - began)
        return served

    def _make_room(self, wanted: _Entry) -> None:
        need = wanted.source.weight_bytes or 0
        if self._most_bytes is not None and need > self._most_bytes:
            raise ApiError(
                f"model: {wanted.source.name} needs {need} bytes, expected at most {self._most_bytes}",
                status=UNAVAILABLE, param="model", code="out_of_memory",
            )  # fmt: skip
        while not self._fits(need):
            idle = [entry for entry in self._entries.values() if self._idle(entry) and not entry.pinned]
            if not idle:
                raise ApiError(
                    f"model: no room for {wanted.source.name}: every loaded model is in use or pinned",
                    status=UNAVAILABLE, param="model", code="out_of_memory",
                )  # fmt: skip
            oldest = min(idle, key=lambda entry: entry.last_use)
            log.info("unloading %s to make room for %s", oldest.source.name, wanted.source.name)
            self._drop(oldest)

    def _fits(self, need: int) -> bool:
        held = [entry for entry in self._entries.values() if entry.served is not None]
        if self._most_loaded is not None and len(held) >= self._most_loaded:
            return False
        return (
            self._most_bytes is None or sum(item.source.weight_bytes or 0 for item in held) + need <= self._most_bytes
        )

    def _idle(self, entry: _Entry) -> bool:
        return entry.served is not None and not entry.users and not entry.loading

    def _drop(self, entry: _Entry) -> None:
        entry.served = None
        gc.collect()  # modules of a model refer to each other in circles

    def _status(self, entry: _Entry) -> dict[str, Any]:
        served = entry.served
        report = {
            "effective_engine": None, "dflash_requested": None, "dflash_active": None, "dflash_fallback_reason": None,
        } if served is None else asdict(served.report)  # fmt: skip
        return {
            "id": entry.source.name,
            "loaded": served is not None,
            "is_loading": entry.loading,
            "pinned": entry.pinned,
            "ttl_seconds": entry.ttl_s,
            "idle_seconds": round(self._clock() - entry.last_use, 3) if self._idle(entry) else None,
            "active_requests": entry.users,
            "weight_bytes": entry.source.weight_bytes,
            "context_length": None if served is None else served.engine.context_length,
            "block_size": None if served is None else served.engine.block_size,
            "problem": entry.problem,
            **report,
        }

"""The models a server can answer for, by name: what is loaded, pinned, changed and refused.

Owns: the way from a request's name to an engine in memory, and what follows from settings that change while the server
runs. Knows no request. All methods belong to the event loop's thread. Engines themselves are `engines.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..http.errors import CONFLICT, NOT_FOUND, ApiError
from .catalogue import Offered, Offers
from .engines import Engines, Held
from .naming import Names, shown_name
from .source import Served, Source

log = logging.getLogger("dflash2.serve")
MOST_NAMED = 20  # models that a refusal lists


@dataclass(frozen=True)
class Refreshed:
    """What looking at the settings (or the model folders) again has changed, by model name.

    Args:
        changed: their settings differ; what is not of the engine holds from the next request on.
        requires_reload: loaded otherwise than they are configured now.
        auto_unloaded: of these, unloaded at once, since nobody used them.
        auto_reloaded: of these, pinned, and being loaded again.

    What requires a reload and was not unloaded is in use: it goes when the last reply ends. The next request loads
    what is configured.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    requires_reload: tuple[str, ...] = ()
    auto_unloaded: tuple[str, ...] = ()
    auto_reloaded: tuple[str, ...] = ()

    def of(self, *names: str) -> dict[str, bool]:
        """oMLX's words for one model, or for one and its profiles."""
        words = {
            "requires_reload": self.requires_reload,
            "auto_unloaded": self.auto_unloaded,
            "auto_reloaded": self.auto_reloaded,
        }
        return {word: not set(names).isdisjoint(found) for word, found in words.items()}


class ModelPool:
    """Loads what is asked for, under the settings that hold now.

    Args:
        sources: every model this server can answer for; the first is the default. A catalogue has its own.
        catalogue: offers models by settings that may change.
        most_bytes, most_loaded: of what is in memory at once, see `Engines`.
        ttl_s: idle seconds after which any model is unloaded, whatever its settings say.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        sources: Sequence[Source] = (),
        *,
        catalogue: Offers | None = None,
        most_bytes: int | None = None,
        most_loaded: int | None = None,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._catalogue, self._ttl_s = catalogue, ttl_s
        self._engines = Engines(
            most_bytes=most_bytes, most_loaded=most_loaded, pinned=self._key_pinned, clock=clock
        )  # fmt: skip
        self._wishes: dict[str, dict[str, Any]] = {}  # what `change` was told, by model
        self._refreshing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._offer(Offered(tuple(sources)) if catalogue is None else catalogue.offered)

    def _offer(self, offered: Offered) -> None:
        self._offered = offered
        self._sources: dict[str, Source] = {}
        for source in offered.sources:
            self._sources.setdefault(source.name, source)  # a profile may bear the name of a model
        self._names = Names(list(self._sources.values()))

    # What is offered.

    @property
    def names(self) -> list[str]:
        """The models that lists show, as they call them."""
        return [shown_name(source) for source in self._sources.values() if not source.card.is_hidden]

    @property
    def default(self) -> str | None:
        """The name of the default model, None when nothing is offered."""
        return next(iter(self._sources), None)

    @property
    def notes(self) -> list[str]:
        """What is to be known of the settings files and the model folders."""
        return list(self._offered.notes)

    @property
    def left_out(self) -> dict[str, str]:
        """Models on this machine that cannot be offered, and why."""
        return dict(self._offered.left_out)

    def find(self, name: str) -> Source:
        """The model that a name means.

        Raises:
            ApiError: no such model (404).
        """
        found = self._names.find(name)
        if found is not None:
            return self._sources[found]
        if self._offered.fallback and self.default is not None:
            return self._sources[self.default]
        reason = self._offered.left_out.get(name)
        known = self.names
        more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
        expected = f"one of: {', '.join(known[:MOST_NAMED])}{more}" if reason is None else f"another one: {reason}"
        raise ApiError(
            f"model: got {name[:100]!r}, expected {expected}",
            status=NOT_FOUND, param="model", code="model_not_found",
        )  # fmt: skip

    def check(self, name: str) -> None:
        """Refuse a name nobody knows.

        Raises:
            ApiError: no such model (404).
        """
        self.find(name)

    # What is in memory.

    def peek(self, name: str) -> Served | None:
        """The model if it is in memory; nothing is loaded and its last use stays as it is.

        Raises:
            ApiError: no such model (404).
        """
        source = self.find(name)
        held = self._engines.find(source.key)
        return None if held is None or held.served is None else source.view(held.served)

    def adopt(self, served: Served) -> None:
        """Take a model that was loaded elsewhere, before anybody asked for it."""
        self._engines.adopt(self._sources[served.name], served)

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Served]:
        """Hold a model in memory under its present settings, loading it first if need be.

        Raises:
            ApiError: no such model (404), it cannot be loaded, or no room can be made (503).
        """
        await self.follow()
        source = self.find(name)
        async with self._engines.using(source) as served:
            view = source.view(served)
            if self._names.find(name) is None:
                told = f"model: {name[:100]!r} is not known here: the default model {source.name} was used"
                view = replace(view, notes=(*view.notes, told))
            yield view

    async def load(self, name: str) -> dict[str, Any]:
        """Load a model now; its status when done."""
        async with self.using(name):
            pass
        return self._status(self.find(name))

    async def load_pinned(self) -> None:
        """Load every pinned model; one that cannot be loaded is logged and shown in the status."""
        for source in list(self._sources.values()):
            if self._pinned(source):
                await self._load_again(source.name)

    async def unload(self, name: str) -> dict[str, Any]:
        """Drop a model from memory.

        Raises:
            ApiError: no such model (404), or it is in use (409).
        """
        source = self.find(name)
        held = self._engines.find(source.key)
        if held is not None and (held.users or held.loading):
            doing = "being loaded" if held.loading else f"used by {held.users} request(s)"
            raise ApiError(f"model: {source.name} is {doing}, expected an idle one", status=CONFLICT, param="model")
        if held is not None:
            self._engines.drop(held)
            await self._engines.freed()
        return self._status(source)

    async def reload(self, name: str) -> dict[str, Any]:
        """Load a model anew where it is loaded; replies under way end on what they began with."""
        await self.follow()
        source = self.find(name)
        if self._engines.retire(source.key) is None:
            return self._status(source)
        return await self.load(source.name)

    def change(self, name: str, *, pinned: bool | None = None, ttl_s: float | None = None) -> dict[str, Any]:
        """Pin or unpin a model, or set its idle limit (0 removes it), until its settings say otherwise."""
        source = self.find(name)
        wishes = self._wishes.setdefault(source.card.base or source.name, {})
        if pinned is not None:
            wishes["pinned"] = pinned
        if ttl_s is not None:
            wishes["ttl_s"] = ttl_s or None
        return self._status(source)

    def unload_idle(self) -> list[str]:
        """Unload what has been idle beyond its limit; the names of what went."""
        gone = []
        for key, held in self._engines.items():
            idle_s, limit = self._engines.idle_s(held), self._ttl(held)
            if idle_s is not None and limit is not None and idle_s >= limit and not self._key_pinned(key):
                self._engines.drop(held)
                gone.append(held.source.name)
        return gone

    # What changes.

    async def follow(self) -> None:
        """Notice settings that have changed; cheap when none have. Every request begins with this."""
        if self._catalogue is not None and self._catalogue.changed():
            await self.refresh()

    async def refresh(self, *, rescan: bool = False) -> Refreshed:
        """Look at the settings again, and act on what has changed.

        Args:
            rescan: look through the model folders as well: a model was added or removed.
        """
        if self._catalogue is None:
            return Refreshed()
        async with self._refreshing:
            if not rescan and not self._catalogue.changed():
                return Refreshed()
            offered = await asyncio.to_thread(self._catalogue.read, rescan=rescan)
            return self._adapt(offered)

    def _adapt(self, offered: Offered) -> Refreshed:
        before = self._sources
        self._offer(offered)
        after = self._sources
        kept = [name for name in after if name in before]
        changed = [name for name in kept if after[name] != before[name]]
        for name in changed:
            if before[name].card.is_pinned != after[name].card.is_pinned:
                self._wishes.get(name, {}).pop("pinned", None)
            if before[name].card.ttl_s != after[name].card.ttl_s:
                self._wishes.get(name, {}).pop("ttl_s", None)
        was_held = {key for key, held in self._engines.items() if held.served is not None or held.users}
        outcome = self._retire_unwanted()
        moved = [name for name in kept if before[name].key != after[name].key and before[name].key in was_held]
        again = [name for name in moved if self._pinned(after[name])]
        for name in again:
            task = asyncio.create_task(self._load_again(name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return Refreshed(
            added=tuple(name for name in after if name not in before),
            removed=tuple(name for name in before if name not in after),
            changed=tuple(changed),
            requires_reload=tuple(moved),
            auto_unloaded=tuple(name for name in moved if outcome.get(before[name].key)),
            auto_reloaded=tuple(again),
        )

    def _retire_unwanted(self) -> dict[Hashable, bool]:
        """Engines that no model is configured for any more, and whether they went at once."""
        wanted = {source.key for source in self._sources.values()}
        gone = {key: self._engines.retire(key) for key, _ in self._engines.items() if key not in wanted}
        return {key: done for key, done in gone.items() if done is not None}

    async def _load_again(self, name: str) -> None:
        try:
            await self.load(name)
        except ApiError as error:
            log.warning("%s", error.message)

    # What is known of each.

    def status(self) -> list[dict[str, Any]]:
        return [self._status(source) for source in self._sources.values()]

    def tuning(self) -> list[dict[str, Any]]:
        """What is tuned in the background, or was, of the engines in memory."""
        served = (held.served for _, held in self._engines.items())
        return [one.tuning for one in served if one is not None and one.tuning is not None]

    def state(self, name: str) -> dict[str, Any]:
        """One model's entry of `status`.

        Raises:
            ApiError: no such model (404).
        """
        return self._status(self.find(name))

    def _pinned(self, source: Source) -> bool:
        return bool(self._wishes.get(source.card.base or source.name, {}).get("pinned", source.card.is_pinned))

    def _key_pinned(self, key: Hashable) -> bool:
        return any(self._pinned(source) for source in self._sources.values() if source.key == key)

    def _ttl(self, held: Held) -> float | None:
        return self._source_ttl(self._sources.get(held.source.name, held.source))

    def _source_ttl(self, source: Source) -> float | None:
        wishes = self._wishes.get(source.card.base or source.name, {})
        if "ttl_s" in wishes:
            return wishes["ttl_s"]
        return source.card.ttl_s if self._ttl_s is None else self._ttl_s

    def _status(self, source: Source) -> dict[str, Any]:
        card, held, served = source.card, self._engines.find(source.key), self.peek(source.name)
        idle_s = None if held is None else self._engines.idle_s(held)
        report = {
            "effective_engine": None, "dflash_requested": card.dflash_requested, "dflash_active": None,
            "dflash_fallback_reason": None, "notes": list(card.notes),
        } if served is None else served.report.to_dict()  # fmt: skip
        return {
            "id": shown_name(source),
            "name": source.name,
            "model_id": card.model_id,
            "alias": card.alias,
            "profile": card.profile,
            "base": card.base,
            "display_name": card.display_name,
            "description": card.description,
            "is_default": source.name == self.default,
            "is_hidden": card.is_hidden,
            "is_favorite": card.is_favorite,
            "loaded": served is not None,
            "is_loading": held is not None and held.loading,
            "requires_reload": any(source.name in item.names for item in self._engines.leaving),
            "pinned": self._pinned(source),
            "ttl_seconds": self._source_ttl(source),
            "idle_seconds": None if idle_s is None else round(idle_s, 3),
            "active_requests": 0 if held is None else held.users,
            "weight_bytes": source.weight_bytes,
            "context_length": None if served is None else served.engine.context_length,
            "block_size": None if served is None else served.pair.block_size or served.engine.block_size,
            "problem": card.problem or (None if held is None else held.problem),
            "settings": {name: dict(value) for name, value in card.settings.items()},
            **report,
        }

"""`/api/downloads`: the Hub's search and pages, and the queue of downloads."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...manage.fetching import NO_DRAFTER
from ..http.endpoint import Work
from ..http.errors import NOT_FOUND, ApiError, refuse
from ..http.wire import EventStream, Frame, json_response
from ..serving.service import Service
from .downloads import Downloads
from .reading import Query, body_fields, in_thread, model_name

MOST_FOUND = 100


CARD_S = 600.0  # how long what the Hub said of a model is taken for true


MOST_CARDS = 200


class DownloadsApi:
    """Endpoints as methods of one object."""

    def __init__(self, service: Service, downloads: Downloads):
        self._service, self._downloads = service, downloads
        self._cards: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/api/downloads", self.every, methods=["GET"]),
            Route("/api/downloads", self.add, methods=["POST"]),
            Route("/api/downloads/search", self.search, methods=["GET"]),
            Route("/api/downloads/card", self.card, methods=["GET"]),
            Route("/api/downloads/clear", self.clear, methods=["POST"]),
            Route("/api/downloads/{number}/{verb}", self.act, methods=["POST"]),
        ]

    async def every(self, request: Request) -> Response:
        Query(request).finish()
        return json_response({**self._downloads.status(), **await in_thread(_disk)})

    async def add(self, request: Request) -> Response:
        from ...models.cache import is_hub_id

        fields = await body_fields(request, self._service.limits)
        model, drafter = model_name(fields.text("model")), fields.text("drafter")
        fields.finish()
        for name, value in (("model", model), ("drafter", drafter)):
            if value is not None and not is_hub_id(value) and (name, value) != ("drafter", NO_DRAFTER):
                expected = "a Hub id like owner/name" + (f" or {NO_DRAFTER!r}" if name == "drafter" else "")
                raise refuse(name, value, expected)
        return json_response(self._downloads.add(model, drafter))

    async def act(self, request: Request) -> Response:
        """Cancel, retry or remove one download."""
        fields = await body_fields(request, self._service.limits)
        fields.finish()
        number, verb = request.path_params["number"], request.path_params["verb"]
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise refuse("download", number, "a number of the list", status=NOT_FOUND)
        if verb == "cancel":
            return json_response(self._downloads.cancel(int(number)))
        if verb == "retry":
            return json_response(self._downloads.retry(int(number)))
        if verb == "remove":
            self._downloads.remove(int(number))
            return json_response({"removed": int(number)})
        raise ApiError(f"path: got {verb[:100]!r}, expected cancel, retry or remove", status=NOT_FOUND)

    async def clear(self, request: Request) -> Response:
        fields = await body_fields(request, self._service.limits)
        fields.finish()
        return json_response({"removed": self._downloads.clear()})

    async def search(self, request: Request) -> Response:
        from ...models import hub

        query = Query(request)
        text, author, tags = query.text("text"), query.text("author"), query.texts("tag")
        any_format = query.boolean("any_format")
        sort = query.one_of("sort", "downloads", tuple(hub.SORTS))
        limit = query.integer("limit", 20, 1, MOST_FOUND)
        query.finish()
        asked = [*tags, *([] if any_format else ["mlx"])]

        def work() -> dict[str, Any]:
            found = hub.search(text, author=author, tags=asked, sort=sort, limit=limit)
            return {"models": [_found(item) for item in found], "endpoint": hub.endpoint()}

        return json_response(await in_thread(work))

    async def card(self, request: Request) -> Response:
        """What there is to know of a model before it is fetched."""
        from ...models.memory import DEFAULT_CONTEXT

        query = Query(request)
        name = model_name(query.text("name"), "name")
        context = query.integer("context", DEFAULT_CONTEXT, 1, 10**7)
        query.finish()
        now = time.monotonic()
        held = self._cards.get((name, context))
        if held is None or now - held[0] > CARD_S:
            card = await in_thread(lambda: _card(name, context), missing=True)
            while len(self._cards) >= MOST_CARDS:
                del self._cards[next(iter(self._cards))]
            self._cards.pop((name, context), None)
            held = self._cards[name, context] = (now, card)
        # What lies here changes while the Hub's part stays.
        here = await in_thread(lambda: _here(held[1]))
        return json_response({**held[1], **here, **await in_thread(_disk)})


def _found(item: Any) -> dict[str, Any]:
    from ...models.discover import local_config
    from ...models.registry import is_non_commercial

    return {
        "name": item.repo_id, "downloads": item.downloads, "likes": item.likes, "updated": item.updated,
        "license": item.license, "non_commercial": is_non_commercial(item.license), "gated": item.gated,
        "tags": list(item.tags), "here": local_config(item.repo_id) is not None,
    }  # fmt: skip


def _disk() -> dict[str, Any]:
    from ...models.places import hub_cache
    from ...models.pull import SPARE_BYTES, free_bytes

    return {"hub_cache": str(hub_cache()), "free_bytes": free_bytes(hub_cache()), "spare_bytes": SPARE_BYTES}


def _card(name: str, context: int) -> dict[str, Any]:
    """The Hub's part, for the model and the drafter that would come along."""
    from ...manage.details import facts_of, look
    from ...manage.fetching import terms
    from ...models import hub
    from ...models.registry import is_non_commercial

    looked = look(name, None)
    facts = facts_of(looked, context)
    assert looked.page is not None
    card = {
        **facts,
        "terms": terms(looked.page),
        "non_commercial": is_non_commercial(looked.page.license),
        "tags": list(looked.page.tags),
        "hub_url": f"{hub.endpoint()}/{name}",
        "with_drafter": None,
    }
    if facts["drafter"] is not None:
        card["with_drafter"] = _drafter(facts["drafter"], facts["drafter_reason"])
    return card


def _drafter(name: str, reason: str) -> dict[str, Any]:
    from ...errors import AppError
    from ...manage.fetching import terms
    from ...models import hub
    from ...models.pull import plan
    from ...models.registry import find_drafter, is_non_commercial

    known = find_drafter(name)
    shown: dict[str, Any] = {"name": name, "reason": reason, "size_bytes": None, "license": None, "gated": None,
                             "non_commercial": False, "terms": [], "problem": None}  # fmt: skip
    try:
        page = hub.read_page(name)
        shown |= {"size_bytes": plan(page).size, "license": page.license, "gated": page.gated,
                  "non_commercial": is_non_commercial(page.license), "terms": terms(page)}  # fmt: skip
    except AppError as error:
        shown["problem"] = str(error)
    if known is not None and known.licence_note() and not shown["terms"]:
        shown |= {"terms": [known.licence_note()], "non_commercial": known.non_commercial}
    return shown


def _here(card: dict[str, Any]) -> dict[str, Any]:
    """What of a model and its drafter is on this machine already, and what is still to come."""
    from ...models.cache import cached_repo
    from ...models.discover import local_config

    def left(name: str, size: int | None) -> int | None:
        repo = cached_repo(name)
        if repo.current() is not None:
            return 0
        begun = sum(path.stat().st_size for path in repo.partials()) if repo.folder.is_dir() else 0
        return None if size is None else max(size - begun, 0)

    drafter = card["with_drafter"]
    name = card["name"]
    found: dict[str, Any] = {"here": local_config(name) is not None, "left_bytes": left(name, card["size_bytes"])}
    if drafter is not None:
        here, more = local_config(drafter["name"]) is not None, left(drafter["name"], drafter["size_bytes"])
        found["with_drafter"] = {**drafter, "here": here, "left_bytes": more}
    return found


LOOK_S = 0.25


class _Left(Exception):
    """Nobody waits for the check any more."""


class Live:
    """What `/api/models/events` and `/api/models/verify` tell."""

    def __init__(self, service: Service, downloads: Downloads):
        self._service, self._downloads = service, downloads

    async def changes(self, request: Request) -> AsyncGenerator[Frame, None]:
        """What changes in memory ("models": the pool's states) and in the queue ("downloads")."""
        Query(request).finish()
        states, version = "", -1
        while True:
            now = self._service.pool.status()
            key = json.dumps([{**state, "idle_seconds": None} for state in now], default=str, sort_keys=True)
            if key != states:
                states = key
                yield Frame({"models": now}, "models")
            if self._downloads.version != version:
                version = self._downloads.version
                yield Frame(self._downloads.status(), "downloads")
            await asyncio.sleep(LOOK_S)

    async def verify(self, request: Request) -> Work:
        """Read a model's files and compare: "progress" while it does, "result" at the end."""
        fields = await body_fields(request, self._service.limits)
        name = model_name(fields.text("name"), "name")
        delete = fields.boolean("delete_damaged") or False
        fields.finish()

        async def work(stream: EventStream) -> None:
            await _tell(name, delete, stream)

        return work


async def _tell(name: str, delete: bool, stream: EventStream) -> None:
    left, reached = threading.Event(), {"file": "", "done": 0, "size": 0}

    def watch(file: str, done: int, size: int) -> None:
        if left.is_set():
            raise _Left
        reached.update(file=file, done=done, size=size)

    task = asyncio.ensure_future(in_thread(lambda: _verify(name, delete, watch), missing=True))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            if not task.done() and reached["file"]:
                await stream.frames(Frame(dict(reached), "progress"))
        await stream.frames(Frame(task.result(), "result"))
    finally:
        left.set()
        if not task.done():
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _verify(name: str, delete: bool, watch: Any) -> dict[str, Any]:
    from ...manage.listing import hub_hashes
    from ...models import verify as checks

    result = checks.verify(name, watch, hub_hashes(name))
    deleted = checks.delete_damaged(result) if delete and not result.good else 0
    return {**result.to_dict(), "deleted_files": deleted}

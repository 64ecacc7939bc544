"""`/api/models`: the models of this machine beside what this server has of them; details, removal, checks.

Owns: the merge of what lies on disk with what is in memory, and which models may not be removed. Disk and Hub are asked
in threads; the pool in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...errors import UsageError
from ...settings.files import SettingsError
from ...settings.paths import Base
from ...settings.store import Settings, Store
from ..http.endpoint import Connected, following
from ..http.errors import CONFLICT, ApiError
from ..http.wire import json_response
from ..serving.service import Service
from .downloads import Downloads
from .downloads_api import DownloadsApi, Live
from .reading import Query, body_fields, in_thread, model_name
from .settings_api import SettingsApi

if TYPE_CHECKING:
    from ...models.discover import Discovery, LocalModel
    from ...models.remove import Removal

MOST_CONTEXT = 10**7


class ManagerApi:
    """Endpoints as methods of one object.

    Args:
        fetching: the Hub ids that a download works on.
    """

    def __init__(self, service: Service, fetching: Callable[[], list[str]]):
        self._service, self._fetching = service, fetching

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/api/models", self.every, methods=["GET"]),
            Route("/api/models/details", self.details, methods=["GET"]),
            Route("/api/models/removal", self.removal, methods=["GET"]),
            Route("/api/models/remove", self.remove, methods=["POST"]),
        ]

    async def every(self, request: Request) -> Response:
        from ...models.memory import DEFAULT_CONTEXT

        query = Query(request)
        context = query.integer("context", DEFAULT_CONTEXT, 1, MOST_CONTEXT)
        query.finish()
        found = await in_thread(lambda: _survey(context, self._service.base()))
        left_out = self._service.pool.left_out
        # A profile that is offered as a model is its model's, not one of its own.
        states = [state for state in self._service.pool.status() if not state.get("profile")]
        for model in found["models"]:
            state = next((state for state in states if _means(state, model)), None)
            model["served_as"], model["state"] = state and state["id"], state
            model["not_offered"] = None if state else left_out.get(model["name"]) or left_out.get(model["id"])
            states = [one for one in states if one is not state]
        found["only_served"] = states
        return json_response(found)

    async def details(self, request: Request) -> Response:
        from ...models.memory import DEFAULT_CONTEXT

        query = Query(request)
        name = model_name(query.text("name"), "name")
        context = query.integer("context", DEFAULT_CONTEXT, 1, MOST_CONTEXT)
        query.finish()
        return json_response(await in_thread(lambda: _details(name, context, self._service.base()), missing=True))

    async def removal(self, request: Request) -> Response:
        """What removing a model would free, for the question before it."""
        query = Query(request)
        name = model_name(query.text("name"), "name")
        query.finish()
        removal = await in_thread(lambda: _plan_removal(name, self._service.base()), missing=True)
        return json_response({**_removal(name, removal), "in_use": await self._in_use(name)})

    async def remove(self, request: Request) -> Response:
        from ...models.remove import execute

        fields = await body_fields(request, self._service.limits)
        name = model_name(fields.text("name"), "name")
        fields.finish()
        removal = await in_thread(lambda: _plan_removal(name, self._service.base()), missing=True)
        reason = await self._in_use(name)
        if reason is not None:
            raise ApiError(f"name: {name} {reason}, expected an idle one", status=CONFLICT, param="name")
        for state in self._states_of(name, await in_thread(lambda: _discovered(self._service.base()))):
            if state["loaded"]:
                await self._service.pool.unload(state["id"])
        await in_thread(lambda: execute(removal))
        await self._service.pool.refresh(rescan=True)
        return json_response({**_removal(name, removal), "removed": True})

    async def _in_use(self, name: str) -> str | None:
        """Why a model may not be removed now, or None."""
        if name in self._fetching():
            return "is being downloaded"
        found = await in_thread(lambda: _discovered(self._service.base()))
        for state in self._states_of(name, found):
            if state["active_requests"] or state["is_loading"]:
                return "is being loaded" if state["is_loading"] else f"is used by {state['active_requests']} request(s)"
        loaded = [state["id"] for state in self._service.pool.status() if state["loaded"] or state["is_loading"]]
        owner = await in_thread(lambda: _drafted_by(name, loaded, found, self._service.base()))
        return None if owner is None else f"is the drafter of {owner}, which is loaded"

    def _states_of(self, name: str, found: Discovery) -> list[dict[str, Any]]:
        model = found.find(name)
        about = {"name": name, "id": name, "path": name}
        if model is not None:
            about = {"name": model.name, "id": model.model_id, "path": str(model.path)}
        return [state for state in self._service.pool.status() if _means(state, about)]


def _means(state: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Whether a model of the pool is this one of the machine; what it is called there depends on how it was named."""
    names = {str(model["name"]), str(model["id"]), str(model["path"]).rsplit("/", 1)[-1]}
    return not names.isdisjoint({state["id"], state.get("name"), state.get("model_id")})


def _discovered(base: Base) -> Discovery:
    from ...models.discover import discover
    from ...models.places import find_places

    return discover(find_places(base.folder))


def _survey(context: int, base: Base) -> dict[str, Any]:
    from ...manage.listing import listed
    from ...models.places import hub_cache
    from ...models.pull import free_bytes

    found = _discovered(base)
    settings, notes = _settings(base)
    models = [{**listed(model, context), **_configured(settings, model)} for model in found.models]
    models.sort(key=lambda model: (not model["is_favorite"], model["kind"] != "target", model["id"].lower()))
    return {
        "models": models,
        "notes": [*found.notes, *notes],
        "context": context,
        "hub_cache": str(hub_cache()),
        "free_bytes": free_bytes(hub_cache()),
        "settings_problem": notes[0] if settings is None else None,
    }


def _settings(base: Base) -> tuple[Settings | None, list[str]]:
    """The settings files; None and the reason where one of them cannot be read."""
    try:
        found = Store(base).load()
    except SettingsError as error:
        return None, [str(error)]
    return found, list(found.notes)


def _configured(settings: Settings | None, model: LocalModel) -> dict[str, Any]:
    """What the settings say of a model, as far as a list shows it."""
    from ...engine.setup import outlook
    from ...settings.names import find_model

    plain = {"settings_id": model.model_id, "configured": False, "is_default": False, "alias": None,
             "display_name": None, "description": None, "is_hidden": False, "is_favorite": False,
             "dflash_requested": None, "dflash_fallback_reason": None, "draft_model": None}  # fmt: skip
    if settings is None or model.facts.kind != "target":
        return plain
    named = find_model(settings, model.name)
    effective, plan, _ = outlook(settings, named, os.environ)
    return {
        "settings_id": named.model_id,
        "configured": named.known,
        "is_default": settings.default_model == named.model_id,
        "alias": effective["model_alias"],
        "display_name": effective["display_name"],
        "description": effective["description"],
        "is_hidden": effective["is_hidden"],
        "is_favorite": effective["is_favorite"],
        "dflash_requested": plan.requested,
        "dflash_fallback_reason": plan.fallback_reason,
        "draft_model": plan.drafter,
    }


def _details(name: str, context: int, base: Base) -> dict[str, Any]:
    from ...manage.details import facts_of, look

    looked = look(name, _discovered(base).find(name))
    page = looked.page
    return {
        **facts_of(looked, context),
        "notes": list(looked.notes),
        "tags": list(page.tags) if page else [],
        "files": [{"name": file.name, "size_bytes": file.size} for file in page.files] if page else [],
        "hub_url": _hub_url(name) if page else None,
    }


def _hub_url(repo_id: str) -> str:
    from ...models import hub

    return f"{hub.endpoint()}/{repo_id}"


def _plan_removal(name: str, base: Base) -> Removal:
    from ...models.cache import is_hub_id
    from ...models.remove import plan_removal

    found = _discovered(base).find(name)
    if found is not None and found.source != "hub":
        raise UsageError(f"name: got {name!r}, a folder of your own, expected a model of the Hub cache")
    repo_id = name if found is None else found.name
    if not is_hub_id(repo_id):
        raise UsageError(f"name: got {name!r}, expected a model of the Hub cache, like owner/name")
    return plan_removal(repo_id)


def _removal(name: str, removal: Removal) -> dict[str, Any]:
    return {"name": name, "commits": removal.commits, "freed_bytes": removal.size}


def _drafted_by(name: str, loaded: list[str], found: Discovery, base: Base) -> str | None:
    """The loaded model that has `name` as its drafter, by the settings."""
    from ...engine.setup import outlook
    from ...settings.names import find_model

    settings, _ = _settings(base)
    model = found.find(name)
    names = {name} if model is None else {name, model.name, str(model.path)}
    for served in loaded if settings is not None else ():
        assert settings is not None
        _, plan, _ = outlook(settings, find_model(settings, served), os.environ)
        if plan.drafter in names:
            return served
    return None


log = logging.getLogger("dflash2.serve")


class Manager:
    """Everything under `/api/models`, `/api/settings` and `/api/downloads`."""

    def __init__(self, service: Service):
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self.downloads = Downloads(self._downloaded)

    def routes(self) -> list[BaseRoute]:
        live = Live(self._service, self.downloads)
        return [
            # Before the models' own: a path is taken by the first that matches.
            Route(
                "/api/models/events",
                following(*self._service.connection, live.changes),
                methods=["GET"],
            ),
            Route(
                "/api/models/verify",
                Connected(*self._service.connection, live.verify),
                methods=["POST"],
            ),
            *ManagerApi(self._service, self.downloads.working_on).routes(),
            *SettingsApi(self._service).routes(),
            *DownloadsApi(self._service, self.downloads).routes(),
        ]

    def start(self) -> None:
        """Called in the event loop's thread, before the first request."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Stop downloads; what has come is kept."""
        self.downloads.close()
        self._loop = None

    def _downloaded(self) -> None:
        """A download has ended well; called in the queue's thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._service.pool.refresh(rescan=True), loop)

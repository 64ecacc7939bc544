"""`/api/settings`: what is configured, in oMLX's files and words; the same checks as `dflash2-mlx settings`.

Owns: the endpoints of values and profiles. The rules are `settings/`'s and `manage/`'s; files are read anew for every
request, as other programs write them too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...settings.store import Store
from ..http.errors import BAD_REQUEST, ApiError, refuse
from ..http.wire import json_response
from ..serving.pool import ModelPool
from ..serving.service import Service
from .reading import Query, body_fields, in_thread, model_name

if TYPE_CHECKING:
    from ...manage.changes import Change
    from ...settings.names import Named
    from ...settings.store import Settings

MOST_VALUES = 200


class SettingsApi:
    """Endpoints as methods of one object."""

    def __init__(self, service: Service):
        self._service = service

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/api/settings", self.overview, methods=["GET"]),
            Route("/api/settings/schema", self.schema, methods=["GET"]),
            Route("/api/settings/model", self.model, methods=["GET"]),
            Route("/api/settings/check", self.check, methods=["POST"]),
            Route("/api/settings/save", self.save, methods=["POST"]),
            Route("/api/settings/preset", self.preset, methods=["POST"]),
            Route("/api/settings/recover", self.recover, methods=["POST"]),
            Route("/api/settings/profiles", self.profiles, methods=["GET"]),
            Route("/api/settings/profiles/save", self.save_profile, methods=["POST"]),
            Route("/api/settings/profiles/apply", self.apply_profile, methods=["POST"]),
            Route("/api/settings/profiles/remove", self.remove_profile, methods=["POST"]),
            Route("/api/settings/profiles/rename", self.rename_profile, methods=["POST"]),
            Route("/api/settings/profiles/expose", self.expose_profile, methods=["POST"]),
        ]

    async def overview(self, request: Request) -> Response:
        from ...manage.forms import overview

        Query(request).finish()
        return json_response(await in_thread(lambda: overview(self._store().load())))

    async def schema(self, request: Request) -> Response:
        from ...manage.forms import schema

        Query(request).finish()
        return json_response({"groups": schema()})

    async def model(self, request: Request) -> Response:
        query = Query(request)
        name = model_name(query.text("name"), "name")
        query.finish()
        return json_response(await in_thread(lambda: _form(self._store(), name), missing=True))

    async def check(self, request: Request) -> Response:
        """What saving would do; nothing is written."""
        name, values = await self._change_fields(request)
        await in_thread(lambda: _find(self._store(), name), missing=True)
        change = await in_thread(lambda: _check(self._store(), name, values))
        return json_response(_shown(change))

    async def save(self, request: Request) -> Response:
        from ...manage.changes import omlx_note

        name, values = await self._change_fields(request)
        await in_thread(lambda: _find(self._store(), name), missing=True)
        change = await in_thread(lambda: _save(self._store(), name, values))
        if not change.good:
            raise _faulty(change)
        effects = await settings_saved(self._service.pool, change.named.model_id, change.load_keys)
        form = await in_thread(lambda: _form(self._store(), name))
        notes = [*change.notes, *omlx_note(change.settings)]
        return json_response({**_shown(change), **_effects(effects), "notes": notes, "saved": True, "settings": form})

    async def preset(self, request: Request) -> Response:
        """The values of a preset for one model, to be looked at and saved; nothing is written."""
        fields = await body_fields(request, self._service.limits)
        name, preset = model_name(fields.text("model")), fields.text("preset")
        given = fields.text("drafter")
        fields.finish()
        drafter = None if given is None else model_name(given, "drafter")
        await in_thread(lambda: _find(self._store(), name), missing=True)
        return json_response(await in_thread(lambda: _preset(self._store(), name, preset, drafter)))

    async def recover(self, request: Request) -> Response:
        from ...manage.changes import recover

        fields = await body_fields(request, self._service.limits)
        fields.finish()
        return json_response({"moved": await in_thread(lambda: recover(self._store()))})

    async def profiles(self, request: Request) -> Response:
        from ...manage.forms import profiles_object

        query = Query(request)
        name = model_name(query.text("model"))
        query.finish()

        def work() -> dict[str, Any]:
            settings, named = _find(self._store(), name)
            return {"model": named.model_id, **profiles_object(settings, named)}

        return json_response(await in_thread(work, missing=True))

    async def save_profile(self, request: Request) -> Response:
        from ...settings.profiles import save_profile

        return await self._profile(request, lambda store, model, name, _: save_profile(store, model, name))

    async def apply_profile(self, request: Request) -> Response:
        from ...settings.profiles import apply_profile

        return await self._profile(request, lambda store, model, name, _: apply_profile(store, model, name))

    async def remove_profile(self, request: Request) -> Response:
        from ...settings.profiles import remove_profile

        return await self._profile(request, lambda store, model, name, _: remove_profile(store, model, name))

    async def rename_profile(self, request: Request) -> Response:
        from ...settings.profiles import rename_profile

        def work(store: Store, model: str, name: str, more: dict[str, Any]) -> None:
            rename_profile(store, model, name, more["new_name"])

        return await self._profile(request, work, new_name=True)

    async def expose_profile(self, request: Request) -> Response:
        from ...settings.profiles import expose_profile

        def work(store: Store, model: str, name: str, more: dict[str, Any]) -> None:
            expose_profile(store, model, name, exposed=more["exposed"], api_name=more["api_name"])

        return await self._profile(request, work, exposed=True)

    async def _profile(
        self, request: Request, work: Callable[[Store, str, str, dict[str, Any]], Any], *, new_name: bool = False,
        exposed: bool = False,
    ) -> Response:  # fmt: skip
        """Do something with a profile, and answer with the model's settings as they are then."""
        fields = await body_fields(request, self._service.limits)
        model, name = model_name(fields.text("model")), fields.required_text("name")
        more: dict[str, Any] = {}
        if new_name:
            more["new_name"] = fields.required_text("new_name")
        if exposed:
            more["exposed"], more["api_name"] = fields.boolean("exposed"), fields.text("api_name")
            if more["exposed"] is None:
                raise refuse("exposed", None, "true or false")
        fields.finish()
        settings, named = await in_thread(lambda: _find(self._store(), model), missing=True)
        before = await in_thread(lambda: _engine_values(settings, named))
        await in_thread(lambda: work(self._store(), named.model_id, name, more))
        after = await in_thread(lambda: _engine_values(self._store().load(), named))
        load_keys = [key for key in before if before[key] != after[key]]
        effects = await settings_saved(self._service.pool, named.model_id, load_keys)
        return json_response({**_effects(effects), "settings": await in_thread(lambda: _form(self._store(), model))})

    def _store(self) -> Store:
        return Store(self._service.base())

    async def _change_fields(self, request: Request) -> tuple[str, dict[str, Any]]:
        fields = await body_fields(request, self._service.limits)
        name, values = model_name(fields.text("model")), fields.mapping("values")
        fields.finish()
        if values is None or len(values) > MOST_VALUES:
            raise refuse("values", values, "an object of settings, null where one goes back to its default")
        drafter = values.get("dflash_draft_model")
        if isinstance(drafter, str) and drafter.strip():
            model_name(drafter, "dflash_draft_model")
        return name, values


def _find(store: Store, name: str) -> tuple[Settings, Named]:
    from ...manage.changes import find_own

    settings = store.load()
    return settings, find_own(settings, name)


def _form(store: Store, name: str) -> dict[str, Any]:
    from ...manage.forms import model_form
    from ...models.discover import discover
    from ...models.places import find_places

    settings, named = _find(store, name)
    return model_form(settings, named, os.environ, discover(find_places(store.base.folder)))


def _check(store: Store, name: str, values: dict[str, Any]) -> Change:
    from ...manage.changes import check

    settings, named = _find(store, name)
    return check(settings, named, values, os.environ)


def _save(store: Store, name: str, values: dict[str, Any]) -> Change:
    from ...manage.changes import save

    change = _check(store, name, values)
    if change.good:
        save(store, change)
    return change


def _preset(store: Store, name: str, preset: str | None, drafter: str | None) -> dict[str, Any]:
    from ...manage.checks import PRESET, preset_values
    from ...manage.forms import typed
    from ...settings.keys import KEYS

    if preset != PRESET:
        raise refuse("preset", preset, repr(PRESET))
    settings, named = _find(store, name)
    checked = preset_values(settings, named, drafter)
    values = {key: None if value is None else typed(KEYS[key], value) for key, value in checked.values.items()}
    return {"preset": preset, "values": values, "notes": checked.notes}


def _engine_values(settings: Settings, named: Named) -> dict[str, Any]:
    """What of a model's settings only a new load can honour."""
    from ...engine.setup import outlook
    from ...manage.changes import ENGINE_KEYS

    effective, _, _ = outlook(settings, named, os.environ)
    return {name: effective[name] for name in sorted(ENGINE_KEYS)}


def _shown(change: Change) -> dict[str, Any]:
    from ...manage.forms import pairing_object, plan_object

    return {
        "model": change.named.model_id,
        "ok": change.good,
        "faults": change.faults,
        "values": change.values,
        "notes": change.notes,
        "pairing": pairing_object(change.pairing),
        "requires_reload": bool(change.load_keys),
        **plan_object(change.plan),
    }


def _effects(effects: Effects) -> dict[str, Any]:
    return {"requires_reload": effects.requires_reload, "auto_unloaded": effects.auto_unloaded}


def _faulty(change: Change) -> ApiError:
    """The first fault; all of them are in the answer of `check`."""
    name, text = next(iter(change.faults.items()))
    more = f" (and {len(change.faults) - 1} more)" if len(change.faults) > 1 else ""
    where = f"{name}: " if name else ""
    return ApiError(f"{where}{text}{more}", status=BAD_REQUEST, param=name or None, code="invalid_setting")


@dataclass(frozen=True)
class Effects:
    """What a change of settings means for a model of this server.

    `requires_reload`: it takes effect when the model is loaded the next time; `auto_unloaded`: it was unloaded for
    that, so that the next request loads it anew.
    """

    requires_reload: bool = False
    auto_unloaded: bool = False


async def settings_saved(pool: ModelPool, model_id: str, load_keys: Collection[str]) -> Effects:
    """Have a changed record or profile take effect; `load_keys` are those that only a new load can honour."""
    refreshed = await pool.refresh()
    names = {entry["name"] for entry in pool.status() if entry["model_id"] == model_id}
    return Effects(bool(load_keys), not names.isdisjoint(refreshed.auto_unloaded))

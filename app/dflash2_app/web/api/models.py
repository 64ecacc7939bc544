"""What is offered and loaded, loading and unloading it, and settings that have changed; health and metrics."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..http.errors import UNAVAILABLE
from ..http.fields import Fields, parse_json
from ..http.wire import json_response, read_body
from ..serving.service import Service

MOST_IDLE_S = 10**9


class ModelsApi:
    """Endpoints as methods of one object, so that they share the service."""

    def __init__(self, service: Service, version: str):
        self._service, self._version = service, version
        self._began = int(time.time())

    async def health(self, _: Request) -> Response:
        desk = self._service.desk
        stuck = desk.stuck_for
        state = {"status": "ok" if stuck is None else "stuck", "version": self._version, "running": desk.running,
                 "waiting": desk.waiting, "stuck_seconds": stuck}  # fmt: skip
        return json_response(state, 200 if stuck is None else UNAVAILABLE)

    async def metrics(self, _: Request) -> Response:
        service = self._service
        text = service.metrics.text(service.desk.running, service.desk.waiting, service.pool.status())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def list(self, _: Request) -> Response:
        await self._service.pool.follow()
        entries = [self._entry(name) for name in self._service.pool.names]
        first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
        return json_response(
            {"object": "list", "data": entries, "has_more": False, "first_id": first, "last_id": last}
        )  # both OpenAI's form and Anthropic's

    async def one(self, request: Request) -> Response:
        await self._service.pool.follow()
        return json_response(self._entry(request.path_params["name"]))

    async def status(self, _: Request) -> Response:
        desk, pool = self._service.desk, self._service.pool
        await pool.follow()
        queue = {"running": desk.running, "waiting": desk.waiting, "most_running": desk.most_running,
                 "most_waiting": desk.most_waiting}  # fmt: skip
        return json_response(
            {"models": pool.status(), "queue": queue, "default_model": pool.default, "notes": pool.notes,
             "left_out": pool.left_out}
        )  # fmt: skip

    async def refresh(self, request: Request) -> Response:
        """Look through settings and model folders again; what has changed."""
        await self._no_fields(request)
        return json_response(asdict(await self._service.pool.refresh(rescan=True)))

    async def reload(self, request: Request) -> Response:
        """Load a model anew where it is loaded."""
        await self._no_fields(request)
        return json_response(await self._service.pool.reload(request.path_params["name"]))

    async def load(self, request: Request) -> Response:
        await self._no_fields(request)
        return json_response(await self._service.pool.load(request.path_params["name"]))

    async def unload(self, request: Request) -> Response:
        await self._no_fields(request)
        return json_response(await self._service.pool.unload(request.path_params["name"]))

    async def change(self, request: Request) -> Response:
        """Pin a model, or limit how long it may be idle; 0 lifts the limit."""
        name = request.path_params["name"]
        fields = Fields(parse_json(await read_body(request, self._service.limits)))
        pinned, ttl_s = fields.boolean("pinned"), fields.number("ttl_seconds", 0, MOST_IDLE_S)
        fields.finish()
        return json_response(self._service.pool.change(name, pinned=pinned, ttl_s=ttl_s))

    async def _no_fields(self, request: Request) -> None:
        body = await read_body(request, self._service.limits)
        if body:
            Fields(parse_json(body)).finish()

    def _entry(self, name: str) -> dict[str, Any]:
        state = self._service.pool.state(name)
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began))
        return {"id": state["id"], "object": "model", "created": self._began, "owned_by": "local", "type": "model",
                "display_name": state["display_name"] or state["id"], "created_at": created}  # fmt: skip

"""Puts the description together.

Owns: what is the same for every endpoint: errors, keys, the frame. Invariant (tests/app/web/test_openapi.py): every
route is described, and every field the code reads, with the values it takes; nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..http.wire import json_response
from . import anthropic, models, openai, responses
from .schema import Operation, Schema, ref, text
from .shared import SHARED
from .webapp import GROUP, pages_operations

PARTS = (openai, responses, anthropic, models)
OPERATIONS: tuple[Operation, ...] = tuple(operation for part in PARTS for operation in part.OPERATIONS)
GROUPS = {
    "text": "Replies, in four interfaces. Requests share the machine round by round, each equal to its single run.",
    "models": "What is in memory.",
    "server": "Health and numbers.",
    GROUP: "What its own pages use; these change with the pages.",
}
ABOUT = """\
Every field is honoured, accepted as without effect, or refused with 400 and a message that names it, what came and what
was expected; null counts as absent, so unknown fields may be null. `usage.dflash2` tells what drafting did. Where
`stream` is true, the reply is server-sent events; lines that begin with a colon are comments, such as the place in
line. Under each `text/event-stream`, `x-event-schema` is what the events' data holds."""
EVERYWHERE = {
    401: "The API key is missing or wrong; only where the server has one.",
    403: "The request comes from another site's page, or under a foreign Host.",
    500: "The server has made a mistake.",
}
WITH_BODY = {
    400: "The request is wrong: the message names the field.",
    408: "The body did not come in time.",
    413: "The body is too large.",
}


def describe(version: str, routes: Iterable[BaseRoute] = ()) -> dict[str, Any]:
    """The whole description.

    Args:
        version: the program's.
        routes: of which those under /api/ are described by themselves.
    """
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    for path, method, described in pages_operations(routes, list(paths)):
        paths.setdefault(path, {})[method] = described
    schemas: dict[str, Schema] = {**SHARED}
    for part in PARTS:
        schemas.update(part.SCHEMAS)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dflash2-mlx", "version": version, "description": ABOUT,
                 "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in GROUPS.items()],
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer", "description": "Asked for where the server has a key."},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }},
    }  # fmt: skip


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name, "tags": [operation.group], "summary": operation.summary,
        "responses": _responses(operation),
    }  # fmt: skip
    if operation.about:
        described["description"] = operation.about
    if "{name}" in operation.path:
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": text("A model's name.")}]
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        described["requestBody"] = {"required": operation.body_needed, "content": content}
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media: {"schema": operation.reply or text()}}
    if operation.event is not None:
        # No schema of its own: OpenAPI 3.1 has none for a series of events, and tools hold every event against it.
        content["text/event-stream"] = {"x-event-schema": operation.event}
    done: dict[str, Any] = {"description": "Done.", "content": content}
    if operation.headers:
        done["headers"] = {name: {"description": about, "schema": {"type": "integer", "minimum": 0}}
                           for name, about in operation.headers.items()}  # fmt: skip
    statuses = {**EVERYWHERE, **(WITH_BODY if operation.body is not None else {}), **(operation.statuses or {})}
    replies = operation.replies or {}
    refusals = {
        str(status): {
            "description": about,
            "content": {"application/json": {"schema": replies.get(status, ref(operation.errors))}},
        }
        for status, about in sorted(statuses.items())
    }
    return {"200": done, **refusals}


class Description:
    """The description over HTTP."""

    def __init__(self, version: str, routes: Iterable[BaseRoute]):
        self._document = describe(version, routes)

    def routes(self) -> list[Route]:
        return [Route("/openapi.json", self.show, methods=["GET"])]

    async def show(self, _: Request) -> Response:
        return json_response(self._document)

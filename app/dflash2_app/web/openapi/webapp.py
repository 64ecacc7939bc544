"""The endpoints under /api/, which the web app's own pages use and which change with them.

Described from the routes themselves: path, method, what the handler's docstring begins with. Who wants more of one says
so in an `Operation`, which then counts instead.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.routing import BaseRoute, Route

from .schema import OPENAI, ref, text

FOLDER = "/api/"
GROUP = "web app"


def plain_path(route: Route) -> str:
    """A route's path as OpenAPI writes it: without starlette's types of parameters."""
    return re.sub(r":\w+}", "}", route.path)


def pages_operations(
    routes: Iterable[BaseRoute], described: Iterable[str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and description of what is under /api/ and not described elsewhere."""
    known = set(described)
    for route in routes:
        if isinstance(route, Route) and route.path.startswith(FOLDER) and plain_path(route) not in known:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield plain_path(route), method.lower(), _operation(route, method)


def _operation(route: Route, method: str) -> dict[str, Any]:
    refused = {"application/json": {"schema": ref(OPENAI)}}
    lines = (inspect.getdoc(route.endpoint) or "").splitlines()
    described: dict[str, Any] = {
        "operationId": f"{method.lower()}_{route.path.strip('/')}".translate(_NAME),
        "tags": [GROUP],
        "summary": lines[0].rstrip(".") if lines else f"{method.title()} {plain_path(route)}",
        "responses": {
            "2XX": {"description": "Done: JSON, events or a file."},
            "4XX": {"description": "Refused: the message says why.", "content": refused},
            "5XX": {"description": "The server's own fault, or it is busy.", "content": refused},
        },
    }
    names = re.findall(r"{(\w+)}", plain_path(route))
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": text(minLength=1)} for name in names
        ]
    if method in ("POST", "PUT", "PATCH"):
        described["requestBody"] = {"required": False, "content": {"application/json": {"schema": {"type": "object"}}}}
    return described


_NAME = str.maketrans(dict.fromkeys("/{}:-.", "_"))

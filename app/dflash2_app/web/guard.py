"""Who may ask: the API key, and the checks that keep foreign web pages out.

Owns: the first look at every request, its line in the log and its count. Knows no endpoint. Without a key the server
listens on this machine only; then a page in the user's browser is the danger: it could reach the server under a name
that resolves to this machine (seen in Host), or from its own origin (seen in Origin and Sec-Fetch-Site).
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .http.errors import ApiError
from .http.wire import discard_body, json_response
from .serving.metrics import Metrics

log = logging.getLogger("dflash2.serve")
OPEN_PATHS = ("/", "/favicon.ico", "/health")  # tell nothing but that the server is up
OPEN_FOLDER = "/static/"  # the web app's files: a browser cannot show a key when it opens a page
WATCHED_PATHS = (
    "/health",
    "/metrics",
    "/api/status",
    "/api/doctor",
    "/api/logs",
    "/api/logs/events",
)  # asked again and again
COUNTED_PATHS = frozenset(
    """/health /metrics /openapi.json /v1/models /v1/models/status /v1/models/refresh
/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens""".split()
)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this very machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware in front of everything.

    Args:
        api_key: what a client must show; None checks Host instead.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, metrics: Metrics):
        self._app, self._api_key, self._metrics = app, api_key, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-content-type-options", b"nosniff")]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(headers, scope["path"])
        except ApiError as error:
            log.warning("refused %s %s: %s", scope["method"], _path(scope), error.message)
            await discard_body(headers, receive)
            # Closed, whatever was read: nobody may find out where a body ends by what is answered next.
            await json_response(error.of(scope["path"]), error.status, {"connection": "close"})(scope, receive, noting)
        else:
            await self._app(scope, receive, noting)
        finally:
            took = time.perf_counter() - began
            self._metrics.request(_known(scope), status)
            watched = scope["path"] in WATCHED_PATHS or scope["path"].startswith(OPEN_FOLDER)
            watched = watched and scope["method"] == "GET" and status in (200, 304)
            level = logging.DEBUG if watched else logging.INFO
            log.log(level, "%s %s %s in %.2f s", scope["method"], _path(scope), status or "left", took)

    def _check(self, headers: Mapping[str, str], path: str) -> None:
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in front could see another end of this request, and take the rest for one of its own.
            raise ApiError("Content-Length: got it beside Transfer-Encoding, expected one of them")
        self._check_origin(headers)
        if self._api_key is None:
            host = headers.get("host", "")
            if not is_loopback(_host_name(host)):
                raise ApiError(
                    f"Host: got {host[:100]!r}, expected localhost or 127.0.0.1: no API key is set", status=403
                )
        elif path not in OPEN_PATHS and not path.startswith(OPEN_FOLDER) and not _is_key(headers, self._api_key):
            raise ApiError("API key: got none or a wrong one, expected `Authorization: Bearer KEY`", status=401)

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise ApiError(f"Origin: got {origin[:100]!r}, expected this server's own pages", status=403)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise ApiError("Sec-Fetch-Site: got another site's page, expected this server's own", status=403)


def _is_key(headers: Mapping[str, str], api_key: str) -> bool:
    """Whether a client shows the key: in a header of its own, or as a bearer's; one may hold another server's."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    shown = (headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else "")
    # Headers came as bytes and were read as Latin-1: this gives the bytes back, whatever alphabet the key has.
    return any(hmac.compare_digest(given.encode("latin-1"), api_key.encode()) for given in shown)


def _host_name(host: str) -> str:
    """Host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _path(scope: Scope) -> str:
    """The path for the log: short, and without what a terminal would obey."""
    return repr(scope["path"][:200])[1:-1]


def _known(scope: Scope) -> str:
    """The path for a metric; of unknown ones there would be no end."""
    path = str(scope["path"])
    if path in COUNTED_PATHS:
        return path
    return "/v1/models/{name}" if path.startswith("/v1/models/") else "other"

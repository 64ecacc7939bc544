"""The web app's files: read once, served from memory.

Owns: which addresses are files, and the headers that keep a page from loading or running anything else. A request
names a file of the table or nothing, so no path can lead out of the folder.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..http.errors import NOT_FOUND, ApiError

FOLDER = Path(__file__).parents[1] / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# What a model writes is only ever text; should that fail once, this still keeps it from running or calling home.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class _File:
    content: bytes
    kind: str
    etag: str


class Pages:
    """All files of a folder, by their path in it."""

    def __init__(self, folder: Path = FOLDER):
        self._files = {
            path.relative_to(folder).as_posix(): _read(path) for path in sorted(folder.rglob("*")) if path.is_file()
        }

    def routes(self) -> list[Route]:
        return [
            Route("/", self.index, methods=["GET"]),
            Route("/favicon.ico", self.icon, methods=["GET"]),
            Route("/static/{path:path}", self.file, methods=["GET"]),
        ]

    async def index(self, request: Request) -> Response:
        return self._response(request, "index.html")

    async def icon(self, request: Request) -> Response:
        return self._response(request, "icon.svg")

    async def file(self, request: Request) -> Response:
        return self._response(request, request.path_params["path"])

    def _response(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise ApiError(f"path: got {request.url.path[:200]!r}, expected one of this server's", status=NOT_FOUND)
        headers = {
            "etag": file.etag,
            "cache-control": "no-cache",  # a new version of the program is seen at once; unchanged files cost nothing
            "content-security-policy": POLICY,
            "referrer-policy": "no-referrer",
        }
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.kind)


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:24]}"')

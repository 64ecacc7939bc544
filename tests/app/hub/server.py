"""A small server that speaks the Hub's protocol on this machine, with faults on request.

Owns: the routes that `huggingface_hub` and `models pull` use, and a list
of faults that fire a given number of times. Large files are redirected to a second origin (`localhost` instead of
`127.0.0.1`), as the real Hub redirects them to its storage.

    with Hub() as hub:
        hub.add("owner/name", {"config.json": b"{}", "model.safetensors": weights})
        hub.cut("model.safetensors", after=1000)

Routes: /api/models (search, author, filter, sort, limit), /api/models/ID[/revision/REV][?blobs],
/api/models/ID/tree/REV, /ID/resolve/REV/FILE (HEAD and GET, ranges), /storage/SHA256.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .repos import LARGE, Repo, blob_id, page_of, sha256, sibling, tree_entry

_SORTS = {"downloads": "downloads", "likes": "likes", "lastModified": "lastModified", "createdAt": "createdAt",
          "trendingScore": "trendingScore"}  # fmt: skip


@dataclass
class Fault:
    """Something that goes wrong with requests whose path holds `part`, `times` times."""

    part: str
    times: int
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    content: bytes | None = None
    etag: str | None = None
    wait: threading.Event | None = None
    methods: tuple[str, ...] = ("GET",)


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]


class Hub:
    """The stand-in; a context manager that serves while it is open."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.storage = f"http://localhost:{self.port}/storage"

    def __enter__(self) -> Hub:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Go away, as a machine that loses its network sees it."""
        for fault in self.faults:
            if fault.wait is not None:
                fault.wait.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            for connection in list(self._server.connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def add(self, repo_id: str, files: dict[str, bytes] | Path, **page: Any) -> Repo:
        """Publish a repository from contents or from a folder; `page` are fields of `Repo`."""
        if isinstance(files, Path):
            files = {path.name: path.read_bytes() for path in sorted(files.iterdir()) if path.is_file()}
        repo = Repo(repo_id, [dict(files)], **page)
        self.repos[repo_id] = repo
        return repo

    def change(self, repo_id: str, **files: bytes | None) -> str:
        """Publish a new commit; a file that is None goes away. `__` in a name stands for a dot."""
        repo = self.repos[repo_id]
        new = dict(repo.history[-1])
        for name, content in files.items():
            name = name.replace("__", ".")
            if content is None:
                del new[name]
            else:
                new[name] = content
        repo.history.append(new)
        return repo.commit()

    def fail(self, part: str, status: int, *, times: int = 1, **headers: str) -> None:
        """Answer with an error status."""
        self._add(Fault(part, times, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}))

    def cut(self, name: str, *, after: int, times: int = 1) -> None:
        """Close the connection after some bytes of a file's content."""
        self._add(Fault(self._part(name), times, cut_after=after))

    def forge(self, name: str, content: bytes, *, times: int = 10**6) -> None:
        """Send other bytes than the repository's page promises."""
        self._add(Fault(self._part(name), times, content=content))

    def rename(self, name: str, etag: str) -> None:
        """Answer with another ETag than the repository's page promises."""
        self._add(Fault(f"/{name}", 10**6, etag=etag, methods=("GET", "HEAD")))

    def hold(self, name: str, *, after: int) -> threading.Event:
        """Send some bytes of a file, then nothing until the event is set."""
        event = threading.Event()
        self._add(Fault(self._part(name), 1, cut_after=after, wait=event))
        return event

    def _add(self, fault: Fault) -> None:
        with self.lock:
            self.faults.append(fault)

    def _part(self, name: str) -> str:
        """Where a file's bytes come from (of the repository published last): its path, or its hash in the storage."""
        for repo in reversed(self.repos.values()):
            for files in reversed(repo.history):
                if name in files and name.endswith(LARGE):
                    return f"/storage/{sha256(files[name])}"
        return f"/{name}"

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault this request meets, counted down."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and method in fault.methods and fault.part in path:
                    fault.times -= 1
                    return fault
        return None

    def count(self, part: str, method: str = "GET") -> int:
        """How many requests held this text in their path."""
        with self.lock:
            return sum(seen.method == method and part in seen.path for seen in self.seen)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember who is connected: a server that is gone answers nobody, not even on open connections."""
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _handler_for(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    return Handler


class _Handler(BaseHTTPRequestHandler):
    """One request of the stand-in."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        with self.hub.lock:
            self.hub.seen.append(Seen(self.command, path, {k.lower(): v for k, v in self.headers.items()}))
        fault = self.hub.fault(self.command, path)
        if fault is not None and fault.status is not None:
            self._send(fault.status, b"", {**fault.headers})
            return
        parts = path.strip("/").split("/")
        if parts[0] == "storage":
            self._storage(parts[-1], fault)
        elif parts[:2] == ["api", "models"]:
            self._api(parts[2:], query)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]), fault)
        else:
            self._error(HTTPStatus.NOT_FOUND, "EntryNotFound")

    # Pages

    def _api(self, parts: list[str], query: dict[str, list[str]]) -> None:
        if not parts:
            self._json(self._search(query))
            return
        repo = self.hub.repos.get("/".join(parts[:2]))
        if repo is None:
            self._error(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
            return
        verb, revision = (parts[2], parts[3]) if len(parts) > 3 else ("revision", "main")
        found = repo.at(revision)
        if found is None:
            self._error(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        elif verb == "tree":
            self._json([tree_entry(name, content) for name, content in found[1].items()])
        else:
            page = page_of(repo) | {"sha": found[0], "config": repo.config()}
            page["siblings"] = [sibling(name, content, "blobs" in query) for name, content in found[1].items()]
            self._json(page)

    def _search(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        words = query.get("search", [""])[0].lower().split()
        author = query.get("author", [""])[0]
        tags = set(query.get("filter", []))
        found = [
            repo for repo in self.hub.repos.values()
            if all(word in repo.id.lower() for word in words)
            and (not author or repo.id.split("/")[0] == author)
            and tags <= set(repo.tags)
        ]  # fmt: skip
        pages = [page_of(repo) for repo in found]
        if "sort" in query:
            pages.sort(key=lambda page: page[_SORTS[query["sort"][0]]], reverse=True)
        return pages[: int(query.get("limit", ["1000"])[0])]

    # Files

    def _resolve(self, repo_id: str, revision: str, name: str, fault: Fault | None) -> None:
        repo = self.hub.repos.get(repo_id)
        if repo is None:
            self._error(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
            return
        if repo.gated and self.headers.get("Authorization") is None:
            self._error(HTTPStatus.FORBIDDEN, "GatedRepo")
            return
        found = repo.at(revision)
        if found is None or name not in found[1]:
            self._error(HTTPStatus.NOT_FOUND, "RevisionNotFound" if found is None else "EntryNotFound")
            return
        commit, content = found[0], found[1][name]
        large = name.endswith(LARGE)
        etag = sha256(content) if large else blob_id(content)
        if fault is not None and fault.etag is not None:
            etag = fault.etag
        headers = {"X-Repo-Commit": commit}
        if large:
            headers |= {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(len(content))}
            headers["Location"] = f"{self.hub.storage}/{sha256(content)}"
            self._send(HTTPStatus.FOUND, b"", headers)
        else:
            self._content(content, headers | {"ETag": f'"{etag}"'}, fault)

    def _storage(self, name: str, fault: Fault | None) -> None:
        if self.headers.get("Authorization") is not None:
            self._send(HTTPStatus.BAD_REQUEST, b"", {})  # as signed addresses answer a second kind of login
            return
        for repo in self.hub.repos.values():
            for files in repo.history:
                for content in files.values():
                    if sha256(content) == name:
                        self._content(content, {"ETag": '"of-the-storage"'}, fault)
                        return
        self._error(HTTPStatus.NOT_FOUND, "EntryNotFound")

    def _content(self, content: bytes, headers: dict[str, str], fault: Fault | None) -> None:
        if fault is not None and fault.content is not None:
            content = fault.content
        status, start, given = HTTPStatus.OK, 0, self.headers.get("Range")
        if given is not None:
            start = int(given.removeprefix("bytes=").split("-")[0])
            if start >= len(content):
                self._send(
                    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", {"Content-Range": f"bytes */{len(content)}"}
                )
                return
            status = HTTPStatus.PARTIAL_CONTENT
            headers = headers | {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        body = content[start:]
        cut = fault.cut_after if fault is not None else None
        self._send(status, body, headers | {"Accept-Ranges": "bytes"}, cut)
        if fault is not None and fault.wait is not None:
            fault.wait.wait(60)
            self.close_connection = True

    # Answers

    def _json(self, value: object) -> None:
        self._send(HTTPStatus.OK, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self.wfile.write(body if cut is None else body[:cut])
            self.wfile.flush()
        except OSError:  # the other side has gone
            self.close_connection = True
        if cut is not None:
            self.close_connection = True

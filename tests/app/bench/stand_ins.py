"""Small servers on this machine that stand in for the Hub and for a model server."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Quiet(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server until the block ends; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def hub(repositories: dict[str, dict[str, bytes]], seen: list[str]) -> type[BaseHTTPRequestHandler]:
    """A Hub with these data sets: name -> file -> content. `seen` gets every file that was fetched."""

    class Hub(Quiet):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = self.path.partition("?")[0]
            for name, files in repositories.items():
                if path == f"/api/datasets/{name}/revision/main":
                    listed = [{"rfilename": file} for file in files]
                    body = {"id": name, "sha": COMMIT, "siblings": listed, "private": False, "tags": [], "downloads": 0}
                    return self.send(200, json.dumps(body).encode(), x_repo_commit=COMMIT)
                if path == f"/api/datasets/{name}/tree/{COMMIT}":
                    tree = [
                        {"type": "file", "path": file, "size": len(content), "oid": "1"}
                        for file, content in files.items()
                    ]
                    return self.send(200, json.dumps(tree).encode())
                file = path.removeprefix(f"/datasets/{name}/resolve/{COMMIT}/")
                if file in files:  # the cache tells contents apart by their etag
                    if self.command == "GET":
                        seen.append(file)
                    return self.send(
                        200,
                        files[file],
                        "text/plain",
                        etag=f'"{hashlib.sha1(files[file]).hexdigest()}"',
                        x_repo_commit=COMMIT,
                    )
            return self.send(404, b'{"error": "Repository not found"}', x_error_code="RepoNotFound")

    return Hub


Script = Callable[["ModelServer"], None]


class ModelServer(Quiet):
    """Answers as `script` says; `asked` gets path and body of every request. Made by `model_server`."""

    script: Script
    asked: list[tuple[str, Any]]
    pages: dict[str, Callable[[], str]]
    models: list[str]

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.send(200, json.dumps({"data": [{"id": name} for name in self.models]}).encode())
        elif self.path in self.pages:
            self.send(200, self.pages[self.path]().encode(), "text/plain")
        else:
            self.send(404, b"not here", "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, body))
        type(self).script(self)

    def stream(self, *events: dict[str, Any] | str) -> None:
        """Send events, the closing [DONE] and the end of the connection."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in [*events, "[DONE]"]:
            text = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {text}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True


def piece(text: str, name: str = "content", finish: str | None = None) -> dict[str, Any]:
    """One event of a chat reply."""
    return {"choices": [{"index": 0, "delta": {name: text}, "finish_reason": finish}]}


def usage(completion: int, prompt: int = 7, **more: Any) -> dict[str, Any]:
    """The last event, with the token counts."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}, **more}


def model_server(
    script: Script, pages: dict[str, Callable[[], str]] | None = None, models: tuple[str, ...] = ("tiny",)
) -> type[ModelServer]:
    """A handler class of its own, so that servers share nothing."""
    attributes = {"script": staticmethod(script), "asked": [], "pages": pages or {}, "models": list(models)}
    return type("Scripted", (ModelServer,), attributes)

"""Event streams of the model manager: what changes in memory and in the queue of downloads, and a check under way.

Owns: when something is worth telling. One connection tells a page everything, so that nobody asks every second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from .api.errors import INTERNAL, ApiError
from .asking import Query, body_fields, in_thread, model_name
from .downloads import Downloads
from .http import ClientGone, EventStream, Frame, json_response, while_connected
from .service import Service

log = logging.getLogger("dflash2.serve")
LOOK_S = 0.25
SIGN_S = 15.0  # a comment now and then tells us whether the page is still there


class StreamEndpoint:
    """An ASGI application whose answer is an event stream; a refusal before its first event is JSON."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send, self._service.limits.write_s)
        try:
            try:
                work = await self.prepare(Request(scope, receive))
                await while_connected(receive, self._service.stopping, work(stream))
                await stream.end()
            except ApiError as error:
                await self._refuse(error, stream, scope, receive, send)
            except ClientGone:
                raise
            except Exception:
                log.exception("a request of %s failed", scope["path"])
                fault = ApiError("the server has made a mistake; its log tells more", status=INTERNAL)
                await self._refuse(fault, stream, scope, receive, send)
        except ClientGone:
            return

    async def prepare(self, request: Request) -> Any:
        """Read the request; returns what writes the stream."""
        raise NotImplementedError

    async def _refuse(self, error: ApiError, stream: EventStream, scope: Scope, receive: Receive, send: Send) -> None:
        if stream.started:
            await stream.frames(Frame(error.openai(), "error"))
            await stream.end()
        else:
            await json_response(error.openai(), error.status)(scope, receive, send)


class EventsEndpoint(StreamEndpoint):
    """`/api/models/events`: "models" (the pool's states) and "downloads" (the queue), each when it has changed."""

    def __init__(self, service: Service, downloads: Downloads):
        super().__init__(service)
        self._downloads = downloads

    async def prepare(self, request: Request) -> Any:
        Query(request).finish()
        return self._tell

    async def _tell(self, stream: EventStream) -> None:
        states, version, signed = "", -1, time.monotonic()
        while True:
            frames = []
            now = self._service.pool.status()
            key = json.dumps([{**state, "idle_seconds": None} for state in now], default=str, sort_keys=True)
            if key != states:
                states = key
                frames.append(Frame({"models": now}, "models"))
            if self._downloads.version != version:
                version = self._downloads.version
                frames.append(Frame(self._downloads.status(), "downloads"))
            if frames:
                await stream.frames(*frames)
            elif time.monotonic() - signed > SIGN_S:
                await stream.comment("still here")
            if frames or time.monotonic() - signed > SIGN_S:
                signed = time.monotonic()
            await asyncio.sleep(LOOK_S)


class _Left(Exception):
    """Nobody waits for the check any more."""


class VerifyEndpoint(StreamEndpoint):
    """`/api/models/verify`: reads a model's files; "progress" while it does, "result" at the end."""

    async def prepare(self, request: Request) -> Any:
        fields = await body_fields(request, self._service.limits)
        name = model_name(fields.text("name"), "name")
        delete = fields.boolean("delete_damaged") or False
        fields.finish()

        async def tell(stream: EventStream) -> None:
            await self._verify(name, delete, stream)

        return tell

    async def _verify(self, name: str, delete: bool, stream: EventStream) -> None:
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
    from ..manage.listing import hub_hashes
    from ..models import verify as checks

    result = checks.verify(name, watch, hub_hashes(name))
    deleted = checks.delete_damaged(result) if delete and not result.good else 0
    return {**result.to_dict(), "deleted_files": deleted}

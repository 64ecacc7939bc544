"""Event streams of the model manager: what changes in memory and in the queue of downloads, and a check under way.

Owns: when something is worth telling. One connection tells a page everything, so that nobody asks every second.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from ..connected import Work
from ..http import EventStream, Frame
from ..service import Service
from .asking import Query, body_fields, in_thread, model_name
from .downloads import Downloads

LOOK_S = 0.25


class _Left(Exception):
    """Nobody waits for the check any more."""


class Live:
    """What `/api/models/events` and `/api/models/verify` tell."""

    def __init__(self, service: Service, downloads: Downloads):
        self._service, self._downloads = service, downloads

    async def changes(self, request: Request) -> AsyncGenerator[Frame, None]:
        """What changes in memory ("models": the pool's states) and in the queue ("downloads")."""
        Query(request).finish()
        states, version = "", -1
        while True:
            now = self._service.pool.status()
            key = json.dumps([{**state, "idle_seconds": None} for state in now], default=str, sort_keys=True)
            if key != states:
                states = key
                yield Frame({"models": now}, "models")
            if self._downloads.version != version:
                version = self._downloads.version
                yield Frame(self._downloads.status(), "downloads")
            await asyncio.sleep(LOOK_S)

    async def verify(self, request: Request) -> Work:
        """Read a model's files and compare: "progress" while it does, "result" at the end."""
        fields = await body_fields(request, self._service.limits)
        name = model_name(fields.text("name"), "name")
        delete = fields.boolean("delete_damaged") or False
        fields.finish()

        async def work(stream: EventStream) -> None:
            await _tell(name, delete, stream)

        return work


async def _tell(name: str, delete: bool, stream: EventStream) -> None:
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
    from ...manage.listing import hub_hashes
    from ...models import verify as checks

    result = checks.verify(name, watch, hub_hashes(name))
    deleted = checks.delete_damaged(result) if delete and not result.good else 0
    return {**result.to_dict(), "deleted_files": deleted}

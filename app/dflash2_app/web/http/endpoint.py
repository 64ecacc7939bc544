"""Endpoints of the web app whose work ends when their client leaves.

Owns: the course of one such request: its reading, its work while the client is there, and what is told when it is
refused or fails half-way. Knows nothing of what is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import INTERNAL, ApiError
from .wire import ClientGone, EventStream, Frame, Limits, json_response, while_connected

log = logging.getLogger("dflash2.serve")


SIGN_S = 15.0  # how often a stream that has nothing to tell shows that it lives


OPEN_S = 0.5  # until then it may still be refused; then its client learns that it is heard

Work = Callable[[EventStream], Awaitable[Response | None]]


Prepare = Callable[[Request], Awaitable[Work]]


Follow = Callable[[Request], AsyncGenerator[Frame, None]]


class Connected:
    """An ASGI application for one path; a refusal before its first event is JSON.

    Args:
        limits: how long a client may take to receive a piece.
        stopping: set when the server is about to end.
        prepare: reads the request; returns the work, which writes the stream (it is ended here) or answers at once.
    """

    def __init__(self, limits: Limits, stopping: asyncio.Event, prepare: Prepare):
        self._limits, self._stopping, self._prepare = limits, stopping, prepare
        self.__doc__ = prepare.__doc__  # the server's description tells what an endpoint does

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send, self._limits.write_s)
        try:
            try:
                work = await self._prepare(Request(scope, receive))
                answer = await while_connected(receive, self._stopping, work(stream))
                if answer is None:
                    await stream.end()
                else:
                    await answer(scope, receive, send)
            except ApiError as error:
                await _refuse(error, stream, scope, receive, send)
            except ClientGone:
                raise
            except Exception:
                log.exception("a request of %s failed", scope["path"])
                fault = ApiError("the server has made a mistake; its log tells more", status=INTERNAL)
                await _refuse(fault, stream, scope, receive, send)
        except ClientGone:
            log.debug("the client of %s left", scope["path"])


async def _refuse(error: ApiError, stream: EventStream, scope: Scope, receive: Receive, send: Send) -> None:
    if stream.started:
        await stream.frames(Frame(error.openai(), "error"))
        await stream.end()
    else:
        await json_response(error.openai(), error.status)(scope, receive, send)


def following(limits: Limits, stopping: asyncio.Event, follow: Follow) -> Connected:
    """An endpoint that tells what `follow` yields, and now and then that it lives."""

    async def prepare(request: Request) -> Work:
        async def work(stream: EventStream) -> None:
            await _tell(follow(request), stream)

        return work

    prepare.__doc__ = follow.__doc__
    return Connected(limits, stopping, prepare)


async def _tell(follow: AsyncGenerator[Frame, None], stream: EventStream) -> None:
    async with aclosing(follow) as frames:
        coming = asyncio.ensure_future(anext(frames, None))
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=SIGN_S if stream.started else OPEN_S)
                if not done:
                    await stream.comment("still there")
                    continue
                frame = coming.result()
                if frame is None:
                    break
                await stream.frames(frame)
                coming = asyncio.ensure_future(anext(frames, None))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

"""The endpoint of an event stream that a page follows.

Owns: its course until the client leaves or the server ends. Knows nothing of what is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from .api.errors import ApiError
from .http import ClientGone, EventStream, Frame, json_response, while_connected
from .service import Service

SIGN_S = 15.0  # how often a stream that has nothing to tell shows that it lives

Follow = Callable[[Request], AsyncGenerator[Frame, None]]


class EventEndpoint:
    """An ASGI application for one path.

    Args:
        follow: the frames, from a request on; may raise ApiError before the first.
    """

    def __init__(self, service: Service, follow: Follow):
        self._service, self._follow = service, follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send, self._service.limits.write_s)
        try:
            await while_connected(receive, self._service.stopping, self._tell(Request(scope), stream))
        except ClientGone:
            return
        except ApiError as error:
            if not stream.started:
                await json_response(error.openai(), error.status)(scope, receive, send)
                return
            await self._end(stream, error)

    async def _tell(self, request: Request, stream: EventStream) -> None:
        async with aclosing(self._follow(request)) as frames:
            coming = asyncio.ensure_future(anext(frames, None))
            try:
                while True:
                    done, _ = await asyncio.wait({coming}, timeout=SIGN_S)
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
        await stream.end()

    async def _end(self, stream: EventStream, error: ApiError) -> None:
        try:
            await stream.frames(Frame(error.openai(), "error"))
            await stream.end()
        except ClientGone:
            pass

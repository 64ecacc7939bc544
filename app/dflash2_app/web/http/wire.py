"""The ends of an HTTP request: its body read within limits, its reply written while the client is there.

Owns: body limits, JSON and event-stream output, and the watch over a client that may leave at any time. Knows no
interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from ...console.output import finite
from .errors import PACKED, TIMEOUT, TOO_LARGE, UNAVAILABLE, ApiError, shown

T = TypeVar("T")


DISCARD_BYTES = 1 << 20  # the most that is read of a body nobody wants


DISCARD_S = 1.0  # and the longest


class ClientGone(Exception):
    """The client has closed its connection."""


@dataclass(frozen=True)
class Frame:
    """One event of an event stream; `data` is text or becomes JSON."""

    data: Any
    event: str | None = None

    def encode(self) -> bytes:
        data = self.data if isinstance(self.data, str) else dumps(self.data)
        head = f"event: {self.event}\n" if self.event else ""
        return f"{head}data: {data}\n\n".encode("utf-8", "replace")


def dumps(value: Any) -> str:
    """Compact JSON; what JSON cannot say (an infinity) becomes null."""
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dumps(value).encode("utf-8", "replace"), status, headers, media_type="application/json")


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body.

    Raises:
        ApiError: too large (413), packed (415), or too slow (408).
        ClientGone: the client left while sending.
    """
    packed = request.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise ApiError(
            f"Content-Encoding: got {shown(packed)}, expected none: bodies are read as they are", status=PACKED
        )
    stated = request.headers.get("content-length", "0")
    if not stated.isdigit() or int(stated) > limits.body_bytes:
        raise _too_large(stated, limits)
    try:
        async with asyncio.timeout(limits.body_s):
            return await _receive_body(request.receive, limits)
    except TimeoutError:
        raise ApiError(f"body: got no end within {limits.body_s:g} s, expected a whole one", status=TIMEOUT) from None


async def _receive_body(receive: Receive, limits: Limits) -> bytes:
    pieces, size = [], 0
    async for piece in _pieces(receive):
        size += len(piece)
        if size > limits.body_bytes:
            raise _too_large(size, limits)
        pieces.append(piece)
    return b"".join(pieces)


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes.

    Raises:
        ClientGone: the client left while sending.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def discard_body(headers: Mapping[str, str], receive: Receive) -> None:
    """Read what a refused client is still sending: a socket closed over unread bytes is reset, and the answer lost.

    Of a large body or a slow client only the beginning is read; a client that waits to be asked (Expect) is not.
    """
    if "expect" in headers:
        return
    size = 0
    with contextlib.suppress(TimeoutError, ClientGone):
        async with asyncio.timeout(DISCARD_S):
            async for piece in _pieces(receive):
                size += len(piece)
                if size >= DISCARD_BYTES:
                    return


def _too_large(size: object, limits: Limits) -> ApiError:
    return ApiError(f"body: got {size} bytes, expected at most {limits.body_bytes}", status=TOO_LARGE)


async def while_connected(receive: Receive, stopping: asyncio.Event, work: Awaitable[T]) -> T:
    """Do the work, and stop it when the client leaves or the server has to end.

    Raises:
        ClientGone: it left before the work was done.
        ApiError: the server is shutting down (503).
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, gone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if stopped.done():
            raise ApiError("the server is shutting down", status=UNAVAILABLE)
        raise ClientGone
    finally:
        for future in (task, gone, stopped):
            future.cancel()
        await asyncio.gather(task, gone, stopped, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """Writes one event stream.

    Args:
        send: the connection.
        write_s: seconds a client may take for one piece.
    """

    def __init__(self, send: Send, write_s: float):
        self._send, self._write_s = send, write_s
        self._last = time.monotonic()
        self.started = False

    @property
    def quiet_s(self) -> float:
        """Seconds since something was written."""
        return time.monotonic() - self._last

    async def frames(self, *frames: Frame) -> None:
        if frames:
            await self._write(b"".join(frame.encode() for frame in frames))

    async def comment(self, text: str) -> None:
        """A line that clients pass over; it keeps the connection alive."""
        await self._write(f": {text}\n\n".encode())

    async def end(self) -> None:
        await self._sent({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
                       (b"x-accel-buffering", b"no")]  # fmt: skip
            await self._sent({"type": "http.response.start", "status": 200, "headers": headers})
        await self._sent({"type": "http.response.body", "body": data, "more_body": True})
        self._last = time.monotonic()

    async def _sent(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._write_s):
                await self._send(message)
        except (TimeoutError, OSError):
            raise ClientGone from None


@dataclass(frozen=True)
class Limits:
    """What one request may take."""

    body_bytes: int = 32 * 2**20
    body_s: float = 30.0  # to send the whole body
    write_s: float = 60.0  # to take one piece of a reply

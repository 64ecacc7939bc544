"""The endpoint behind every interface that makes text.

Owns: the course of one request from its body to its last byte, streamed or whole, also when the client leaves in the
middle. Invariant: a request that is refused, fails or is left behind gives back its place in line and its hold on the
model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ...errors import AppError
from ..http.endpoint import SIGN_S
from ..http.errors import INTERNAL, QUEUE_FULL, ApiError, from_library
from ..http.fields import Fields, parse_json
from ..http.wire import ClientGone, EventStream, Frame, json_response, read_body, while_connected
from ..serving.parts import Part
from ..serving.queue import wait_in_line
from ..serving.request import Ask
from ..serving.service import Running, Service
from ..serving.source import Served
from .anthropic import MessagesCall

if TYPE_CHECKING:
    import dflash2_mlx as d2

    from ..serving.reply import Outcome

log = logging.getLogger("dflash2.serve")


class CountEndpoint:
    """How many tokens a prompt of Anthropic's form has."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(Request(scope, receive), self._service.limits)
            counted = await self._count(MessagesCall(Fields(parse_json(body)), counting=True))
            response = json_response({"input_tokens": counted})
        except ClientGone:
            return
        except ApiError as error:
            response = json_response(error.anthropic(), error.status)
        await response(scope, receive, send)

    async def _count(self, call: MessagesCall) -> int:
        async with self._service.pool.using(call.model) as served:
            return await asyncio.to_thread(_count, served, call)


def _count(served: Served, call: MessagesCall) -> int:
    import dflash2_mlx as d2

    ask = call.ask(served)
    try:
        return served.count_tokens(ask.prompt, ask.config)
    except (d2.Dflash2Error, AppError) as error:
        raise from_library(error) from None


class TextEndpoint:
    """An ASGI application for one path."""

    def __init__(self, service: Service, interface: Interface):
        self._service, self._interface = service, interface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send, self._service.limits.write_s)
        try:
            body = await read_body(Request(scope, receive), self._service.limits)
            call = self._interface.read(parse_json(body))
            work = self._serve(call, stream, scope, receive, send)
            await while_connected(receive, self._service.stopping, work)
        except ClientGone:
            log.info("the client of %s left", scope["path"])
        except ApiError as error:
            await self._refuse(error, stream, scope, receive, send)
        except Exception:
            log.exception("a request of %s failed", scope["path"])
            fault = ApiError("the server has made a mistake; its log tells more", status=INTERNAL)
            await self._refuse(fault, stream, scope, receive, send)

    async def _serve(self, call: Call, stream: EventStream, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.reply(call.model, call.ask) as running:
            if call.stream:
                await self._stream(call, running, stream)
                return
            position = running.position
            whole = call.whole(running.served, await running.run())
        await json_response(whole, headers={"x-queue-position": str(position)})(scope, receive, send)

    async def _stream(self, call: Call, running: Running, stream: EventStream) -> None:
        await wait_in_line(running, stream)
        writer, began = call.writer(running.served), False
        try:
            async with aclosing(running.parts()) as told:  # type: ignore[type-var]
                async for parts, logprobs in told:
                    if not began:
                        began = True
                        await stream.frames(*writer.start(running.outcome))
                    await stream.frames(*writer.parts(parts, logprobs))
                    if stream.quiet_s > SIGN_S:  # a long prompt is read, or a long call of a tool is written
                        await stream.comment("still there")
            await stream.frames(*writer.finish(running.outcome))
        except ApiError as error:
            await stream.frames(*writer.failed(error))
        await stream.end()

    async def _refuse(self, error: ApiError, stream: EventStream, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the client, as far as it still listens."""
        shape = self._interface.error(error)
        headers = {"retry-after": "1"} if error.status == QUEUE_FULL else None
        try:
            async with asyncio.timeout(self._service.limits.write_s):
                if stream.started:
                    await stream.frames(Frame(shape, shape.get("type")))
                    await stream.end()
                else:
                    await json_response(shape, error.status, headers)(scope, receive, send)
        except (TimeoutError, OSError, ClientGone):
            log.info("the client of %s left", scope["path"])


class Writer(Protocol):
    """Makes the events of one streamed reply."""

    def start(self, outcome: Outcome) -> list[Frame]:
        """With the first event: the outcome's statistics know the prompt."""

    def parts(self, parts: Sequence[Part], logprobs: Sequence[d2.TokenLogprob]) -> list[Frame]: ...

    def finish(self, outcome: Outcome) -> list[Frame]: ...

    def failed(self, error: ApiError) -> list[Frame]: ...


class Call(Protocol):
    """One request, read as far as it can be without its model."""

    model: str
    stream: bool

    def ask(self, served: Served) -> Ask:
        """The request against its model; reads the remaining fields.

        Raises:
            ApiError: a field is wrong, unknown, or beyond this model.
        """

    def whole(self, served: Served, outcome: Outcome) -> dict[str, Any]:
        """The reply that is not streamed."""

    def writer(self, served: Served) -> Writer:
        """For a streamed reply."""


class Interface(Protocol):
    """One way to ask for text."""

    def read(self, body: object) -> Call: ...

    def error(self, error: ApiError) -> Mapping[str, Any]: ...

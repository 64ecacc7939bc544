"""The side-by-side page's endpoints: what can be raced, a race as one event stream, and one of its blocks.

Owns: `/api/race` and `/api/race/block`. A race takes one place in the server's line for all its runs and gives it back
at its end, also when the client leaves in the middle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import one_line
from ..side_by_side import SCREENFUL, examples
from .api.errors import INTERNAL, ApiError
from .api.fields import Fields, parse_json
from .desk import Seat, read
from .http import ClientGone, EventStream, Frame, json_response, read_body, while_connected
from .race import MOST_TEMPERATURE, MOST_TOKENS, Race, RaceOrder, show_block
from .service import Service

log = logging.getLogger("dflash2.serve")
SIGN_S = 5.0  # how often a waiting client is told its place
MOST_REPLY_TOKENS = 10**6
Work = Callable[[bytes, EventStream], Awaitable[Response | None]]


class RaceApi:
    """Endpoints as methods of one object, so that they share the service."""

    def __init__(self, service: Service, version: str):
        self._service, self._version = service, version

    def routes(self) -> list[Route]:
        return [
            Route("/api/race", self.choices, methods=["GET"]),
            Route("/api/race", _Connected(self._service, self._race), methods=["POST"]),
            Route("/api/race/block", _Connected(self._service, self._block), methods=["POST"]),
        ]

    async def choices(self, _: Request) -> Response:
        """Models with what is known of their drafting, prompts to begin with, and what a race takes by itself."""
        names = ("id", "loaded", "block_size", "effective_engine", "dflash_requested", "dflash_active",
                 "dflash_fallback_reason", "problem")  # fmt: skip
        await self._service.pool.follow()
        models = [
            {
                **{name: state[name] for name in names},
                "examples": [asdict(example) for example in examples(state["name"])],
            }
            for state in self._service.pool.status()
            if not state["is_hidden"]
        ]
        defaults = {"max_tokens": SCREENFUL, "temperature": 0, "seed": 0}
        limits = {"max_tokens": MOST_TOKENS, "temperature": MOST_TEMPERATURE}
        return json_response({"models": models, "defaults": defaults, "limits": limits})

    async def _race(self, body: bytes, stream: EventStream) -> None:
        fields = Fields(parse_json(body))
        order = RaceOrder.read(fields)
        fields.finish()
        await self._service.pool.follow()
        self._service.pool.check(order.model)
        seat, began = self._service.desk.take(), False
        try:
            async with self._service.pool.using(order.model) as served:
                race = await asyncio.to_thread(Race, served, order, self._others, self._version)
                await _turn(seat, stream)
                began = True
                await self._run(race, seat, stream)
        finally:
            if not began:
                seat.leave()  # later on, the thread that reads the race leaves it

    async def _run(self, race: Race, seat: Seat, stream: EventStream) -> None:
        try:
            async with aclosing(read(race.events(), seat)) as frames:
                async for frame in frames:
                    await stream.frames(frame)
        except (ClientGone, ApiError):
            raise
        except Exception as error:
            log.exception("a race failed")
            raise ApiError(
                f"the race failed: {one_line(str(error)) or type(error).__name__}", status=INTERNAL
            ) from None
        await stream.end()

    def _others(self) -> int:
        """Replies that share the machine with this race."""
        return max(0, self._service.desk.running - 1)

    async def _block(self, body: bytes, stream: EventStream) -> Response:
        fields = Fields(parse_json(body))
        order = RaceOrder.read(fields)
        reply, width = _tokens(fields), fields.integer("width", 2)
        fields.finish()
        await self._service.pool.follow()
        self._service.pool.check(order.model)
        seat = self._service.desk.take()
        try:
            async with self._service.pool.using(order.model) as served:
                await seat.called.wait()
                # Shielded: who asked may leave, but its place is free only when nothing of it runs any more.
                work = asyncio.create_task(asyncio.to_thread(show_block, served, order, reply, width))
                try:
                    shown = await asyncio.shield(work)
                finally:
                    await asyncio.gather(work, return_exceptions=True)
        finally:
            seat.leave()
        return json_response(shown)


async def _turn(seat: Seat, stream: EventStream) -> None:
    """Wait in line, and tell the client its place."""
    while seat.position:
        await stream.comment(f"queue position {seat.position}")
        try:
            await asyncio.wait_for(seat.called.wait(), SIGN_S)
        except TimeoutError:
            continue
    await stream.comment("running")


def _tokens(fields: Fields) -> list[int]:
    """The reply's tokens up to the block's anchor."""
    tokens = fields.items("reply")
    if not tokens or len(tokens) > MOST_REPLY_TOKENS:
        raise ApiError(
            f"reply: got {'none' if not tokens else len(tokens)}, expected 1 to {MOST_REPLY_TOKENS} token ids",
            param="reply",
        )
    for at, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int):
            raise ApiError(f"reply[{at}]: got {str(token)[:40]!r}, expected a token id", param="reply")
    return tokens


class _Connected:
    """An ASGI application for work that ends when its client leaves.

    Args:
        work: from a request's body and its event stream to nothing (the stream was used) or a response.
    """

    def __init__(self, service: Service, work: Work):
        self._service, self._work = service, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send, self._service.limits.write_s)
        try:
            body = await read_body(Request(scope, receive), self._service.limits)
            answer = await while_connected(receive, self._service.stopping, self._work(body, stream))
            if answer is not None:
                await answer(scope, receive, send)
        except ClientGone:
            log.info("the client of %s left", scope["path"])
        except ApiError as error:
            if not stream.started:
                raise
            await _tell(stream, error)


async def _tell(stream: EventStream, error: ApiError) -> None:
    """An error in the middle of a stream."""
    try:
        await stream.frames(Frame(error.openai(), "error"))
        await stream.end()
    except ClientGone:
        log.info("the client of a race left")

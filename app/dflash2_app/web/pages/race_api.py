"""The side-by-side page's endpoints: what can be raced, a race as one event stream, and one of its blocks.

Owns: `/api/race` and `/api/race/block`. A race takes one place in the server's line for all its runs and gives it back
at its end, also when the client leaves in the middle.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import one_line
from ...reports.side_by_side import MOST_TEMPERATURE, MOST_TOKENS, SCREENFUL, examples
from ..http.endpoint import Connected, Work
from ..http.errors import INTERNAL, ApiError
from ..http.fields import Fields, parse_json
from ..http.wire import ClientGone, EventStream, json_response, read_body
from ..serving.queue import Seat, read, wait_in_line
from ..serving.service import Service
from .race import Race, RaceOrder, show_block

log = logging.getLogger("dflash2.serve")
MOST_REPLY_TOKENS = 10**6


class RaceApi:
    """Endpoints as methods of one object, so that they share the service."""

    def __init__(self, service: Service, version: str):
        self._service, self._version = service, version

    def routes(self) -> list[Route]:
        return [
            Route("/api/race", self.choices, methods=["GET"]),
            Route("/api/race", Connected(*self._service.connection, self._race), methods=["POST"]),
            Route(
                "/api/race/block",
                Connected(*self._service.connection, self._block),
                methods=["POST"],
            ),
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

    async def _race(self, request: Request) -> Work:
        """One prompt answered plainly, then with DFlash 2, as events."""
        fields = await self._fields(request)
        order = RaceOrder.read(fields)
        fields.finish()

        async def work(stream: EventStream) -> None:
            await self._enter(order, stream)

        return work

    async def _enter(self, order: RaceOrder, stream: EventStream) -> None:
        await self._service.pool.follow()
        self._service.pool.check(order.model)
        seat, began = self._service.desk.take(), False
        try:
            async with self._service.pool.using(order.model) as served:
                race = await asyncio.to_thread(Race, served, order, self._others, self._version)
                await wait_in_line(seat, stream)
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

    def _others(self) -> int:
        """Replies that share the machine with this race."""
        return max(0, self._service.desk.running - 1)

    async def _block(self, request: Request) -> Work:
        """One block of a race taken apart: candidates, path, and what the target said."""
        fields = await self._fields(request)
        order = RaceOrder.read(fields)
        reply, width = _tokens(fields), fields.integer("width", 2)
        fields.finish()

        async def work(_: EventStream) -> Response:
            return await self._shown(order, reply, width)

        return work

    async def _fields(self, request: Request) -> Fields:
        return Fields(parse_json(await read_body(request, self._service.limits)))

    async def _shown(self, order: RaceOrder, reply: list[int], width: int | None) -> Response:
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

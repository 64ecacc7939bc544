"""The bench of the web app: starting, following, cancelling; and the measurements that are kept.

Owns: the addresses under /api/bench. A kept measurement is given out as `bench --json` and `bench --csv` print it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...bench.apply import check_pair_is_configured, write_block_size
from ...bench.history import MOST_RUNS, KeptRun, RunStore
from ...bench.presets import PRESET_TOKENS, PRESETS, USUAL_REPEATS, USUAL_SAMPLES, USUAL_TOKENS, USUAL_WIDTHS
from ...bench.record import csv_text
from ...bench.sets import NAMES
from ...engine.setup import prepare
from ...errors import AppError, one_line
from ...settings.paths import Base
from ..http.endpoint import following
from ..http.errors import CONFLICT, NOT_FOUND, ApiError
from ..http.fields import Fields, parse_json
from ..http.wire import Frame, json_response, read_body
from ..serving.service import Service
from .bench_request import read_bench
from .bench_run import BenchRunner
from .reading import Query

T = TypeVar("T")
BETWEEN_S = 0.2  # frames of a stream come at least so far apart


class BenchApi:
    """Endpoints as methods of one object, so that they share the measurement under way."""

    def __init__(self, service: Service):
        self._service = service
        self._runner = BenchRunner(service, self._store)

    def routes(self) -> list[Route]:
        one = "/api/bench/runs/{id}"
        return [
            Route("/api/bench", self.about, methods=["GET"]),
            Route("/api/bench", self.start, methods=["POST"]),
            Route("/api/bench/cancel", self.cancel, methods=["POST"]),
            Route(
                "/api/bench/events",
                following(*self._service.connection, self.follow),
                methods=["GET"],
            ),
            Route("/api/bench/runs", self.runs, methods=["GET"]),
            Route(one, self.run, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/json", self.json, methods=["GET"]),
            Route(f"{one}/csv", self.csv, methods=["GET"]),
            Route(f"{one}/apply", self.apply, methods=["POST"]),
        ]

    async def close(self) -> None:
        """End what is measured; what came of it is kept."""
        await self._runner.close()

    async def about(self, _: Request) -> Response:
        """What can be asked for, and what is under way."""
        run = self._runner.current
        defaults = {"samples": USUAL_SAMPLES, "widths": list(USUAL_WIDTHS), "repeats": USUAL_REPEATS,
                    "max_tokens": USUAL_TOKENS, "preset_max_tokens": PRESET_TOKENS}  # fmt: skip
        return json_response({
            "models": self._service.pool.status(), "sets": list(NAMES), "presets": list(PRESETS), "defaults": defaults,
            "most_kept": MOST_RUNS, "current": None if run is None else run.to_dict(),
        })  # fmt: skip

    async def start(self, request: Request) -> Response:
        ask = read_bench(parse_json(await read_body(request, self._service.limits)))
        await self._service.pool.follow()
        return json_response(self._runner.start(ask).to_dict(), 201)

    async def cancel(self, request: Request) -> Response:
        await self._no_fields(request)
        return json_response(self._runner.cancel().to_dict())

    async def follow(self, request: Request) -> AsyncGenerator[Frame, None]:
        """The measurement under way: `state` again and again, `rows` when they changed, `end` with its record.

        With `run` the measurement of that id, also when it failed before its page could follow it: then `end` comes at
        once.
        """
        query = Query(request)
        name = query.text("run")
        query.finish()
        run = self._runner.under_way() if name is None else self._runner.find(name)
        seen, rows = -1, 0
        while True:
            seen = await run.bell.wait(seen)
            if run.rows != rows:
                rows = run.rows
                yield Frame({"settings": run.settings}, "rows")
            if run.ended:
                yield Frame({**run.to_dict(), "record": run.record}, "end")
                return
            yield Frame(run.to_dict(), "state")
            await asyncio.sleep(BETWEEN_S)

    async def runs(self, _: Request) -> Response:
        found, problems = await asyncio.to_thread(self._store().all)
        return json_response({"runs": [run.summary() for run in found], "problems": problems, "most": MOST_RUNS})

    async def run(self, request: Request) -> Response:
        run = await self._kept(request)
        return json_response({**run.summary(), "record": run.record})

    async def json(self, request: Request) -> Response:
        """The record alone, as a file."""
        run = await self._kept(request)
        return json_response(run.record, headers=_as_file(f"bench-{run.id}.json"))

    async def csv(self, request: Request) -> Response:
        run = await self._kept(request)
        text = await _asked(lambda: csv_text(run.record))
        return Response(text.encode(), headers=_as_file(f"bench-{run.id}.csv"), media_type="text/csv")

    async def delete(self, request: Request) -> Response:
        store, name = self._store(), request.path_params["id"]
        await _asked(lambda: store.delete(name))
        return json_response({"deleted": name})

    async def apply(self, request: Request) -> Response:
        """Set the advised block size, which later replies of the model use."""
        await self._no_fields(request)
        run = await self._kept(request)
        advice = run.record["recommendation"] or {}
        width = advice.get("block_size")
        if width is None:
            raise ApiError("apply: nothing is written: no block size is recommended", status=CONFLICT)
        told = await _asked(lambda: _apply(run, width, self._service.base()), status=CONFLICT)
        await self._service.pool.refresh()
        return json_response({"model": run.model, "block_size": width, "told": told})

    async def _kept(self, request: Request) -> KeptRun:
        store, name = self._store(), request.path_params["id"]
        return await _asked(lambda: store.load(name))

    def _store(self) -> RunStore:
        return RunStore(self._service.base().folder)

    async def _no_fields(self, request: Request) -> None:
        body = await read_body(request, self._service.limits)
        if body:
            Fields(parse_json(body)).finish()


def _apply(run: KeptRun, width: int, base: Base) -> str:
    setup = prepare(run.model, base=base)
    check_pair_is_configured(setup, run.record["drafter"], option="apply")
    return write_block_size(setup, base, width)


async def _asked(work: Callable[[], T], status: int = NOT_FOUND) -> T:
    """Do something with files in a thread; what it refuses is told with this status."""
    try:
        return await asyncio.to_thread(work)
    except AppError as error:
        raise ApiError(one_line(str(error)), status=status) from None


def _as_file(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}

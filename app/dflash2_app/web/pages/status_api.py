"""The status of the server for the web app: what runs, what it has done, what this machine is, and the log.

Owns: /api/status, /api/doctor, /api/logs and /api/about. What loads a model or measures runs only when asked for, one
at a time, with a place in line like any request.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...engine.tuning import overview
from ...errors import explain
from ...reports.machine import MOST_ROWS, examine, kernels, look
from ..http.endpoint import following
from ..http.errors import CONFLICT, ApiError, refuse
from ..http.fields import Fields, parse_json
from ..http.log import LEVELS, LogBuffer
from ..http.wire import Frame, json_response, read_body
from ..serving.queue import Seat
from ..serving.service import Service
from .files import FOLDER

log = logging.getLogger("dflash2.serve")
BETWEEN_S = 0.3  # between two frames of the log


@dataclass
class Examination:
    """Passes of a model timed on demand, and how far that is."""

    model: str
    rows: int
    state: str = "waiting"  # then "running", then "done" or "failed"
    stage: str = "waiting for its turn"
    problem: str | None = None
    found: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    seconds: float | None = None

    @property
    def ended(self) -> bool:
        return self.seconds is not None

    def to_dict(self) -> dict[str, Any]:
        took = time.monotonic() - self.began if self.seconds is None else self.seconds
        return {"model": self.model, "rows": self.rows, "state": self.state, "stage": self.stage,
                "problem": self.problem, "seconds": round(took, 1), "found": self.found or None}  # fmt: skip


class StatusApi:
    """Endpoints as methods of one object.

    Args:
        lines: the log so far.
    """

    def __init__(self, service: Service, lines: LogBuffer, *, version: str, key_required: bool):
        self._service, self._lines = service, lines
        self._version, self._key_required = version, key_required
        self._began, self._since = time.time(), time.monotonic()
        self._machine: dict[str, Any] | None = None  # looked at once: a Mac is asked by a program of its own
        self._examination: Examination | None = None
        self._task: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        return [
            Route("/api/status", self.status, methods=["GET"]),
            Route("/api/doctor", self.doctor, methods=["GET"]),
            Route("/api/doctor", self.examine, methods=["POST"]),
            Route("/api/logs", self.logs, methods=["GET"]),
            Route(
                "/api/logs/events",
                following(*self._service.connection, self.follow),
                methods=["GET"],
            ),
            Route("/api/about", self.about, methods=["GET"]),
        ]

    async def status(self, request: Request) -> Response:
        """What changes: models, queue, sums, memory."""
        from dflash2_mlx import analysis

        desk, pool = self._service.desk, self._service.pool
        queue = {"running": desk.running, "waiting": desk.waiting, "most_running": desk.most_running,
                 "most_waiting": desk.most_waiting, "stuck_seconds": desk.stuck_for}  # fmt: skip
        memory = {**analysis.memory_use(), "limit_bytes": analysis.memory_limit(),
                  "process_peak_bytes": _process_peak()}  # fmt: skip
        return json_response({
            "version": self._version, "began": round(self._began), "address": _address(request),
            "uptime_seconds": round(time.monotonic() - self._since, 1), "key_required": self._key_required,
            "queue": queue, "models": pool.status(), "totals": self._service.metrics.totals(),
            "memory": memory, "notes": pool.notes, "left_out": pool.left_out,
        })  # fmt: skip

    async def doctor(self, _: Request) -> Response:
        """What `doctor --quick --json` prints, what is tuned now, and the examination that was asked for last."""
        if self._machine is None:
            self._machine = await asyncio.to_thread(look, self._tune_folder)
        last = None if self._examination is None else self._examination.to_dict()
        tuning = await asyncio.to_thread(overview, self._tune_folder)
        return json_response({
            **self._machine, "kernels": kernels(), "tuning": tuning, "tuning_now": self._service.pool.tuning(),
            "most_rows": MOST_ROWS, "examination": last,
        })  # fmt: skip

    @property
    def _tune_folder(self) -> Path:
        return self._service.base().tune

    async def examine(self, request: Request) -> Response:
        """Begin to time the passes of a model; GET tells how far that is."""
        fields = Fields(parse_json(await read_body(request, self._service.limits)))
        model, rows = fields.required_text("model"), fields.integer("rows", 2, MOST_ROWS) or MOST_ROWS
        fields.finish()
        await self._service.pool.follow()
        self._service.pool.check(model)
        if self._examination is not None and not self._examination.ended:
            raise ApiError("doctor: it is measuring, expected it to have ended", status=CONFLICT, code="doctor_running")
        seat = self._service.desk.take()
        self._examination = asked = Examination(model, rows)
        self._task = asyncio.create_task(self._examine(asked, seat))
        return json_response(asked.to_dict(), 202)

    async def _examine(self, asked: Examination, seat: Seat) -> None:
        def tell(stage: str) -> None:
            asked.stage = stage

        try:
            await seat.called.wait()
            asked.state, asked.stage = "running", f"loading {asked.model}"
            async with self._service.pool.using(asked.model) as served:
                found = await asyncio.to_thread(look, self._tune_folder)
                await asyncio.to_thread(examine, found, served.engine, asked.rows, tell)
            asked.state, asked.stage, asked.found = "done", "done", found
        except Exception as error:  # noqa: BLE001 - the boundary: the page is told, and the server goes on
            asked.state, asked.stage = "failed", "failed"
            asked.problem = error.message if isinstance(error, ApiError) else explain(error).message
            log.warning("doctor of %s failed: %s", asked.model, type(error).__name__)
        finally:
            asked.seconds = time.monotonic() - asked.began
            seat.leave()

    async def logs(self, request: Request) -> Response:
        after, level = _log_query(request)
        return json_response({"lines": self._lines.lines(after, level), "last": self._lines.last})

    async def follow(self, request: Request) -> AsyncGenerator[Frame, None]:
        """The log from a line on, as it grows."""
        after, level = _log_query(request)
        seen = -1
        while True:
            seen = await self._lines.bell.wait(seen)
            last = self._lines.last
            lines = self._lines.lines(after, level)
            if lines:
                yield Frame({"lines": lines, "last": last}, "lines")
            after = max(last, after)
            await asyncio.sleep(BETWEEN_S)

    async def about(self, _: Request) -> Response:
        """The program and the parts of others in its pages, with their licences."""
        vendor = FOLDER / "vendor"
        found = sorted(path for path in vendor.rglob("*") if path.is_file() and "licen" in path.name.lower())
        parts = [
            {"name": path.relative_to(vendor).as_posix(), "path": f"/static/{path.relative_to(FOLDER).as_posix()}"}
            for path in found
        ]
        return json_response({"version": self._version, "licence": "Apache-2.0", "vendored": parts})


def _log_query(request: Request) -> tuple[int, str]:
    """Raises ApiError: a parameter nobody knows, or one of the wrong kind."""
    given = dict(request.query_params)
    after, level = given.pop("after", "0"), given.pop("level", LEVELS[0])
    for name, value in given.items():
        raise refuse(name, value, "no such field", code="unknown_parameter")
    if not (after.isascii() and after.isdigit() and len(after) < 16):
        raise refuse("after", after, "an integer >= 0")
    if level not in LEVELS:
        raise refuse("level", level, " or ".join(map(repr, LEVELS)))
    return int(after), level


def _address(request: Request) -> str:
    """Where this server listens; a browser may know it by another name."""
    host, port = request.scope["server"]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _process_peak() -> int:
    """Most bytes this process ever had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

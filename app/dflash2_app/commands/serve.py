"""`dflash2-mlx serve`: an HTTP server that editors and agents talk to."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dflash2_mlx as d2

from ..console.output import Output
from ..errors import UsageError
from ..reports.machine import first_use_note
from .options import NO_DRAFTER, BasePath, Exactness, TargetDtype, Tune, valued
from .parsers import filled, grouped, integer, number, one_integer_of, one_of

if TYPE_CHECKING:
    from ..web.serving.catalogue import Catalogue, Wanted
    from ..web.serving.service import Service

KEY_VARIABLE = "DFLASH2_API_KEY"
GIGA = 10**9
MOST_LISTED = 6  # names in the line that says what is served
_model, _address, _limits = valued("Model"), valued("Server"), valued("Limits")
_positive = number("> 0", lambda x: x > 0)
_LOG_LEVELS = ("debug", "info", "warning")


@dataclass(frozen=True)
class ServedModels:
    """Which models are offered; the n-th drafter belongs to the n-th model."""

    model: Annotated[
        list[str] | None,
        _model(
            "--model",
            "PATH|ID",
            "Target: a folder, a Hub id or a configured name; repeatable",
            filled,
            default="every model on this machine",
        ),
    ] = None
    drafter: Annotated[
        list[str] | None,
        _model(
            "--drafter",
            "PATH|ID|none",
            "Drafter of the model in the same place; repeatable",
            filled,
            default="as configured",
        ),
    ] = None
    draft_bits: Annotated[
        int | None,
        _model("--draft-bits", "4|8", "Quantize the drafters on load", one_integer_of(4, 8), default="as configured"),
    ] = None
    target_dtype: Annotated[str | None, TargetDtype] = None
    exactness: Annotated[str | None, Exactness] = None
    base_path: Annotated[Path | None, BasePath] = None
    tune: Annotated[bool | None, Tune] = None
    preload: Annotated[
        bool,
        typer.Option(
            "--preload/--no-preload", help="Load the first model and pinned ones at start", rich_help_panel="Model"
        ),
    ] = True

    def __post_init__(self) -> None:
        models, drafters = self.model or [], self.drafter or []
        if drafters and len(drafters) != len(models):
            raise UsageError(
                f"--drafter: got {len(drafters)} for {len(models)} --model, expected one for each, or none at all"
            )
        names = [model_name(model) for model in models]
        twice = [name for at, name in enumerate(names) if name in names[:at]]
        if twice:
            raise UsageError(f"--model: got {twice[0]!r} twice, expected different names")

    def wanted(self) -> list[Wanted]:
        """The models of the command line, each with what is said of its drafter."""
        from ..web.serving.catalogue import Wanted

        models = self.model or []
        nothing: list[str | None] = [None] * len(models)
        drafters = list(self.drafter) if self.drafter else nothing
        return [
            Wanted(model, model_name(model), _drafting(drafter))
            for model, drafter in zip(models, drafters, strict=True)
        ]  # fmt: skip

    def catalogue(self) -> Catalogue:
        """What is offered, by these options and the settings."""
        from ..settings.paths import find_base
        from ..web.serving.catalogue import Catalogue

        asked = {"target_dtype": self.target_dtype, "exactness": self.exactness, "tune": self.tune}
        given = {name: value for name, value in asked.items() if value is not None}
        base = find_base(self.base_path)
        return Catalogue(base, wanted=self.wanted(), given=given, draft_bits=self.draft_bits)


def _drafting(drafter: str | None) -> dict[str, Any]:
    """What `--drafter` says, by the keys of the settings."""
    if drafter is None:
        return {}
    if drafter == NO_DRAFTER:
        return {"dflash_enabled": False}
    return {"dflash_enabled": True, "dflash_draft_model": drafter}


@dataclass(frozen=True)
class ServerOptions:
    """Where to listen, and who may ask."""

    host: Annotated[str, _address("--host", "ADDRESS", "Address to listen on", filled)] = "127.0.0.1"
    port: Annotated[int, _address("--port", "N", "Port; 0 takes a free one", integer(0, 65535))] = 8080
    api_key: Annotated[
        str | None,
        _address("--api-key", "KEY", f"Ask clients for this key; better given in {KEY_VARIABLE}", filled),
    ] = None
    log_level: Annotated[
        str, _address("--log-level", "|".join(_LOG_LEVELS), "What the log tells", one_of(*_LOG_LEVELS))
    ] = "info"

    @property
    def key(self) -> str | None:
        return self.api_key or os.environ.get(KEY_VARIABLE) or None


@dataclass(frozen=True)
class LimitOptions:
    """What the server takes on."""

    max_running: Annotated[int, _limits("--max-running", "N", "Replies that share the machine", integer(1, 256))] = 8
    max_waiting: Annotated[int, _limits("--max-waiting", "N", "Requests in line behind them", integer(0, 10000))] = 64
    max_body_mb: Annotated[float, _limits("--max-body-mb", "X", "Largest request, in MB", _positive)] = 32.0
    max_loaded: Annotated[int | None, _limits("--max-loaded", "N", "Models in memory at once", integer(1))] = None
    max_memory_gb: Annotated[
        float | None,
        _limits("--max-memory-gb", "X", "Weights in memory at once, in GB", _positive,
                default="what this machine gives to models"),
    ] = None  # fmt: skip
    idle_unload: Annotated[
        float | None,
        _limits("--idle-unload", "SECONDS", "Unload a model that nobody used for so long", _positive,
                default="as configured, else never"),
    ] = None  # fmt: skip
    stuck_after: Annotated[
        float, _limits("--stuck-after", "SECONDS", "Report a reply that stands still for so long", _positive)
    ] = 120.0


@grouped
def serve(models: ServedModels, server: ServerOptions, limits: LimitOptions) -> None:
    """Serve models over HTTP: the OpenAI and Anthropic interfaces."""
    from ..web.guard import is_loopback

    if server.key is None and not is_loopback(server.host):
        raise UsageError(
            f"--host: got {server.host!r}, expected 127.0.0.1 or localhost: other machines could use this server; "
            f"an --api-key allows it"
        )
    with Output() as out:
        from ..web.app import make_app
        from ..web.server import bind, run

        claimed = bind("127.0.0.1" if server.host == "localhost" else server.host, server.port)
        with claimed, _log(server.log_level):
            out.status("looking through the models")
            catalogue = models.catalogue()
            _announce(models, catalogue, out)
            service = _service(models, catalogue, limits, out)
            host, port = claimed.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            out.info(f"serving {_listing(service.pool.names)} on http://{shown}:{port}/v1")
            run(make_app(service, version=d2.__version__, api_key=server.key), claimed, service.stop)


def _announce(models: ServedModels, catalogue: Catalogue, out: Output) -> None:
    """Say what was chosen for the user, and what the settings have to tell."""
    sources = [source for source in catalogue.offered.sources if source.card.base is None]
    if models.model is None and len(sources) == 1:
        out.note("no --model given, and no other model on this machine: serving the embedded mini pair")
    elif models.model is None:
        out.note(f"no --model given: offering the {len(sources)} models of this machine, {sources[0].name} first")
    for note in catalogue.offered.notes:
        out.note(note)
    for source in sources:
        if source.card.problem is not None:
            out.note(f"{source.name} cannot be loaded: {source.card.problem}")


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def _service(models: ServedModels, catalogue: Catalogue, limits: LimitOptions, out: Output) -> Service:
    """What the server works with; the first model is loaded here, so that one that cannot be ends the command."""
    from ..web.http.wire import Limits
    from ..web.serving.pool import ModelPool
    from ..web.serving.queue import Desk
    from ..web.serving.service import Service

    most_bytes = d2.analysis.memory_limit() if limits.max_memory_gb is None else int(limits.max_memory_gb * GIGA)
    pool = ModelPool(
        catalogue=catalogue, most_bytes=most_bytes, most_loaded=limits.max_loaded, ttl_s=limits.idle_unload
    )  # fmt: skip
    if models.preload:
        first = catalogue.offered.sources[0]
        out.status(f"loading {first.name}")
        served = first.load()
        pool.adopt(served)
        for note in served.report.notes:
            out.note(f"{first.name}: {note}")
        if served.report.dflash_fallback_reason is not None:
            out.note(f"{first.name}: plain decoding: {served.report.dflash_fallback_reason}")
        if (note := first_use_note()) is not None:
            out.note(note)
    desk = Desk(limits.max_running, limits.max_waiting, limits.stuck_after)
    body = int(limits.max_body_mb * 10**6)
    return Service(pool, desk, Limits(body_bytes=body), load_pinned=models.preload, base_path=models.base_path)


@contextmanager
def _log(level: str) -> Iterator[None]:
    """Write the server's log to stderr until the block ends."""
    from ..web.http.log import PlainFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level.upper())
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    log, errors = logging.getLogger("dflash2.serve"), logging.getLogger("uvicorn.error")
    log.setLevel(min(handler.level, logging.INFO))  # the status page shows what is told at this level, whatever
    for logger in (log, errors):
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in (log, errors):
            logger.removeHandler(handler)
            logger.propagate = True


def model_name(target: str) -> str:
    """What requests call a model: a folder's own name, or the Hub id."""
    folder = Path(target)
    return folder.resolve().name if folder.is_dir() else target

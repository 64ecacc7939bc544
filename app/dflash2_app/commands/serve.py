"""`dflash2-mlx serve`: an HTTP server that editors and agents talk to."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..output import Output
from .grouping import grouped
from .options import MINI, NO_DRAFTER, valued
from .parsers import filled, integer, number, one_integer_of, one_of

if TYPE_CHECKING:
    from ..web.served import CommandLineSource
    from ..web.service import Service

KEY_VARIABLE = "DFLASH2_API_KEY"
GIGA = 10**9
_model, _address, _limits = valued("Model"), valued("Server"), valued("Limits")
_positive = number("> 0", lambda x: x > 0)
_LOG_LEVELS = ("debug", "info", "warning")


@dataclass(frozen=True)
class ServedModels:
    """Which models are offered; the n-th drafter belongs to the n-th model."""

    model: Annotated[
        list[str] | None,
        _model("--model", "PATH|ID", "Target: a folder or a Hub id; repeatable", filled, default="the mini pair"),
    ] = None
    drafter: Annotated[
        list[str] | None,
        _model("--drafter", "PATH|ID|none", "Drafter of the model in the same place; repeatable", filled),
    ] = None
    draft_bits: Annotated[
        int | None, _model("--draft-bits", "4|8", "Quantize the drafters on load", one_integer_of(4, 8))
    ] = None
    target_dtype: Annotated[
        str,
        _model("--target-dtype", "auto|bfloat16|float32", "float32 dequantizes on load",
               one_of("auto", "bfloat16", "float32")),
    ] = "auto"  # fmt: skip
    preload: Annotated[
        bool, typer.Option("--preload/--no-preload", help="Load the first model at start", rich_help_panel="Model")
    ] = True

    def __post_init__(self) -> None:
        models, drafters = self.model or [MINI], self.drafter or []
        if drafters and len(drafters) != len(models):
            raise UsageError(
                f"--drafter: got {len(drafters)} for {len(models)} --model, expected one for each, or none at all"
            )
        names = [model_name(model) for model in models]
        twice = [name for at, name in enumerate(names) if name in names[:at]]
        if twice:
            raise UsageError(f"--model: got {twice[0]!r} twice, expected different names")

    def sources(self) -> list[CommandLineSource]:
        from ..web.served import CommandLineSource

        models = self.model or [MINI]
        nothing: list[str | None] = [None] * len(models)
        drafters = list(self.drafter) if self.drafter else nothing
        return [self._source(CommandLineSource, *pair) for pair in zip(models, drafters, strict=True)]

    def _source(self, kind: type[CommandLineSource], target: str, drafter: str | None) -> CommandLineSource:
        plain = drafter == NO_DRAFTER
        named = None if plain else drafter
        options: dict[str, Any] = {"target_dtype": self.target_dtype}
        if self.draft_bits is not None and (named is not None or (target == MINI and not plain)):
            options["draft_bits"] = self.draft_bits
        return kind(model_name(target), target, named, _defaults(), plain, options)


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
        float | None, _limits("--max-memory-gb", "X", "Weights in memory at once, in GB", _positive)
    ] = None
    idle_unload: Annotated[
        float | None, _limits("--idle-unload", "SECONDS", "Unload a model that nobody used for so long", _positive)
    ] = None
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
        import dflash2_mlx as d2

        from ..web.app import make_app
        from ..web.server import bind, run

        claimed = bind("127.0.0.1" if server.host == "localhost" else server.host, server.port)
        with claimed:
            if models.model is None:
                out.note("no --model given: serving the embedded mini pair")
            _start_log(server.log_level)
            service = _service(models, limits, out)
            host, port = claimed.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            out.info(f"serving {', '.join(source.name for source in models.sources())} on http://{shown}:{port}/v1")
            run(make_app(service, version=d2.__version__, api_key=server.key), claimed, service.stop)


def _service(models: ServedModels, limits: LimitOptions, out: Output) -> Service:
    """What the server works with; the first model is loaded here, so that one that cannot be ends the command."""
    from ..web.desk import Desk
    from ..web.pool import ModelPool
    from ..web.service import Limits, Service

    most_bytes = None if limits.max_memory_gb is None else int(limits.max_memory_gb * GIGA)
    sources = models.sources()
    pool = ModelPool(sources, most_bytes=most_bytes, most_loaded=limits.max_loaded, ttl_s=limits.idle_unload)
    if models.preload:
        out.status(f"loading {sources[0].name}")
        pool.adopt(sources[0].load())
    desk = Desk(limits.max_running, limits.max_waiting, limits.stuck_after)
    return Service(pool, desk, Limits(body_bytes=int(limits.max_body_mb * 10**6)))


def _defaults() -> Any:
    """What a request gets that names nothing itself: the values oMLX starts with."""
    import dflash2_mlx as d2

    return d2.GenerationConfig(max_tokens=32768, sampling=d2.SamplingConfig(temperature=1.0, top_p=0.95))


def _start_log(level: str) -> None:
    from ..web.log import PlainFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("dflash2.serve")
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False
    errors = logging.getLogger("uvicorn.error")
    errors.addHandler(handler)
    errors.propagate = False


def model_name(target: str) -> str:
    """What requests call a model: a folder's own name, or the Hub id."""
    folder = Path(target)
    return folder.resolve().name if folder.is_dir() else target

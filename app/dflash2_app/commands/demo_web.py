"""`dflash2-mlx demo --web`: the side-by-side page in a browser, on the configured pair.

Owns: a server of one loaded pair on a free port, the page's address with what was asked for, and the browser.
"""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import dflash2_mlx as d2

from ..console.output import Output

if TYPE_CHECKING:
    from socket import socket

    from ..engine.model import Configured

HOST = "127.0.0.1"
_BROWSER_AFTER_S = 0.3  # the socket listens already: a browser that is quicker only waits


def page_address(port: int, values: dict[str, Any]) -> str:
    """The page with its form filled in; it starts by itself."""
    given = {name: value for name, value in values.items() if value is not None}
    return f"http://{HOST}:{port}/#/race?{urlencode({**given, 'start': 1})}"


def serve_page(
    configured: Configured,
    config: d2.GenerationConfig,
    values: dict[str, Any],
    out: Output,
    *,
    browser: bool,
    base_path: Path | None,
) -> None:
    """Serve until Ctrl-C.

    Args:
        config: what a race gets that names nothing itself.
        values: fields of the page's form.
        base_path: as the command line names it, for the other pages.
    """
    from ..web.server import bind

    with bind(HOST, 0) as claimed:
        address = page_address(claimed.getsockname()[1], {"model": configured.named.model_id, **values})
        out.end_status()
        out.info(f"side by side: {address}")
        out.info("Ctrl-C ends it")
        if browser:
            opening = threading.Timer(_BROWSER_AFTER_S, _open_browser, (address, out))
            opening.daemon = True  # a browser that runs in the terminal must not outlive Ctrl-C
            opening.start()
        _run(configured, config, claimed, base_path)


def _open_browser(address: str, out: Output) -> None:
    if not webbrowser.open(address):
        out.note("no browser could be opened: open the address above in one")


def _run(configured: Configured, config: d2.GenerationConfig, claimed: socket, base_path: Path | None) -> None:
    from ..engine.memory_fit import weight_bytes
    from ..web.app import make_app
    from ..web.server import run
    from ..web.serving.pool import ModelPool
    from ..web.serving.queue import Desk
    from ..web.serving.service import Service
    from ..web.serving.source import LoadedSource, Served

    served = Served.of(configured.named.model_id, configured, config=config)
    pool = ModelPool([LoadedSource(served, weight_bytes=weight_bytes(configured.plan))])
    pool.adopt(served)
    service = Service(pool, Desk(), base_path=base_path)
    run(make_app(service, version=d2.__version__), claimed, service.stop)

"""A real server on a free port, in a thread of this process."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from dflash2_app.web.app import make_app
from dflash2_app.web.http.wire import Limits
from dflash2_app.web.server import bind, make_server
from dflash2_app.web.serving.pool import ModelPool
from dflash2_app.web.serving.queue import Desk
from dflash2_app.web.serving.service import Service

from .models import ReadySource, scripted, source_of, tiny_served

PATIENCE_S = 240  # MLX may have to compile on a busy machine before the first reply
HELLO = [{"role": "user", "content": "hello"}]


@dataclass
class Running:
    """A server that is up, and its users' clients (making one takes half a second)."""

    url: str
    service: Service

    @functools.cached_property
    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=PATIENCE_S)

    @functools.cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    @functools.cached_property
    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=PATIENCE_S)

    def close(self) -> None:
        for name in ("http", "openai", "anthropic"):
            if name in self.__dict__:
                self.__dict__[name].close()

    def settle(self, seconds: float = 60) -> None:
        """Wait until nothing runs and nobody waits."""
        end = time.monotonic() + seconds
        while self.service.desk.running or self.service.desk.waiting:
            assert time.monotonic() < end, "something still runs"
            time.sleep(0.01)


@contextmanager
def serving(
    *sources: ReadySource, limits: Limits | None = None, api_key: str | None = None, running: int = 8,
    waiting: int = 64, stuck_s: float = 120.0, **pool: Any,
) -> Iterator[Running]:  # fmt: skip
    """Run a server until the block ends."""
    began: list[Any] = []
    claimed = bind("127.0.0.1", 0)

    async def main() -> None:
        desk = Desk(running, waiting, stuck_s)
        service = Service(ModelPool(sources, **pool), desk, limits or Limits())
        server = make_server(make_app(service, version="test", api_key=api_key), service.stop)
        began.extend([service, server])
        await server.serve(sockets=[claimed])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        while len(began) < 2 or not began[1].started:
            assert thread.is_alive(), "the server has ended"
            time.sleep(0.01)
        running_server = Running(f"http://127.0.0.1:{claimed.getsockname()[1]}", began[0])
        yield running_server
        running_server.close()
    finally:
        began[1].should_exit = True
        thread.join(60)
        claimed.close()
        assert not thread.is_alive(), "the server does not end"


def raw_request(
    server: Running, fields: dict[str, Any], *, path: str = "/v1/chat/completions", buffer: int | None = None
) -> socket.socket:
    """A request on a bare connection, so that it can be dropped at any moment."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(PATIENCE_S)
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((host, int(port)))
    data = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Models for most tests: `tiny` drafts, `plain` does not, `bare` has no chat template."""
    with serving(
        source_of(tiny_served()), source_of(tiny_served("plain", drafts=False)),
        source_of(tiny_served("bare", template=None)), source_of(tiny_served("toolless", parser=None)),
        source_of(scripted("<think>\nhm, well\n</think>\n\nThe answer is 4.")),
    ) as running:  # fmt: skip
        yield running

"""Runs the application on a port until somebody stops it.

Owns: the socket, the connections' patience, and the log. A port in use is found out before any model is loaded.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import AppError

HEADER_S = 30.0  # for a client to send the head of a request
MOST_HEAD_BYTES = 64 * 2**10
BACKLOG = 256
GRACE_S = 5  # for requests to take their leave at the end


def bind(host: str, port: int) -> socket.socket:
    """Claim an address; port 0 takes any free one.

    Raises:
        AppError: in use, not allowed, or no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    claimed = socket.socket(family, socket.SOCK_STREAM)
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        claimed.bind((host, port))
    except OSError as error:
        claimed.close()
        raise _cannot_bind(host, port, error) from None
    claimed.listen(BACKLOG)
    return claimed


def _cannot_bind(host: str, port: int, error: OSError) -> AppError:
    if error.errno == errno.EADDRINUSE:
        return AppError(f"--port: {port} on {host} is in use by another program", hint="--port 0 takes a free one")
    if error.errno == errno.EACCES:
        return AppError(f"--port: {port} on {host} needs rights this user has not", hint="use a port above 1023")
    return AppError(f"--host: {host} is no address of this machine ({(error.strerror or str(error)).lower()})")


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP protocol, closing connections that take too long to send the head of a request.

    uvicorn itself waits for ever on a client that sends a header now and then.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._patience: asyncio.TimerHandle | None = None
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Run the clock exactly while no request is being answered."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy or self.transport.is_closing():
            self._stop_watch()
        elif self._patience is None:
            self._patience = self.loop.call_later(HEADER_S, self.transport.close)

    def _stop_watch(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Server(uvicorn.Server):
    """uvicorn's server, which tells somebody that it is about to end before it waits for what runs."""

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]):
        super().__init__(config)
        self._on_shutdown = on_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_shutdown()
        await super().shutdown(sockets)


def make_server(app: ASGIApp, on_shutdown: Callable[[], None]) -> uvicorn.Server:
    """A server that is not running yet; `serve(sockets=[…])` runs it."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        timeout_graceful_shutdown=GRACE_S,
    )
    return _Server(config, on_shutdown)


def run(app: ASGIApp, claimed: socket.socket, on_shutdown: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        on_shutdown: called once when the server begins to end; what still runs has to end after it.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    make_server(app, on_shutdown).run(sockets=[claimed])

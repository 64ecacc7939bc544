"""Puts the server together: routes, guard, and what runs beside the requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .api.anthropic import Messages
from .api.chat import ChatCompletions
from .api.completions import Completions
from .api.endpoints import CountEndpoint, TextEndpoint
from .api.models import ModelsApi
from .api.responses import Responses
from .guard import Guard
from .http.errors import INTERNAL, ApiError
from .http.log import LogBuffer
from .http.wire import ClientGone, json_response
from .openapi.document import Description
from .pages.bench_api import BenchApi
from .pages.chats_api import ChatModelApi, ChatsApi
from .pages.files import Pages
from .pages.manager_api import Manager
from .pages.race_api import RaceApi
from .pages.status_api import StatusApi
from .serving.service import Service

log = logging.getLogger("dflash2.serve")
SWEEP_S = 1.0  # how often idle models are looked for


def make_app(service: Service, *, version: str, api_key: str | None = None) -> Starlette:
    """The ASGI application.

    Args:
        api_key: asked of every client; None lets in whoever reaches this machine's own address.
    """
    models, bench, manager = ModelsApi(service, version), BenchApi(service), Manager(service)
    lines = LogBuffer([api_key or ""])
    status = StatusApi(service, lines, version=version, key_required=api_key is not None)
    routes = [
        *Pages().routes(),
        *bench.routes(),
        *manager.routes(),
        *status.routes(),
        *RaceApi(service, version).routes(),
        *ChatsApi(service).routes(),
        *ChatModelApi(service).routes(),
        Route("/health", models.health, methods=["GET"]),
        Route("/metrics", models.metrics, methods=["GET"]),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/status", models.status, methods=["GET"]),
        Route("/v1/models/refresh", models.refresh, methods=["POST"]),
        Route("/v1/models/{name:path}/reload", models.reload, methods=["POST"]),
        Route("/v1/models/{name:path}/load", models.load, methods=["POST"]),
        Route("/v1/models/{name:path}/unload", models.unload, methods=["POST"]),
        Route("/v1/models/{name:path}/settings", models.change, methods=["POST"]),
        Route("/v1/models/{name:path}", models.one, methods=["GET"]),
        Route("/v1/chat/completions", TextEndpoint(service, ChatCompletions()), methods=["POST"]),
        Route("/v1/completions", TextEndpoint(service, Completions()), methods=["POST"]),
        Route("/v1/responses", TextEndpoint(service, Responses()), methods=["POST"]),
        Route("/v1/messages", TextEndpoint(service, Messages()), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountEndpoint(service), methods=["POST"]),
    ]

    routes += Description(version, routes).routes()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        lines.attach()
        manager.start()
        try:
            async with _beside(service):
                yield
        finally:
            manager.close()
            await bench.close()
            lines.detach()

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, api_key=api_key, metrics=service.metrics)],
        exception_handlers={
            ApiError: _refused, HTTPException: _not_found, ClientGone: _gone, Exception: _fault,
        },
        lifespan=lifespan,
    )  # fmt: skip


@asynccontextmanager
async def _beside(service: Service) -> AsyncIterator[None]:
    """What goes on beside the requests; nobody is admitted any more at the end."""
    beside = [asyncio.create_task(_unload_idle(service))]
    if service.load_pinned:
        beside.append(asyncio.create_task(service.pool.load_pinned()))
    try:
        yield
    finally:
        service.desk.close()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _unload_idle(service: Service) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        for name in service.pool.unload_idle():
            log.info("unloaded %s: idle", name)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return json_response(error.of(request.url.path), error.status)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}"
    refused = ApiError(f"path: got {what!r}, expected one of this server's", status=error.status_code)
    return json_response(refused.of(request.url.path), error.status_code, dict(error.headers or {}))


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def _fault(_: Request, error: Exception) -> Response:
    return json_response(
        ApiError("the server has made a mistake; its log tells more", status=INTERNAL).openai(), INTERNAL
    )

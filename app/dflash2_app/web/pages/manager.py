"""The model manager's endpoints put together: models, settings, downloads, and their event streams."""

from __future__ import annotations

import asyncio
import logging

from starlette.routing import BaseRoute, Route

from ..connected import Connected, following
from ..service import Service
from .downloads import Downloads
from .downloads_api import DownloadsApi
from .live import Live
from .manager_api import ManagerApi
from .settings_api import SettingsApi

log = logging.getLogger("dflash2.serve")


class Manager:
    """Everything under `/api/models`, `/api/settings` and `/api/downloads`."""

    def __init__(self, service: Service):
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self.downloads = Downloads(self._downloaded)

    def routes(self) -> list[BaseRoute]:
        live = Live(self._service, self.downloads)
        return [
            # Before the models' own: a path is taken by the first that matches.
            Route("/api/models/events", following(self._service, live.changes), methods=["GET"]),
            Route("/api/models/verify", Connected(self._service, live.verify), methods=["POST"]),
            *ManagerApi(self._service, self.downloads.working_on).routes(),
            *SettingsApi(self._service).routes(),
            *DownloadsApi(self._service, self.downloads).routes(),
        ]

    def start(self) -> None:
        """Called in the event loop's thread, before the first request."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Stop downloads; what has come is kept."""
        self.downloads.close()
        self._loop = None

    def _downloaded(self) -> None:
        """A download has ended well; called in the queue's thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._service.pool.refresh(rescan=True), loop)

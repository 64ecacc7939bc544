"""Wakes those who follow something that changes."""

from __future__ import annotations

import asyncio


class Bell:
    """A counter of changes that can be waited for; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.count = 0
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Something has changed."""
        self.count += 1
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self, seen: int) -> int:
        """Wait until more than `seen` changes were made; how many."""
        while self.count == seen:
            await self._rung.wait()
        return self.count

"""The last lines of the server's log, for the status page.

Owns: what of a log record is kept. Never the text of an exception, which may repeat what a client sent, nor a secret;
characters that a terminal would obey are shown as signs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...console.output import printable
from ...errors import one_line
from .signal import Bell

LOGGERS = ("dflash2.serve", "uvicorn.error")


LEVELS = ("debug", "info", "warning", "error")


MOST_LINES = 1000


MOST_CHARACTERS = 2000


HIDDEN = "•••"


class LogBuffer(logging.Handler):
    """Keeps lines and wakes those who follow them.

    Args:
        secrets: texts that no line may show.
    """

    def __init__(self, secrets: Sequence[str] = (), most: int = MOST_LINES):
        super().__init__()
        self.bell = Bell()
        self._secrets = [secret for secret in secrets if secret]
        self._lines: deque[dict[str, Any]] = deque(maxlen=most)
        self._number = 0
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Listen from now on; call it on the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)

    def detach(self) -> None:
        """Listen no more."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self._loop = None

    def emit(self, record: logging.LogRecord) -> None:
        line = {
            "time": round(record.created, 3),
            "level": _level(record.levelno),
            "text": self._clean(record.getMessage() + _where(record)),
        }
        with self._guard:
            self._number += 1
            self._lines.append({"number": self._number, **line})
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody follows any more
                loop.call_soon_threadsafe(self.bell.ring)

    def lines(self, after: int = 0, least: str = "debug") -> list[dict[str, Any]]:
        """The lines behind number `after`, of a level and above."""
        wanted = LEVELS[LEVELS.index(least) :]
        with self._guard:
            return [line for line in self._lines if line["number"] > after and line["level"] in wanted]

    @property
    def last(self) -> int:
        """The number of the newest line; 0 before the first."""
        return self._number

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        text = printable(one_line(text))
        return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def _where(record: logging.LogRecord) -> str:
    """The kind of an exception and the place it came from."""
    if record.exc_info is None or record.exc_info[0] is None:
        return ""
    kind, _, trace = record.exc_info
    frames = traceback.extract_tb(trace)
    if not frames:
        return f" ({kind.__name__})"
    last = frames[-1]
    return f" ({kind.__name__} in {last.name}, {Path(last.filename).name}:{last.lineno})"


# Everything a terminal obeys, but for the line ends and tabs of tracebacks.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class PlainFormatter(logging.Formatter):
    """Writes control characters as what they are: `\\x1b` and its kind."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """A message is one line."""
        record.message = record.message.replace("\n", "\\n")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], super().format(record))

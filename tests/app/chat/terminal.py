"""A terminal for tests: the command runs on a pseudo-terminal, and its screen is kept as a person would see it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

from ..conftest import ROOT, environment

PATIENCE_S = 60.0


class Terminal:
    """One command on a screen of its own.

    Answers what a terminal is asked (where is the cursor?), and keeps the lines that left the screen at its top.
    """

    def __init__(self, command: list[str], *, columns: int = 80, rows: int = 24, **extra: str):
        self.screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        env = {**environment(), "TERM": "xterm-256color", **extra}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            if name not in extra:
                env.pop(name, None)
        self.child = pexpect.spawn(command[0], command[1:], env=env, cwd=str(ROOT), dimensions=(rows, columns))
        self.screen.write_process_input = lambda answer: self.child.send(answer)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    @property
    def whole(self) -> str:
        """What is on the screen and above it."""
        above = [
            "".join(line[column].data for column in range(self.screen.columns)) for line in self.screen.history.top
        ]
        return "\n".join(line.rstrip() for line in [*above, *self.screen.display]).rstrip()

    def pump(self, seconds: float = 0.05) -> None:
        """Take in what the command writes."""
        try:
            chunk = self.child.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            return
        self.raw += chunk
        self._stream.feed(chunk)

    def until(self, seen: str | Callable[[], bool], *, everywhere: bool = False) -> None:
        """Wait for a text on the screen (or anywhere above it), or for a condition."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = seen() if callable(seen) else seen in (self.whole if everywhere else self.text)
            if found:
                return
            assert time.monotonic() < deadline, f"never saw {seen!r} in:\n{self.whole}"
            alive = self.child.isalive()
            self.pump()
            assert alive or self.child.isalive() or time.monotonic() < deadline

    def type(self, text: str) -> None:
        """Press keys."""
        self.child.send(text)

    def enter(self, text: str) -> None:
        """Type a line."""
        self.child.send(text + "\r")

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window; the lines keep their place, as in a terminal that does not wrap anew."""
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.child.isalive():
            assert time.monotonic() < deadline, self.whole
            self.pump()
        while True:
            before = len(self.raw)
            self.pump(0.01)
            if len(self.raw) == before:
                break
        self.child.close()
        if self.child.signalstatus is not None:
            return -int(self.child.signalstatus)
        return int(self.child.exitstatus or 0)

    def close(self) -> None:
        """End the command, however it stands."""
        if self.child.isalive():
            self.child.kill(signal.SIGKILL)
        self.child.close(force=True)


def chat_command(*arguments: str | Path) -> list[str]:
    """`dflash2-mlx chat` of this checkout."""
    return [sys.executable, "-m", "dflash2_app", "chat", *map(str, arguments)]

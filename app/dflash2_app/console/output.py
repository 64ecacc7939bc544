"""The one place that writes: data to standard output, everything else to standard error.

Owns: both streams, the transient status line and `--output` files. Knows nothing of models. Invariant:
standard output carries only what was asked for, so that it can be piped; text from a model never reaches a
terminal with its control characters alive.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from ..errors import ReaderGone, UsageError

# C0 and C1 controls become visible signs; a reply must not move the cursor or retitle the window.
_VISIBLE = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}


_VISIBLE |= {0x7F: "␡", **dict.fromkeys(range(128, 160), "�")}


_CLEAR_LINE = "\r\x1b[K"


def printable(text: str) -> str:
    """Replace the characters a terminal would obey by characters it shows."""
    return text.translate(_VISIBLE)


def finite(value: Any) -> Any:
    """Replace what JSON cannot say (infinities, as in the log-probability of a banned token) by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a screen that understands cursor movement."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def use_lossy_encoding() -> None:
    """Let a stream that is not UTF-8 show `?` for what it cannot encode, instead of failing half-way."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")


def silence_stdout() -> None:
    """Send what is left in standard output nowhere: its reader is gone, and Python flushes once more at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None  # Typer would make a failure of a broken pipe


class Output:
    """Sink of one command.

    With `path`, data goes to that file instead of standard output. The file is opened for appending at once,
    so that an unwritable one is refused before anything slow starts, and written only when `close` finds
    that the command succeeded.
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self._kept: list[str] = []
        self._created = False
        self._status_shown = False
        self._line_open = False
        if path is not None:
            self._claim(path)

    def _claim(self, path: Path) -> None:
        existed = path.exists()
        try:
            with path.open("a", encoding="utf-8"):
                self._created = not existed
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"--output: got {str(path)!r}, expected a writable file ({reason})") from None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self.end_status()
        self.end_line()
        if self._path is None:
            return
        if kind is None:
            self._path.write_text("".join(self._kept), encoding="utf-8")
            self.note(f"written to {self._path}")
        elif self._created:
            self._path.unlink(missing_ok=True)

    def data(self, text: str) -> None:
        """Write text as it comes; a streamed reply is many calls."""
        if not text:
            return
        if self._path is not None:
            self._kept.append(text)
            return
        self.end_status()
        _write(printable(text) if is_terminal(sys.stdout) else text)
        self._line_open = not text.endswith("\n")

    def end_line(self) -> None:
        """Finish an open line of data, so that what follows starts on its own line."""
        if self._line_open:
            self._line_open = False
            _write("\n")
        if self._kept and not self._kept[-1].endswith("\n"):
            self._kept.append("\n")

    def json(self, value: dict[str, Any]) -> None:
        """Write one JSON object; nothing else may go to standard output in that run."""
        self.data(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def note(self, text: str) -> None:
        """Say something the user should know, on standard error."""
        self._say(f"note: {text}")

    def info(self, text: str) -> None:
        """Say something on standard error, without a label."""
        self._say(text)

    def _say(self, line: str) -> None:
        self.end_status()
        if self._line_open and is_terminal(sys.stdout):
            self.end_line()
        print(printable(line), file=sys.stderr, flush=True)

    def status(self, text: str) -> None:
        """Show what is going on until the next output, on a terminal only."""
        if is_terminal(sys.stderr) and not self._line_open:
            # One line, so that one can be taken away again.
            line = printable(text)[: max(1, shutil.get_terminal_size().columns - 1)]
            sys.stderr.write(f"{_CLEAR_LINE}{line}")
            sys.stderr.flush()
            self._status_shown = True

    def end_status(self) -> None:
        """Take the status line away."""
        if self._status_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._status_shown = False


def show_problem(message: str, hint: str | None) -> None:
    """Print an error, and what to do about it, on standard error."""
    bold_red, plain = ("\x1b[1;31m", "\x1b[0m") if _colour(sys.stderr) else ("", "")
    print(f"{bold_red}error:{plain} {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)


def _colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def follow(
    out: Output,
    what: str,
    events: Iterable[tuple[int, int, str]],
    worth_a_line: Callable[[int, str], bool] | None = None,
) -> None:
    """Go through `events` and show each.

    Args:
        what: the bar's label.
        events: (done, total, text).
        worth_a_line: which events get a line away from a terminal; about every tenth part when left out.
    """
    if not is_terminal(sys.stderr):
        name = "step" if what == "training" else f"{what}:"
        for done, total, text in events:
            step = max(1, total // 10)
            wanted = worth_a_line(done, text) if worth_a_line else done % step == 0 or done == total
            if wanted:
                out.info(f"{name} {done} of {total} · {text}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    out.end_status()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        for done, total, text in events:
            progress.update(task, total=total, completed=done, description=text)

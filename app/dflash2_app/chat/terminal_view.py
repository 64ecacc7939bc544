"""The chat on a terminal: Markdown as it comes, thinking dimmed, figures in one quiet line.

Owns: how things look, and how often the growing end of a reply is drawn. Finished blocks are drawn once; only the last,
growing one is drawn again, and of a long one only its end. Drawing takes a small share of the time, because the threads
of decoding and of drawing share one interpreter.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..console.charts import bar_chart
from ..console.output import printable
from ..engine.thinking import Kind
from .markdown import BlockStream, ChatMarkdown, LineStream
from .reader import quiet_keyboard

LEAST_PAUSE_S = 0.08


DRAWING_SHARE = 0.1


LEAST_COLUMNS, LEAST_ROWS = 20, 5


DIM = "dim"


_END_OF_LINE = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")


class TerminalView:
    """Shows a chat on a terminal.

    Args:
        stream: the terminal.
        size: asks it for its columns and rows.
        colour: whether colours are wanted; bold and dim stay.
    """

    def __init__(self, stream: TextIO, size: Callable[[], os.terminal_size], *, colour: bool = True):
        self.fold_thinking = False
        self._stream, self._size = stream, size
        self._console = Console(file=stream, force_terminal=True, highlight=False, no_color=not colour)
        self._region = LiveRegion(self._write, size)
        self._keyboard = quiet_keyboard()
        self._replying = False

    # What is said once.

    def header(self, title: str, hint: str) -> None:
        self._print(Text(title, style="bold"), Text(hint, style=DIM))

    def note(self, text: str) -> None:
        self._print(Text.assemble(("note: ", "yellow"), printable(text)))

    def info(self, text: str) -> None:
        self._print(Text(printable(text), style=DIM))

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(style=DIM)
        for left, right in rows:
            table.add_row(Text(printable(left)), Text(printable(right)))
        self._print(table)

    def problem(self, message: str, hint: str | None) -> None:
        self._print(Text.assemble(("error: ", "bold red"), printable(message)))
        if hint:
            self._print(Text(f"hint: {printable(hint)}", style=DIM))

    def bars(self, shares: Sequence[float | None]) -> None:
        ascii_only = not (self._stream.encoding or "").lower().startswith("utf")
        self._print(Text("acceptance by position", style=DIM), bar_chart(shares, ascii_only=ascii_only))

    def earlier(self, question: str, reply: str, *, markdown: bool) -> None:
        self._print(Text(f"> {printable(question)}", style="bold"))
        text = printable(reply)
        self._print(ChatMarkdown(text) if markdown else Text(text), Text(""))

    # A reply.

    def begin_reply(self, *, markdown: bool) -> None:
        self._blocks: BlockStream | LineStream = BlockStream() if markdown else LineStream()
        self._markdown, self._thought = markdown, ""
        self._kind: Kind | None = None
        self._status, self._due = "", 0.0
        self._thinking_since = 0.0
        self._replying = True
        self._keyboard.hold()
        self._region.commit([""], self._status_lines())

    def show(self, kind: Kind, text: str) -> None:
        text = printable(text)
        if kind == "thinking":
            finished = self._think(text)
        else:
            finished = self._end_thinking() if self._kind == "thinking" else []
            for block in self._blocks.push(text):
                finished += [*self._block(block), *self._gap]
        self._kind = kind
        self._draw(finished)

    def progress(self, text: str) -> None:
        self._status = text
        self._draw([])

    def end_reply(self, figures: str) -> None:
        finished = self._end_thinking() if self._kind == "thinking" else []
        self._replying = False
        rest = self._block(self._blocks.finish())
        if rest:
            finished += rest
        self._region.commit(
            [
                *finished,
                *([""] if rest or not self._markdown else []),
                *self._lines(Text(printable(figures), style=DIM)),
            ]
        )
        self._keyboard.release()

    # Thinking.

    def _think(self, text: str) -> list[str]:
        if self._kind is None:
            self._thinking_since = time.monotonic()
        self._thought += text
        if self.fold_thinking:
            return []
        whole, newline, self._thought = self._thought.rpartition("\n")
        return self._thinking_lines(whole) if newline else []

    def _end_thinking(self) -> list[str]:
        rest, self._thought = self._thought, ""
        if self.fold_thinking:
            seconds = time.monotonic() - self._thinking_since
            return [*self._lines(Text(f"thought for {seconds:.1f} s (/think show shows it)", style=DIM)), ""]
        return [*(self._thinking_lines(rest) if rest.strip() else []), ""]

    def _thinking_lines(self, text: str) -> list[str]:
        return self._lines(Padding(Text(text, style="dim italic"), (0, 0, 0, 2)))

    # Drawing.

    def _block(self, source: str) -> list[str]:
        """The lines of a block; rich puts an empty one before a list."""
        if not self._markdown:
            return self._lines(Text(source.removesuffix("\n"))) if source else []
        lines = self._lines(ChatMarkdown(source)) if source.strip() else []
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def _gap(self) -> list[str]:
        return [""] if self._markdown else []

    def _draw(self, finished: list[str]) -> None:
        began = time.monotonic()
        if not finished and began < self._due:
            return
        if finished:
            self._region.commit(finished, self._live())
        else:
            self._region.draw(self._live())
        spent = time.monotonic() - began
        self._due = began + spent + max(LEAST_PAUSE_S, spent / DRAWING_SHARE)

    def _live(self) -> list[str]:
        tail = self._tail()
        return [*tail, *([""] if tail else []), *self._status_lines()]

    def _tail(self) -> list[str]:
        """The growing end: of what would not fit on the screen, the last lines."""
        room = max(LEAST_ROWS, self._size().lines - 4)
        if self._kind != "thinking":
            return self._block(self._blocks.tail)[-room:]
        if self.fold_thinking or not self._thought:
            return []
        return self._thinking_lines(self._thought)[-room:]

    def _status_lines(self) -> list[str]:
        doing = self._status
        if self._kind == "thinking" and self.fold_thinking:
            doing = f"thinking · {doing}"
        text = Text(doing or "…", style=DIM, no_wrap=True, overflow="ellipsis")
        return self._lines(text)

    def _lines(self, item: RenderableType) -> list[str]:
        columns = max(LEAST_COLUMNS, self._size().columns)
        with self._console.capture() as capture:
            self._console.print(item, width=columns, no_wrap=None)
        return [_bare_end(line) for line in capture.get().removesuffix("\n").split("\n")]

    def _print(self, *items: RenderableType) -> None:
        lines = [line for item in items for line in self._lines(item)]
        self._region.commit(lines, self._live() if self._replying else [])

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Columns and rows now; a terminal that does not say is taken for a usual one."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, lines = 0, 0
    return os.terminal_size((columns or 80, lines or 24))


def _bare_end(line: str) -> str:
    """A line without the blanks at its end, which would wrap in a window that becomes narrower."""
    bare = _END_OF_LINE.sub("", line)
    return f"{bare}\x1b[0m" if "\x1b" in bare else bare


_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


# Terminals that know this hold back drawing until the update is whole; others ignore it.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"


SETTLING_S = 0.25  # a border that is dragged sends many sizes


_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"


class LiveRegion:
    """Draws lines below finished text and takes them away again.

    Args:
        write: puts text on the terminal.
        size: asks the terminal for its size.
        clock: seconds.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], os.terminal_size],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._write, self._size, self._clock = write, size, clock
        self._drawn: list[str] = []
        self._columns = 0  # of the window as the live lines were drawn
        self._seen, self._changed = 0, -SETTLING_S

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the live lines, unless the window is just being resized; none may be wider than it."""
        columns = self._size().columns
        if columns != self._seen:
            self._seen, self._changed = columns, self._clock()
        if self._drawn and columns != self._columns and self._clock() - self._changed < SETTLING_S:
            return
        self.commit([], lines)

    def commit(self, finished: Sequence[str], lines: Sequence[str] = ()) -> None:
        """Put finished lines where the live ones stand, for good, and new live lines below them.

        Of live lines that are more than the window has, the last are shown.
        """
        size = self._size()
        shown = list(lines)[-max(1, size.lines - 1) :] if lines else []
        if not finished and shown == self._drawn and size.columns == self._columns:
            return
        parts = [_BEGIN, _HIDE, self._back()]
        parts += [f"{line}{_REST_OF_LINE}\n" for line in finished]
        parts.append("\n".join(f"{line}{_REST_OF_LINE}" for line in shown))
        if not shown:
            parts.append("\r" + _SHOW)
        parts += [_REST_OF_SCREEN, _END]
        self._drawn, self._columns = shown, size.columns
        self._write("".join(parts))

    def _back(self) -> str:
        """The way to the first live line.

        In a window that became narrower some terminals wrap what stands there. Then this is too short a way, and a
        piece of an old live line is left behind; it can never be too long, which would erase finished text.
        """
        up = len(self._drawn) - 1
        return "\r" + (f"\x1b[{up}A" if up > 0 else "")

"""The chat on a terminal: Markdown as it comes, thinking dimmed, figures in one quiet line.

Owns: how things look, and how often the growing end of a reply is drawn. Finished blocks are drawn once; only the last,
growing one is drawn again, and of a long one only its end. Drawing takes a small share of the time, because the threads
of decoding and of drawing share one interpreter.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ..charts import bar_chart
from ..output import printable
from .keyboard import quiet_keyboard
from .live import LiveRegion
from .markdown import BlockStream, ChatMarkdown
from .thinking import Kind

LEAST_PAUSE_S = 0.08
DRAWING_SHARE = 0.1
LEAST_COLUMNS, LEAST_ROWS = 20, 5
DIM = "dim"
_END_OF_LINE = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")


class TerminalView:
    """Shows a chat on standard output, which is a terminal."""

    def __init__(self, *, colour: bool = True):
        self.console = Console(file=sys.stdout, highlight=False, no_color=not colour, soft_wrap=False)
        self.fold_thinking = False
        self._region = LiveRegion(self._write, self.size)
        self._keyboard = quiet_keyboard()

    @staticmethod
    def size() -> os.terminal_size:
        """Columns and rows now; a terminal that says 0 is taken for a small one."""
        try:
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns, lines = 0, 0
        return os.terminal_size((columns or 80, lines or 24))

    # What is said once.

    def header(self, title: str, hint: str) -> None:
        self._print(Text(title, style="bold"), Text(hint, style=DIM))

    def note(self, text: str) -> None:
        self._print(Text.assemble(("note: ", "yellow"), printable(text)))

    def info(self, text: str) -> None:
        self._print(Text(printable(text), style=DIM))

    def problem(self, message: str, hint: str | None) -> None:
        self._print(Text.assemble(("error: ", "bold red"), printable(message)))
        if hint:
            self._print(Text(f"hint: {printable(hint)}", style=DIM))

    def bars(self, shares: Sequence[float | None]) -> None:
        ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
        self._print(Text("acceptance by position", style=DIM), bar_chart(shares, ascii_only=ascii_only))

    # A reply.

    def begin_reply(self) -> None:
        self._blocks, self._thought = BlockStream(), ""
        self._kind: Kind | None = None
        self._status, self._due = "", 0.0
        self._thinking_since = 0.0
        self._keyboard.hold()
        self._region.commit([""], self._status_lines())

    def show(self, kind: Kind, text: str) -> None:
        finished: list[RenderableType] = []
        text = printable(text)
        if kind == "thinking":
            finished += self._think(text)
        else:
            if self._kind == "thinking":
                finished += self._end_thinking()
            finished += [self._block(block) for block in self._blocks.push(text)]
        self._kind = kind
        self._draw(finished)

    def progress(self, text: str) -> None:
        self._status = text
        self._draw([])

    def end_reply(self, figures: str) -> None:
        finished: list[RenderableType] = self._end_thinking() if self._kind == "thinking" else []
        rest = self._blocks.finish()
        if rest.strip():
            finished.append(self._block(rest))
        finished.append(Text(printable(figures), style=DIM))
        self._region.commit([line for item in finished for line in self._lines(item)])
        self._keyboard.release()

    # Thinking.

    def _think(self, text: str) -> list[RenderableType]:
        if self._kind is None:
            self._thinking_since = time.monotonic()
        self._thought += text
        if self.fold_thinking:
            return []
        whole, newline, self._thought = self._thought.rpartition("\n")
        return [self._thinking_text(whole)] if newline else []

    def _end_thinking(self) -> list[RenderableType]:
        seconds = time.monotonic() - self._thinking_since
        if self.fold_thinking:
            self._thought = ""
            return [Text(f"thought for {seconds:.1f} s (/think show shows it)", style=DIM), Text("")]
        rest, self._thought = self._thought, ""
        return [*([self._thinking_text(rest)] if rest.strip() else []), Text("")]

    def _thinking_text(self, text: str) -> RenderableType:
        return Padding(Text(text, style="dim italic"), (0, 0, 0, 2))

    # Drawing.

    def _block(self, source: str) -> RenderableType:
        return Group(ChatMarkdown(source), Text(""))

    def _draw(self, finished: list[RenderableType]) -> None:
        began = time.monotonic()
        if not finished and began < self._due:
            return
        lines = [line for item in finished for line in self._lines(item)]
        self._region.commit(lines, [*self._tail(), *self._status_lines()])
        spent = time.monotonic() - began
        self._due = began + spent + max(LEAST_PAUSE_S, spent / DRAWING_SHARE)

    def _tail(self) -> list[str]:
        """The growing end: of what would not fit on the screen, the last lines."""
        room = max(LEAST_ROWS, self.size().lines - 4)
        source = self._thought if self._kind == "thinking" else self._blocks.tail
        if self._kind == "thinking":
            lines = [] if self.fold_thinking or not source else self._lines(self._thinking_text(source))
        else:
            lines = self._lines(ChatMarkdown(source)) if source.strip() else []
        return lines[-room:]

    def _status_lines(self) -> list[str]:
        doing = self._status
        if self._kind == "thinking" and self.fold_thinking:
            doing = f"thinking · {doing}"
        text = Text(doing or "…", style=DIM, no_wrap=True, overflow="ellipsis")
        return self._lines(text)

    def _lines(self, item: RenderableType) -> list[str]:
        columns = max(LEAST_COLUMNS, self.size().columns)
        with self.console.capture() as capture:
            self.console.print(item, width=columns, no_wrap=None)
        return [_bare_end(line) for line in capture.get().removesuffix("\n").split("\n")]

    def _print(self, *items: RenderableType) -> None:
        for item in items:
            self._write("".join(f"{line}\n" for line in self._lines(item)))

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _bare_end(line: str) -> str:
    """A line without the blanks at its end, which would wrap in a window that becomes narrower."""
    bare = _END_OF_LINE.sub("", line)
    return f"{bare}\x1b[0m" if "\x1b" in bare else bare

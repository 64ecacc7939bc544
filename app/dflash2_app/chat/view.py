"""What a chat needs of a screen, and the screen that is no terminal.

Owns: the protocol of a view, and plain lines: replies on standard output, all else on standard error, no colour and
nothing drawn twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..console.output import Output
from ..engine.thinking import Kind


class View(Protocol):
    """Where a chat is shown; `fold_thinking` hides what a model thinks before it answers."""

    fold_thinking: bool

    def header(self, title: str, hint: str) -> None:
        """Say once what runs here."""

    def note(self, text: str) -> None:
        """Say something the user should know."""

    def info(self, text: str) -> None:
        """Answer a command; may be several lines."""

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Answer a command with two columns."""

    def problem(self, message: str, hint: str | None) -> None:
        """Say what went wrong, where the chat goes on."""

    def bars(self, shares: Sequence[float | None]) -> None:
        """Draw acceptance by position."""

    def earlier(self, question: str, reply: str, *, markdown: bool) -> None:
        """The last turn of a chat that goes on, so that one sees where it was left."""

    def begin_reply(self, *, markdown: bool) -> None:
        """A reply comes: Markdown, or text to be shown as it is."""

    def show(self, kind: Kind, text: str) -> None:
        """Show a piece of the reply."""

    def progress(self, text: str) -> None:
        """Say how the reply goes; replaced by the next one."""

    def end_reply(self, figures: str) -> None:
        """The reply is over."""


class LinesView:
    """Plain lines, for pipes and for terminals that cannot move the cursor."""

    def __init__(self, out: Output, *, fold_thinking: bool = True, talks: bool = False):
        self._out = out
        self._talks = talks  # somebody types here, rather than a script
        self.fold_thinking = fold_thinking
        self._replies = 0
        self._kind: Kind | None = None

    def header(self, title: str, hint: str) -> None:
        if self._talks:
            self._out.info(title)
            self._out.info(hint)

    def note(self, text: str) -> None:
        self._out.note(text)

    def info(self, text: str) -> None:
        for line in text.split("\n"):
            self._out.info(line)

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        width = max(len(left) for left, _ in rows)
        for left, right in rows:
            self._out.info(f"{left:<{width}}  {right}")

    def problem(self, message: str, hint: str | None) -> None:
        self._out.info(f"error: {message}")
        if hint:
            self._out.info(f"hint: {hint}")

    def earlier(self, question: str, reply: str, *, markdown: bool) -> None:
        if self._talks:
            self.info(f"> {question}")
            self.info(reply)

    def bars(self, shares: Sequence[float | None]) -> None:
        parts = [f"{place}: {'–' if share is None else f'{share * 100:.0f} %'}" for place, share in _numbered(shares)]
        self._out.info("  ".join(parts))

    def begin_reply(self, *, markdown: bool) -> None:
        if self._replies:
            self._out.data("\n")  # an empty line tells where the next reply begins
        self._replies += 1
        self._kind = None

    def show(self, kind: Kind, text: str) -> None:
        if kind == "thinking" and self.fold_thinking:
            return
        if self._kind == "thinking" and kind == "answer":
            self._out.end_line()
            self._out.data("\n")
        self._kind = kind
        self._out.data(text)

    def progress(self, text: str) -> None:
        pass

    def end_reply(self, figures: str) -> None:
        self._out.end_line()
        if self._talks:
            self._out.info(figures)


def _numbered(shares: Sequence[float | None]) -> list[tuple[int, float | None]]:
    return list(enumerate(shares, start=1))

"""Tells a model's thinking from its answer, piece by piece.

Owns: the search for the marks in streamed text. A model thinks at the beginning of a reply or not at all, so an
answer that speaks about the marks is left alone. Invariant: however the text is cut into pieces, the joined parts are
the same.
"""

from __future__ import annotations

from typing import Literal, Protocol

Kind = Literal["thinking", "answer"]
Part = tuple[Kind, str]
_State = Literal["undecided", "thinking", "answer"]


class Marks(Protocol):
    """What a model writes around something, such as the library's `ThinkingMarks`."""

    @property
    def start(self) -> str: ...

    @property
    def end(self) -> str: ...


class ThinkingSplitter:
    """Splits one reply; line ends around the marks are layout and left out.

    Args:
        marks: what the model writes around its thinking; None makes everything an answer.
        inside: whether the prompt has opened the thinking already.
    """

    def __init__(self, marks: Marks | None, *, inside: bool = False):
        self._marks = marks
        self._state: _State = "answer" if marks is None else "thinking" if inside else "undecided"
        self._held = ""
        self._leading = inside

    def push(self, text: str) -> list[Part]:
        """Add text; returns the parts that are now certain."""
        self._held += text
        parts: list[Part] = []
        if self._state == "undecided":
            self._decide(final=False)
        if self._state == "thinking":
            parts += self._think()
        if self._state == "answer":
            parts += self._release("answer", len(self._held))
        return parts

    def finish(self) -> list[Part]:
        """The rest, when no more text comes: half a mark is text after all."""
        self._decide(final=True)
        kind: Kind = "thinking" if self._state == "thinking" else "answer"
        return self._release(kind, len(self._held))

    def _decide(self, *, final: bool) -> None:
        if self._state != "undecided" or self._marks is None:
            return
        text, start = self._held.lstrip(), self._marks.start
        if text.startswith(start):
            self._state, self._held, self._leading = "thinking", text[len(start) :], True
        elif final or not start.startswith(text):
            self._state = "answer"

    def _think(self) -> list[Part]:
        assert self._marks is not None
        at = self._held.find(self._marks.end)
        if at < 0:
            return self._release("thinking", len(self._held) - half_mark(self._held, self._marks.end))
        parts = self._release("thinking", at)
        self._state, self._held, self._leading = "answer", self._held[len(self._marks.end) :], True
        return parts

    def _release(self, kind: Kind, size: int) -> list[Part]:
        text, self._held = self._held[:size], self._held[size:]
        if self._leading:
            text = text.lstrip("\n")
            self._leading = not text
        return [(kind, text)] if text else []


def half_mark(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins the mark."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0

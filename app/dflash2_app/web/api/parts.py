"""Takes the text of a reply apart: thinking, answer, tool calls.

Owns: the search for the marks around thinking and around tool calls in streamed text. Invariant: however the text is
cut into pieces, the joined parts are the same, and no text is lost: what looks like a tool call and cannot be read is
answer text.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("dflash2.serve")


@dataclass(frozen=True)
class ToolCall:
    """One call the model made; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Part:
    """A piece of a reply; exactly one field is filled."""

    reasoning: str = ""
    content: str = ""
    call: ToolCall | None = None


@dataclass(frozen=True)
class Marks:
    """What a model writes around something; an empty `end` means: to the end of the reply."""

    start: str
    end: str


@dataclass(frozen=True)
class CallReader:
    """How a model's tool calls are found and read; `parse` is one of mlx-lm's tool parsers."""

    marks: Marks
    parse: Callable[..., Any]
    tools: Sequence[dict[str, Any]]

    def read(self, text: str) -> list[ToolCall]:
        """The calls in the text between two marks; empty when it cannot be read."""
        try:
            found = self.parse(text, list(self.tools))
            calls = found if isinstance(found, list) else [found]
            return [_checked(call) for call in calls]
        except Exception as error:  # noqa: BLE001 - parsers raise whatever a model's odd text makes them raise
            log.warning("a tool call of %d characters cannot be read (%s)", len(text), type(error).__name__)
            return []


def _checked(call: Any) -> ToolCall:
    name, arguments = call["name"], call.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError("a call without a name")
    if isinstance(arguments, str):
        json.loads(arguments)
    else:
        arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(f"call_{secrets.token_hex(12)}", name, arguments)


class PartReader:
    """Reads one reply.

    Args:
        thinking: the marks around thinking; None when the model has none.
        inside: whether the prompt has opened the thinking already.
        calls: how to read tool calls; None leaves them as text.
    """

    def __init__(self, thinking: Marks | None = None, *, inside: bool = False, calls: CallReader | None = None):
        self._thinking, self._calls = thinking, calls
        self._state = "answer" if thinking is None else "thinking" if inside else "undecided"
        self._held = ""
        self._leading = inside  # line ends here are layout

    def push(self, text: str) -> list[Part]:
        """Add text; returns what is certain now."""
        self._held += text
        parts: list[Part] = []
        while (found := self._step(final=False)) is not None:
            parts += found
        return parts

    def finish(self) -> list[Part]:
        """The rest: half a mark is text after all, and an open tool call is read as far as it goes."""
        parts: list[Part] = []
        while (found := self._step(final=True)) is not None:
            parts += found
        return parts

    def _step(self, *, final: bool) -> list[Part] | None:
        """One step of reading; None when more text is needed."""
        if not self._held and not (final and self._state == "call"):
            return None
        return {
            "undecided": self._decide, "thinking": self._think, "answer": self._answer, "call": self._call,
        }[self._state](final)  # fmt: skip

    def _decide(self, final: bool) -> list[Part] | None:
        assert self._thinking is not None
        text, start = self._held.lstrip(), self._thinking.start
        if text.startswith(start):
            self._state, self._held, self._leading = "thinking", text[len(start) :], True
        elif final or not start.startswith(text):
            self._state = "answer"
        else:
            return None
        return []

    def _think(self, final: bool) -> list[Part] | None:
        assert self._thinking is not None
        end = self._thinking.end
        at = self._held.find(end)
        if at >= 0:
            part = self._release(at)
            self._state, self._held, self._leading = "answer", self._held[len(end) :], True
            return [Part(reasoning=part)] if part else []
        size = len(self._held) - (0 if final else half_mark(self._held, end))
        part = self._release(size)
        return [Part(reasoning=part)] if part else (None if size == 0 else [])

    def _answer(self, final: bool) -> list[Part] | None:
        start = self._calls.marks.start if self._calls is not None else ""
        at = self._held.find(start) if start else -1
        if at >= 0:
            part = self._release(at)
            self._state, self._held = "call", self._held[len(start) :]
            part = part.rstrip("\n")
            return [Part(content=part)] if part else []
        size = len(self._held) - (0 if final or not start else half_mark(self._held, start))
        if start and not final:
            size = len(self._held[:size].rstrip("\n"))  # line ends before or between calls are layout
        if size == 0:
            return None
        part = self._release(size)
        return [Part(content=part)] if part else []

    def _call(self, final: bool) -> list[Part] | None:
        assert self._calls is not None
        end = self._calls.marks.end
        at = self._held.find(end) if end else -1
        if at < 0 and not final:
            return None
        body = self._held if at < 0 else self._held[:at]
        self._held = "" if at < 0 else self._held[at + len(end) :]
        self._state = "answer"
        calls = self._calls.read(body)
        if not calls:
            return [Part(content=self._calls.marks.start + body + ("" if at < 0 else end))]
        self._leading = True
        return [Part(call=call) for call in calls]

    def _release(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        if self._leading:
            text = text.lstrip("\n")
            self._leading = not text
        return text


def half_mark(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins the mark."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0

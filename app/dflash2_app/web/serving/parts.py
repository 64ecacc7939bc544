"""Takes the text of a reply apart: thinking, answer, tool calls.

Owns: the search for the marks around tool calls in streamed text; those around thinking `ThinkingSplitter` finds.
Invariant: however the text is cut into pieces, the joined parts are the same, and no text is lost: what looks like a
tool call and cannot be read is answer text.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.thinking import ThinkingSplitter, half_mark

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
    arguments = {} if arguments is None else arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    if not isinstance(json.loads(text), dict):
        raise ValueError("arguments that are no object")  # no client could take them, nor give them back
    return ToolCall(f"call_{secrets.token_hex(12)}", name, text)


class PartReader:
    """Reads one reply: thinking is told from the answer, and calls from what else is in that.

    Args:
        thinking: the marks around thinking; None when the model has none.
        inside: whether the prompt has opened the thinking already.
        calls: how to read tool calls; None leaves them as text.
    """

    def __init__(self, thinking: Marks | None = None, *, inside: bool = False, calls: CallReader | None = None):
        self._splitter = ThinkingSplitter(thinking, inside=inside)
        self._finder = _CallFinder(calls) if calls is not None and calls.marks.start else None

    def push(self, text: str) -> list[Part]:
        """Add text; returns what is certain now."""
        return self._parts(self._splitter.push(text))

    def finish(self) -> list[Part]:
        """The rest: half a mark is text after all, and an open tool call is read as far as it goes."""
        parts = self._parts(self._splitter.finish())
        return parts if self._finder is None else [*parts, *self._finder.finish()]

    def _parts(self, pieces: Sequence[tuple[str, str]]) -> list[Part]:
        parts: list[Part] = []
        for kind, text in pieces:
            if kind == "thinking":
                parts.append(Part(reasoning=text))
            elif self._finder is None:
                parts.append(Part(content=text))
            else:
                parts += self._finder.push(text)
        return parts


class _CallFinder:
    """Finds tool calls in the text of an answer; line ends before, between and after them are layout."""

    def __init__(self, reader: CallReader):
        self._reader = reader
        self._held = ""
        self._in_call = False
        self._leading = False  # line ends here are layout

    def push(self, text: str) -> list[Part]:
        self._held += text
        return self._steps(final=False)

    def finish(self) -> list[Part]:
        return self._steps(final=True)

    def _steps(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held or (final and self._in_call):
            found = self._call(final) if self._in_call else self._answer(final)
            if found is None:
                break
            parts += found
        return parts

    def _answer(self, final: bool) -> list[Part] | None:
        """The text in front of a call, or what is certain of it; None when more text is needed."""
        start = self._reader.marks.start
        at = self._held.find(start)
        if at >= 0:
            part = self._release(at).rstrip("\n")
            self._in_call, self._held = True, self._held[len(start) :]
            return [Part(content=part)] if part else []
        size = len(self._held)
        if not final:
            size = len(self._held[: size - half_mark(self._held, start)].rstrip("\n"))
        if size == 0:
            return None
        part = self._release(size)
        return [Part(content=part)] if part else []

    def _call(self, final: bool) -> list[Part] | None:
        """What the call says; its own text when it cannot be read; None when more text is needed."""
        marks = self._reader.marks
        at = self._held.find(marks.end) if marks.end else -1
        if at < 0 and not final:
            return None
        body = self._held if at < 0 else self._held[:at]
        self._held = "" if at < 0 else self._held[at + len(marks.end) :]
        self._in_call = False
        calls = self._reader.read(body)
        if not calls:
            return [Part(content=marks.start + body + ("" if at < 0 else marks.end))]
        self._leading = True
        return [Part(call=call) for call in calls]

    def _release(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        if self._leading:
            text = text.lstrip("\n")
            self._leading = not text
        return text

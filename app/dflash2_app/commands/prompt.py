"""Finds the one prompt of a command: its argument, a file of chat messages, or standard input.

Owns: the prompt options and the checks on what they hold. The library decides how a prompt becomes tokens.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import dflash2_mlx as d2

from ..console.output import is_terminal
from ..errors import UsageError
from .options import valued
from .parsers import filled, json_object

STANDARD_INPUT = "-"
_PANEL = "Prompt"
_prompt = valued(_PANEL)

Messages = _prompt("--messages", "FILE|-", "Chat messages instead: a JSON list of {role, content}", filled)
System = _prompt("--system", "TEXT", "A system message in front", filled)
NoChatTemplate = typer.Option("--no-chat-template", help="Give the model the bare text", rich_help_panel=_PANEL)
ChatTemplateArgs = _prompt("--chat-template-args", "JSON", "Variables for the chat template", json_object)

Prompt = str | list[dict[str, Any]]


@dataclass(frozen=True)
class PromptOptions:
    """What stands before the reply, apart from the prompt argument itself."""

    messages: Annotated[str | None, Messages] = None
    system: Annotated[str | None, System] = None
    no_chat_template: Annotated[bool, NoChatTemplate] = False
    chat_template_args: Annotated[dict[str, Any] | None, ChatTemplateArgs] = None

    def __post_init__(self) -> None:
        if not self.no_chat_template:
            return
        given = {
            "--messages": self.messages is not None,
            "--system": self.system is not None,
            "--chat-template-args": self.chat_template_args is not None,
        }
        for name, there in given.items():
            if there:
                raise UsageError(f"{name}: got it beside --no-chat-template, expected one of the two")

    def read(self, argument: str | None) -> Prompt:
        """Return the one prompt that was given.

        Standard input is read only when there is neither argument nor file: a command in a script must not
        swallow what was meant for the next one.
        """
        if argument is not None and self.messages is not None:
            raise UsageError("prompt: got an argument and --messages, expected exactly one of them")
        if self.messages is not None:
            return self._with_system(_parse_messages(self.messages))
        text = _input_text() if argument in (None, STANDARD_INPUT) else argument
        if not text.strip():
            raise UsageError("prompt: got an empty text, expected at least one word")
        _check_text("prompt", text)
        return text if self.system is None else self._with_system([{"role": "user", "content": text}])

    def check(self, engine: d2.Engine) -> None:
        """Refuse what needs a chat template when the model has none."""
        if self.system is not None and not engine.tokenizer.has_chat_template:
            raise UsageError(f"--system: got {self.system!r}, expected none: {engine.target_name} has no chat template")

    def _with_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.system is None:
            return messages
        _check_text("--system", self.system)
        if messages[0]["role"] == "system":
            raise UsageError("--system: got it beside a system message in --messages, expected one of the two")
        return [{"role": "system", "content": self.system}, *messages]


def _input_text() -> str:
    if sys.stdin is None or is_terminal(sys.stdin):
        raise UsageError("prompt: got none, expected an argument, --messages FILE or text on standard input")
    return _decoded("standard input", sys.stdin.buffer.read())


def _decoded(source: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: got a byte that is not UTF-8 at {error.start}, expected UTF-8 text") from None


def _check_text(name: str, text: str) -> None:
    # Bytes of the command line that are not UTF-8 arrive as lone surrogates, which no tokenizer takes.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{name}: got a byte that is not UTF-8 at {error.start}, expected UTF-8 text") from None


def _parse_messages(source: str) -> list[dict[str, Any]]:
    if source == STANDARD_INPUT:
        text = _input_text()
    else:
        try:
            text = _decoded(f"--messages {source}", Path(source).read_bytes())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"--messages: got {source!r}, expected a readable file ({reason})") from None
    try:
        messages = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"--messages: got no JSON in {source!r} (line {error.lineno}: {error.msg}), expected a list"
        ) from None
    except RecursionError:
        raise UsageError(f"--messages: got JSON nested too deeply in {source!r}, expected a list") from None
    if not isinstance(messages, list) or not messages:
        kind = "an empty list" if messages == [] else f"a JSON {type(messages).__name__}"
        raise UsageError(f"--messages: got {kind}, expected a list of chat messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise UsageError(
                f"--messages: got {json.dumps(message)[:60]} as message {index}, expected role and content"
            )
    return messages

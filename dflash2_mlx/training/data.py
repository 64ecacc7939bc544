"""Reads what a drafter is trained on: one JSON object per line, plain text or chat messages.

Owns: the file format, and which tokens are learned. Of text all tokens are; of a chat those of the assistant's turns,
as the chat template spells them, so nothing of one that only asks. Beside its messages a chat may have what the
template is given besides: `tools` and `chat_template_kwargs`.

Reference: docs/dflash2.md 7.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from ..errors import ConfigError
from ..generation.text import ChatTokenizer, common_length
from .settings import Document


@dataclass(frozen=True)
class Item:
    """One line of a file: `where` it stands, and its `text` or `messages`."""

    where: str
    content: Mapping[str, Any]


def read_items(path: Path) -> list[Item]:
    """Read a JSONL file of {"text": ...} or {"messages": [...]} lines.

    Raises:
        ConfigError: naming file, line, what it holds and what is expected.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        raise ConfigError(f"{path}: got an unreadable file ({reason}), expected JSON lines") from None
    items = [_item(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not items:
        raise ConfigError(f"{path}: got no documents, expected at least one line")
    return items


def _item(where: str, line: str) -> Item:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    fits = isinstance(content, dict) and (
        isinstance(content.get("text"), str)
        if "text" in content
        else isinstance(content.get("messages"), list)
        and len(content["messages"]) > 0
        and all(isinstance(m, dict) for m in content["messages"])
        and isinstance(content.get("tools"), list | None)
        and isinstance(content.get("chat_template_kwargs"), dict | None)
    )
    if not fits:
        raise ConfigError(f'{where}: got {line[:60]!r}, expected {{"text": ...}} or {{"messages": [...]}}')
    return Item(where, content)


def read_documents(path: Path, tokenizer: ChatTokenizer, *, max_length: int) -> list[Document]:
    """Tokenize a file that `read_items` reads.

    Args:
        tokenizer: the target's, with its chat template.
        max_length: tokens of a sequence; longer texts become several, longer chats are cut.
    Raises:
        ConfigError: naming file, line, what it holds and what is expected.
    """
    documents: list[Document] = []
    for item in read_items(path):
        documents += _documents(item, tokenizer, max_length)
    return documents


def _documents(item: Item, tokenizer: ChatTokenizer, max_length: int) -> Iterator[Document]:
    if "messages" in item.content and "text" not in item.content:
        yield _chat(item, tokenizer, max_length)
        return
    tokens = np.array(tokenizer.encode(item.content["text"]), dtype=np.int32)
    for start in range(0, len(tokens), max_length):
        piece = tokens[start : start + max_length]
        yield Document(piece, np.ones(len(piece), dtype=bool))


def prompt_of_turn(item: Item, tokenizer: ChatTokenizer, said: Sequence[str]) -> list[int]:
    """Token ids of a chat up to an assistant's turn, with `said` in place of the turns before it.

    What an earlier reply thought is left out, as a chat would.

    Raises:
        ConfigError: there is no chat template, or it refuses the chat.
    """
    _check_template(item, tokenizer)
    messages = []
    replies = iter(said)
    try:
        for message in item.content["messages"]:
            if message["role"] == "assistant":
                reply = next(replies, None)
                if reply is None:
                    break
                if tokenizer.has_thinking:
                    reply = reply.rsplit(tokenizer.think_end, 1)[-1].lstrip("\n")
                message = {"role": "assistant", "content": reply}
            messages.append(message)
        return _rendered(item, tokenizer, messages, to_answer=True)
    except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
        raise _refused(item.where, error) from None


def turns_to_answer(item: Item) -> int:
    """Replies a chat asks for: those it holds, and one more where it ends with a question."""
    roles = [message.get("role") for message in item.content["messages"]]
    return roles.count("assistant") + (roles[-1:] != ["assistant"])


def _refused(where: str, error: Exception) -> ConfigError:
    line = " ".join(str(error).split())
    return ConfigError(f"{where}: got what the chat template refuses ({line}), expected a chat")


def _check_template(item: Item, tokenizer: ChatTokenizer) -> None:
    if not tokenizer.has_chat_template:
        raise ConfigError(f"{item.where}: got messages, expected text: the target has no chat template")


def _rendered(item: Item, tokenizer: ChatTokenizer, messages: list[Any], *, to_answer: bool) -> list[int]:
    options = dict(item.content.get("chat_template_kwargs") or {})
    if item.content.get("tools"):
        options["tools"] = item.content["tools"]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=to_answer, **options))


def _chat(item: Item, tokenizer: ChatTokenizer, max_length: int) -> Document:
    _check_template(item, tokenizer)
    messages = item.content["messages"]
    try:
        asks = messages[-1]["role"] != "assistant"
        whole = _rendered(item, tokenizer, messages, to_answer=asks)
        supervised = np.zeros(len(whole), dtype=bool)
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = _rendered(item, tokenizer, messages[:place], to_answer=True)
            until = _rendered(item, tokenizer, messages[: place + 1], to_answer=False)
            # A template may rewrite earlier turns (drop their reasoning, say): then the turn is where both agree.
            start, end = common_length(before, whole), common_length(until, whole)
            supervised[start:end] = True
    except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
        raise _refused(item.where, error) from None
    return Document(np.array(whole[:max_length], dtype=np.int32), supervised[:max_length])

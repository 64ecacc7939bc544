"""Reads what a drafter is trained on: one JSON object per line, plain text or chat messages.

Owns: the file format, and which tokens are learned. Of text all tokens are; of a chat those of the assistant's turns,
as the chat template spells them.

Reference: DFlash 2 specification 7.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from ..errors import ConfigError
from .settings import Document


def read_documents(path: Path, tokenizer: Any, *, max_length: int) -> list[Document]:
    """Tokenize a JSONL file of {"text": ...} or {"messages": [...]} lines.

    Args:
        tokenizer: the target's, with its chat template.
        max_length: tokens of a sequence; longer texts become several, longer chats are cut.
    Raises:
        ConfigError: naming file, line, what it holds and what is expected.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        raise ConfigError(f"{path}: got an unreadable file ({reason}), expected JSON lines") from None
    documents: list[Document] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            documents += _documents(f"{path}:{number}", line, tokenizer, max_length)
    if not documents:
        raise ConfigError(f"{path}: got no documents, expected at least one line")
    return documents


def _documents(where: str, line: str, tokenizer: Any, max_length: int) -> Iterator[Document]:
    try:
        item = json.loads(line)
    except ValueError:
        item = None
    if not isinstance(item, dict) or not isinstance(item.get("text", item.get("messages")), str | list):
        raise ConfigError(f'{where}: got {line[:60]!r}, expected {{"text": ...}} or {{"messages": [...]}}')
    if "text" in item:
        tokens = np.array(tokenizer.encode(item["text"]), dtype=np.int32)
        for start in range(0, len(tokens), max_length):
            piece = tokens[start : start + max_length]
            yield Document(piece, np.ones(len(piece), dtype=bool))
        return
    yield _chat(where, item["messages"], tokenizer, max_length)


def _chat(where: str, messages: list[Mapping[str, Any]], tokenizer: Any, max_length: int) -> Document:
    if not tokenizer.has_chat_template:
        raise ConfigError(f"{where}: got messages, expected text: the target has no chat template")
    try:
        whole = list(tokenizer.apply_chat_template(messages, add_generation_prompt=False))
        supervised = np.zeros(len(whole), dtype=bool)
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = list(tokenizer.apply_chat_template(messages[:place], add_generation_prompt=True))
            until = list(tokenizer.apply_chat_template(messages[: place + 1], add_generation_prompt=False))
            # A template may rewrite earlier turns (drop their reasoning, say): then the turn is where both agree.
            start, end = _shared(before, whole), _shared(until, whole)
            supervised[start:end] = True
    except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"{where}: got what the chat template refuses ({line}), expected a chat") from None
    return Document(np.array(whole[:max_length], dtype=np.int32), supervised[:max_length])


def _shared(part: list[int], whole: list[int]) -> int:
    """Length of the common beginning."""
    for place, (mine, theirs) in enumerate(zip(part, whole, strict=False)):
        if mine != theirs:
            return place
    return min(len(part), len(whole))

"""Messages of Anthropic's form, as chat templates want them.

Owns: blocks and their order. A user's message may hold results of tools beside text: a template sees them as messages
of their own, in front of the text.
"""

from __future__ import annotations

from typing import Any

from .errors import refuse
from .fields import Fields
from .messages import MOST_MESSAGES, assistant_call


def read_anthropic(fields: Fields) -> list[dict[str, Any]]:
    """System text and messages of a request, in OpenAI's form."""
    system = _texts(fields.take("system"), "system")
    raw = fields.items("messages")
    if not raw or len(raw) > MOST_MESSAGES:
        raise refuse("messages", raw if not raw else len(raw), f"1 to {MOST_MESSAGES} messages")
    messages = [{"role": "system", "content": system}] if system else []
    for at, item in enumerate(raw):
        messages += _message(Fields(item, f"messages[{at}]"))
    if messages[-1]["role"] == "assistant":
        param = f"messages[{len(raw) - 1}].role"
        raise refuse(param, "assistant", "'user' at the end: the beginning of a reply cannot be given here")
    return messages


def _message(fields: Fields) -> list[dict[str, Any]]:
    if fields.peek("role") == "system":
        # The end is Anthropic's sentence for models that take none: agents that see it put the text elsewhere.
        told = "'user' or 'assistant': role 'system' is not supported on this model"
        raise refuse(fields.name("role"), "system", told)
    role = fields.one_of("role", "user", "assistant")
    content = fields.take("content")
    if role is None or content is None:
        raise refuse(fields.name("content" if role else "role"), None, "user or assistant, and content")
    fields.finish()
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise refuse(fields.name("content"), content, "text or a list of blocks")
    blocks = [Fields(item, fields.name(f"content[{at}]")) for at, item in enumerate(content)]
    return _assistant(blocks) if role == "assistant" else _user(blocks)


def _user(blocks: list[Fields]) -> list[dict[str, Any]]:
    results, texts = [], []
    for block in blocks:
        kind = block.take("type")
        if kind == "tool_result":
            content = _texts(block.take("content"), block.name("content"))
            call_id = block.required_text("tool_use_id")
            failed = block.boolean("is_error")  # templates have no word for it: the text says it
            text = f"Error: {content}" if failed else content
            results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        else:
            texts.append(_text(block, kind))
            continue
        block.accept("cache_control")
        block.finish()
    return [*results, *([{"role": "user", "content": "".join(texts)}] if texts or not results else [])]


def _assistant(blocks: list[Fields]) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        kind = block.take("type")
        if kind == "thinking":
            thoughts.append(block.text("thinking") or "")
            block.accept("signature")
        elif kind == "tool_use":
            name, call_id = block.required_text("name"), block.required_text("id")
            calls.append(assistant_call(call_id, name, block.mapping("input"), block.name("input")))
            block.accept("caller")
        else:
            texts.append(_text(block, kind))
            continue
        block.accept("cache_control")
        block.finish()
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _texts(raw: object, path: str) -> str:
    """Text, or a list of text blocks."""
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise refuse(path, raw, "text or a list of text blocks")
    blocks = [Fields(item, f"{path}[{at}]") for at, item in enumerate(raw)]
    return "".join(_text(block, block.take("type")) for block in blocks)


def _text(block: Fields, kind: object) -> str:
    if kind != "text":
        raise refuse(block.name("type"), kind, "'text': this server reads nothing else here")
    text = block.text("text")
    if text is None:
        raise refuse(block.name("text"), None, "text")
    block.accept("cache_control", "citations")
    block.finish()
    return text

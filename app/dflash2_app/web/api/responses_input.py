"""What the Responses interface is given to reply to, as chat templates want it."""

from __future__ import annotations

from typing import Any

from .errors import refuse
from .fields import Fields
from .messages import MOST_MESSAGES, ROLES, assistant_call, one_system_message, read_content


def model_s_name(namespace: str | None, name: str) -> str:
    """What templates call a function; they know no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


def read_input(raw: object, instructions: str | None) -> list[dict[str, Any]]:
    """Instructions and input items, in the form of chat messages."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(raw, str) and raw:
        return [*messages, {"role": "user", "content": raw}]
    if not isinstance(raw, list) or not raw or len(raw) > MOST_MESSAGES:
        raise refuse("input", raw, f"text or 1 to {MOST_MESSAGES} items")
    for at, item in enumerate(raw):
        _add(messages, Fields(item, f"input[{at}]"))
    return one_system_message(messages)


def _add(messages: list[dict[str, Any]], item: Fields) -> None:
    kind = item.take("type") or "message"
    item.accept("id", "status", "phase")
    if kind == "message":
        _add_message(messages, item)
    elif kind == "function_call":
        call_id, name = item.required_text("call_id"), model_s_name(item.text("namespace"), item.required_text("name"))
        call = assistant_call(call_id, name, item.take("arguments"), item.name("arguments"))
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        call_id = item.required_text("call_id")
        output = read_content(item.take("output"), item.name("output"))
        messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind == "reasoning":
        item.accept("summary", "encrypted_content")  # made from the content, which the template may show
        parts = [Fields(part, item.name(f"content[{at}]")) for at, part in enumerate(item.items("content") or [])]
        text = "".join(map(_thought, parts))
        if text:
            messages.append({"role": "assistant", "content": "", "reasoning_content": text})
    else:
        raise refuse(item.name("type"), kind, "message, function_call, function_call_output or reasoning")
    item.finish()


def _thought(part: Fields) -> str:
    part.one_of("type", "reasoning_text")
    text = part.text("text")
    part.finish()
    return text or ""


def _add_message(messages: list[dict[str, Any]], item: Fields) -> None:
    role = item.one_of("role", *ROLES[:4])
    if role is None or not item.has("content"):
        raise refuse(item.name("content" if role else "role"), None, "a role and content")
    content = read_content(item.take("content"), item.name("content"))
    if role == "assistant" and not (messages and messages[-1]["role"] == role and messages[-1]["content"]):
        _assistant(messages)["content"] = content
    else:
        messages.append({"role": "system" if role == "developer" else role, "content": content})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's turn under way: its thinking, text and calls come as items of their own."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]

"""Chat messages of OpenAI's form, as chat templates want them.

Owns: roles and contents. Invariant: nothing of a message is dropped without a word; what no template can show (images,
sound, files) is refused by name.
"""

from __future__ import annotations

from typing import Any

from ..http.errors import refuse
from ..http.fields import Fields, strict_json

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_MESSAGES = 4096


def read_messages(raw: list[Any] | None) -> list[dict[str, Any]]:
    """The messages of a request.

    Raises:
        ApiError: none, an unknown role, or content that is not text.
    """
    if not raw or len(raw) > MOST_MESSAGES:
        raise refuse("messages", raw if not raw else len(raw), f"1 to {MOST_MESSAGES} messages")
    return one_system_message([_message(item, f"messages[{at}]") for at, item in enumerate(raw)])


def one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with those of the system at their beginning as one, which is all that many templates know.

    Agents send several: instructions, and what a developer adds to them.
    """
    count = next((at for at, message in enumerate(messages) if set(message) != {"role", "content"}
                  or message["role"] != "system"), len(messages))  # fmt: skip
    if count < 2:
        return messages
    joined = "\n\n".join(message["content"] for message in messages[:count])
    return [{"role": "system", "content": joined}, *messages[count:]]


def _message(raw: object, path: str) -> dict[str, Any]:
    fields = Fields(raw, path)
    role = fields.one_of("role", *ROLES)
    if role is None:
        raise refuse(f"{path}.role", None, " or ".join(map(repr, ROLES)))
    calls = [_call(item, f"{path}.tool_calls[{at}]") for at, item in enumerate(fields.items("tool_calls") or [])]
    if calls and role != "assistant":
        raise refuse(f"{path}.tool_calls", len(calls), "none in a message that is not the assistant's")
    has_content = fields.has("content")
    content = read_content(fields.take("content"), f"{path}.content")
    if not has_content and not calls:
        raise refuse(f"{path}.content", None, "text")
    # What a developer says is the system's word: templates know no other name for it.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        message["tool_call_id"] = fields.required_text("tool_call_id")
    name = fields.text("name")
    if name is not None:
        message["name"] = name
    reasoning = fields.text("reasoning_content")
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    for field, why in (("audio", "text is all there is"), ("function_call", "`tool_calls` replaced it")):
        fields.only(field, [], why)
    fields.accept("refusal", "annotations")
    fields.finish()
    return message


def read_content(raw: object, path: str) -> str:
    """Text, or parts of text, joined."""
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise refuse(path, raw, "text or a list of parts")
    return "".join(_part(item, f"{path}[{at}]") for at, item in enumerate(raw))


def _part(raw: object, path: str) -> str:
    fields = Fields(raw, path)
    kind = fields.take("type")
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise refuse(f"{path}.type", kind, "'text': this server reads nothing else")
    text = fields.text("refusal" if kind == "refusal" else "text")
    if text is None:
        raise refuse(f"{path}.text", None, "text")
    fields.accept("annotations", "logprobs", "cache_control", "prompt_cache_breakpoint", "citations")
    fields.finish()
    return text


def _call(raw: object, path: str) -> dict[str, Any]:
    fields = Fields(raw, path)
    fields.one_of("type", "function")
    inner = fields.inner("function")
    if inner is None:
        raise refuse(f"{path}.function", None, "an object with name and arguments")
    call = assistant_call(
        fields.text("id"), inner.required_text("name"), inner.take("arguments"), inner.name("arguments")
    )
    inner.finish()
    fields.accept("index")
    fields.finish()
    return call


def assistant_call(call_id: str | None, name: str, arguments: object, path: str) -> dict[str, Any]:
    """A call the assistant made earlier; templates want its arguments as an object."""
    if isinstance(arguments, str):
        try:
            arguments = strict_json(arguments or "{}")
        except ValueError:
            raise refuse(path, arguments, "the JSON text of an object") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise refuse(path, arguments, "the JSON text of an object")
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call_id is not None:
        call["id"] = call_id
    return call

"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Mapping

from ..api.anthropic import EFFORT_WORDS, KEEPS_THINKING, MOST_TEMPERATURE
from ..api.messages import MOST_MESSAGES
from ..api.request import MOST_TOOLS
from .openai import text_operation
from .schema import (
    ANTHROPIC,
    Operation,
    Schema,
    array,
    boolean,
    choice,
    either,
    filled,
    integer,
    mapping,
    nothing,
    nullable,
    ref,
    reply,
    request,
    text,
)
from .shared import BUSY, MODEL, ignored, json_schema, length, sampling, stop_texts, template, tool_fields

NOT_OFFERED = "Refused: not offered here."
_CACHED = ignored("cache_control")


def _fields() -> tuple[dict[str, Schema], dict[str, Schema]]:
    """Needed and optional fields, without the length."""
    name, rest = tool_fields("input_schema")
    tool = request(name, {
        **rest, "type": choice("custom", about="This server runs no tools of its own."),
        "defer_loading": choice(False), "allowed_callers": choice(["direct"]),
        **ignored("cache_control", "eager_input_streaming", "input_examples"),
    })  # fmt: skip
    single = {"disable_parallel_tool_use": boolean()}
    form = request({"type": choice("json_schema"), "schema": json_schema()}, ignored("name"))
    needed = {"model": MODEL, "messages": array(ref("Message"), minItems=1, maxItems=MOST_MESSAGES)}
    return needed, {
        "system": either(text(), array(ref("TextBlock"))), "stream": boolean("Answer with events."),
        **sampling(MOST_TEMPERATURE), **template(), "stop_sequences": stop_texts(),
        "thinking": request({"type": choice("enabled", "disabled", "adaptive")},
                            {"budget_tokens": integer("Needed beside `enabled`.", 1), **ignored("display")}),
        "output_config": request({}, {"effort": choice(*EFFORT_WORDS), "format": form}),
        "tools": array(tool, "Functions the model may call.", maxItems=MOST_TOOLS),
        "tool_choice": request({"type": choice("auto", "any", "tool", "none")},
                               {"name": filled("Only beside `tool`, and needed there."), **single}),
        **{field: nothing(NOT_OFFERED) for field in ("container", "mcp_servers")},
        "context_management": request({}, {"edits": array(
            request({"type": choice(KEEPS_THINKING), "keep": choice("all")}), "Nothing is ever taken out.")}),
        "speed": choice("standard"),
        **ignored("metadata", "service_tier", "cache_control", "inference_geo", "diagnostics"),
    }  # fmt: skip


def _request(*, counting: bool) -> Schema:
    needed, optional = _fields()
    if counting:
        return request(needed, {**optional, "max_tokens": length()})
    return request({**needed, "max_tokens": length()}, optional)


def _message() -> Schema:
    words = ref("TextBlock")
    result = request({"type": choice("tool_result"), "tool_use_id": filled()},
                     {"content": either(text(), array(words)), "is_error": boolean(), **_CACHED})  # fmt: skip
    thinking = request({"type": choice("thinking")}, {"thinking": text(), **ignored("signature"), **_CACHED})
    use = request({"type": choice("tool_use"), "id": filled(), "name": filled()},
                  {"input": mapping(), **ignored("caller"), **_CACHED})  # fmt: skip
    return either(
        request({"role": choice("user"), "content": either(text(), array(either(words, result)))}),
        request({"role": choice("assistant"), "content": either(text(), array(either(words, thinking, use)))}),
        about="The last one is the user's.",
    )


def _blocks() -> list[Schema]:
    return [
        reply({"type": choice("text"), "text": text()}),
        reply({"type": choice("thinking"), "thinking": text(), "signature": choice("")}),
        reply({"type": choice("tool_use"), "id": text(), "name": text(), "input": mapping()}),
    ]


def _head() -> dict[str, Schema]:
    return {"id": text(), "type": choice("message"), "role": choice("assistant"), "model": text()}


def _ending() -> dict[str, Schema]:
    reasons = choice("end_turn", "max_tokens", "tool_use", "stop_sequence")
    return {"stop_reason": reasons, "stop_sequence": nullable(text())}


def _event() -> Schema:
    def event(kind: str, **fields: Schema) -> Schema:
        return reply({"type": choice(kind), **fields})

    index = integer(low=0)
    begun = reply({**_head(), "content": array({}, maxItems=0), "stop_reason": {"type": "null"},
                   "stop_sequence": {"type": "null"}, "usage": ref("MessageUsage")})  # fmt: skip
    deltas = either(
        reply({"type": choice("text_delta"), "text": text()}),
        reply({"type": choice("thinking_delta"), "thinking": text()}),
        reply({"type": choice("signature_delta"), "signature": choice("")}),
        reply({"type": choice("input_json_delta"), "partial_json": text()}),
    )
    return either(
        event("message_start", message=begun),
        event("content_block_start", index=index, content_block=either(*_blocks())),
        event("content_block_delta", index=index, delta=deltas), event("content_block_stop", index=index),
        event("message_delta", delta=reply(_ending()), usage=ref("MessageUsage")), event("message_stop"),
    )  # fmt: skip


SCHEMAS: Mapping[str, Schema] = {
    "TextBlock": request({"type": choice("text"), "text": text()}, {**_CACHED, **ignored("citations")}),
    "Message": _message(), "MessagesRequest": _request(counting=False), "CountRequest": _request(counting=True),
    "MessagesReply": reply({**_head(), "content": array(either(*_blocks())), **_ending(),
                            "usage": ref("MessageUsage")}),
    "MessageUsage": reply({
        "input_tokens": integer("Read for this reply.", 0), "cache_read_input_tokens": integer("Not read again.", 0),
        "cache_creation_input_tokens": choice(0), "output_tokens": integer(low=0), "dflash2": ref("DraftingUsage"),
    }),
    "MessageEvent": _event(),
    "TokenCount": reply({"input_tokens": integer(low=0)}),
}  # fmt: skip

OPERATIONS = (
    text_operation(
        "/v1/messages", "createMessage", "Reply to a chat (Anthropic)", ("MessagesRequest", "MessagesReply"),
        event=ref("MessageEvent"), errors=ANTHROPIC,
    ),
    Operation("post", "/v1/messages/count_tokens", "countTokens", "text", "Count a prompt's tokens (Anthropic)",
              ref("TokenCount"), ref("CountRequest"), statuses=BUSY, errors=ANTHROPIC),
)  # fmt: skip

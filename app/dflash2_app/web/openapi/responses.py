"""OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping

from ..api.messages import MOST_MESSAGES, ROLES
from ..api.openai import WITHOUT_EFFECT
from ..api.request import MOST_LOGPROBS
from ..api.responses import INCLUDABLE
from .openai import formats, stream_options, text_operation, tool_choice, tools
from .schema import (
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
    number,
    ref,
    reply,
    request,
    text,
)
from .shared import MODEL, effort, ignored, json_schema, length, sampling, stop, template, tool_fields

NOTHING_KEPT = "Refused: this server keeps nothing between requests."
DONE, BEGUN = "completed", "in_progress"
_ANY_ITEM = ignored("id", "status", "phase")


def _request() -> Schema:
    name, rest = tool_fields("parameters")
    tool = request({"type": choice("function"), **name}, rest)
    grouped = request({"type": choice("namespace"), "name": filled()}, {"description": text(), "tools": array(tool)})
    named = request({"name": filled()}, {"type": choice("function")})
    form = request(formats(), {"name": filled(), "schema": json_schema(), **ignored("strict", "description")})
    return request({"model": MODEL, "input": either(
        filled(), array(ref("InputItem"), minItems=1, maxItems=MOST_MESSAGES), about="What to reply to.")}, {
        "instructions": text("The system's word."), "stream": boolean("Answer with events."),
        "stream_options": stream_options(),
        **sampling(), **template(), "stop": stop(), "max_output_tokens": length(),
        "reasoning": request({}, {"effort": effort(), **ignored("summary", "generate_summary")}),
        "include": array(choice(*INCLUDABLE)), "top_logprobs": integer("", 0, MOST_LOGPROBS),
        "text": request({}, {"verbosity": choice("medium"), "format": form}),
        **tools(either(tool, grouped)), "tool_choice": tool_choice(named),
        "metadata": mapping("Given back."), "background": choice(False), "truncation": choice("disabled"),
        **{field: nothing(NOTHING_KEPT) for field in
           ("previous_response_id", "conversation", "prompt", "context_management", "moderation")},
        **ignored(*(name for name in WITHOUT_EFFECT if name != "metadata"), "max_tool_calls", "client_metadata"),
    })  # fmt: skip


def _input_item() -> Schema:
    content = either(text(), array(ref("TextPart")))
    thought = request({}, {"type": choice("reasoning_text"), "text": text()})
    return either(
        request({"role": choice(*ROLES[:4]), "content": content}, {"type": choice("message"), **_ANY_ITEM}),
        request({"type": choice("function_call"), "call_id": filled(), "name": filled()},
                {"arguments": either(text(), mapping()), "namespace": text(), **_ANY_ITEM}),
        request({"type": choice("function_call_output"), "call_id": filled()}, {"output": content, **_ANY_ITEM}),
        request({"type": choice("reasoning")},
                {"content": array(thought), **ignored("summary", "encrypted_content"), **_ANY_ITEM}),
    )  # fmt: skip


def _response() -> Schema:
    return reply({
        "id": text(), "object": choice("response"), "created_at": integer(low=0),
        "status": choice(DONE, "incomplete", BEGUN, "failed"),
        "error": nullable(reply({"code": text(), "message": text()})),
        "incomplete_details": nullable(reply({"reason": choice("max_output_tokens")})),
        "instructions": nullable(text()), "model": text(), "output": array(ref("OutputItem")),
        "previous_response_id": {"type": "null"}, "store": choice(False), "truncation": choice("disabled"),
        "usage": nullable(ref("ResponseUsage")), "metadata": mapping(), "temperature": nullable(number()),
        "top_p": nullable(number()), "max_output_tokens": nullable(integer()), "reasoning": nullable(mapping()),
        "text": nullable(mapping()), "tools": array(mapping()), "tool_choice": either(text(), mapping()),
        "parallel_tool_calls": boolean(),
    })  # fmt: skip


def _output_item() -> Schema:
    status = choice(DONE, BEGUN, "incomplete")
    return either(
        reply({"id": text(), "type": choice("reasoning"), "summary": array({}, maxItems=0),
               "content": array(ref("ReasoningPart")), "status": status}),
        reply({"id": text(), "type": choice("message"), "role": choice("assistant"), "status": status,
               "content": array(ref("OutputPart"))}),
        reply({"id": text(), "type": choice("function_call"), "call_id": text(), "name": text(),
               "arguments": text("JSON text."), "status": status}, {"namespace": text()}),
    )  # fmt: skip


def _event() -> Schema:
    def event(*kinds: str, **fields: Schema) -> Schema:
        return reply({"type": choice(*(f"response.{kind}" for kind in kinds)), "sequence_number": integer(low=0),
                      **fields})  # fmt: skip

    item = {"item_id": text(), "output_index": integer(low=0)}
    place = {**item, "content_index": choice(0)}
    entries = {"logprobs": array(ref("TokenLogprob"))}
    part = either(ref("ReasoningPart"), ref("OutputPart"))
    return either(
        event("created", BEGUN, DONE, "incomplete", "failed", response=ref("Response")),
        event("output_item.added", "output_item.done", output_index=integer(low=0), item=ref("OutputItem")),
        event("content_part.added", "content_part.done", part=part, **place),
        event("reasoning_text.delta", delta=text(), **place), event("reasoning_text.done", text=text(), **place),
        event("output_text.delta", delta=text(), **entries, **place),
        event("output_text.done", text=text(), **entries, **place),
        event("function_call_arguments.delta", delta=text(), **item),
        event("function_call_arguments.done", arguments=text(), name=text(), **item),
    )  # fmt: skip


SCHEMAS: Mapping[str, Schema] = {
    "ResponseRequest": _request(), "InputItem": _input_item(), "Response": _response(), "OutputItem": _output_item(),
    "ReasoningPart": reply({"type": choice("reasoning_text"), "text": text()}),
    "OutputPart": reply({"type": choice("output_text"), "text": text(), "annotations": array({}, maxItems=0),
                         "logprobs": array(ref("TokenLogprob"))}),
    "ResponseUsage": reply({
        "input_tokens": integer(low=0),
        "input_tokens_details": reply({"cached_tokens": integer(low=0), "cache_write_tokens": choice(0)}),
        "output_tokens": integer(low=0), "output_tokens_details": reply({"reasoning_tokens": integer(low=0)}),
        "total_tokens": integer(low=0), "dflash2": ref("DraftingUsage"),
    }),
    "ResponseEvent": _event(),
}  # fmt: skip

OPERATIONS = (
    text_operation(
        "/v1/responses", "createResponse", "Reply to items (OpenAI)", ("ResponseRequest", "Response"),
        event=ref("ResponseEvent"), about="Nothing is kept: what refers to an earlier response is refused.",
    ),
)  # fmt: skip

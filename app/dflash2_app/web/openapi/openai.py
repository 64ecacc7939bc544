"""OpenAI's chat and text completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api.messages import MOST_MESSAGES, ROLES
from ..api.openai import WITHOUT_EFFECT
from ..api.request import MOST_LOGPROBS, MOST_TOOLS
from ..serving.request import AUTO, NONE, REQUIRED
from .schema import (
    OPENAI,
    Operation,
    Schema,
    anything,
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
from .shared import BUSY, MODEL, effort, ignored, json_schema, length, sampling, stop, template, tool_fields

NOT_OFFERED = "Refused: not offered here."
STOPPED = ("stop", "length", "tool_calls")
ONE = "One reply per request."
_LATER = {"index": integer(low=0), "finish_reason": nullable(choice(*STOPPED))}


def stream_options(**usage: Schema) -> Schema:
    return request({}, {**usage, "include_obfuscation": choice(False, about="Nothing is obfuscated here.")})


WITH_USAGE = stream_options(
    include_usage=boolean("One more event at the end tells the usage."),
    continuous_usage_stats=boolean("Every event tells it; beside `include_usage` true."),
)


def formats(**name_and_schema: Schema) -> dict[str, Schema]:
    """`type` of a form, and what goes with `json_schema`."""
    return {"type": choice("text", "json_object", "json_schema"), **name_and_schema}


def tool_choice(named: Schema) -> Schema:
    return either(choice(AUTO, NONE, REQUIRED), named, about="Whether and which tool is called.")


def tools(items: Schema) -> dict[str, Schema]:
    return {"tools": array(items, "Functions the model may call.", maxItems=MOST_TOOLS),
            "parallel_tool_calls": boolean("false: at most one call.")}  # fmt: skip


def _chat_request() -> Schema:
    name, rest = tool_fields("parameters")
    tool = request({"type": choice("function"), "function": request(name, rest)})
    named = request({"function": request({"name": filled()})}, {"type": choice("function")})
    form = request({"name": filled()}, {"schema": json_schema(), "description": anything(""), "strict": anything("")})
    return request({"model": MODEL, "messages": array(ref("ChatMessage"), minItems=1, maxItems=MOST_MESSAGES)}, {
        "stream": boolean("Answer with events."), "stream_options": WITH_USAGE,
        **sampling(), **template(), "reasoning_effort": effort(), "stop": stop(),
        "max_completion_tokens": length(), "max_tokens": length("The older name."),
        "logprobs": boolean("Tell the log-probabilities of the answer's tokens."),
        "top_logprobs": integer("So many likely tokens beside each; beside `logprobs` true.", 0, MOST_LOGPROBS),
        "response_format": request(formats(), {"json_schema": form}),
        **tools(tool), "tool_choice": tool_choice(named),
        "n": choice(1, about=ONE), "modalities": choice(["text"]), "verbosity": choice("medium"),
        **{field: nothing(NOT_OFFERED) for field in
           ("audio", "web_search_options", "functions", "function_call", "moderation")},
        **ignored(*WITHOUT_EFFECT),
    })  # fmt: skip


def _message() -> Schema:
    call = request({"function": request({"name": filled()}, {"arguments": either(text(), mapping())})},
                   {"type": choice("function"), "id": text(), "index": anything("")})  # fmt: skip
    return request({"role": choice(*ROLES)}, {
        "content": either(text(), array(ref("TextPart")), about="Needed where there are no calls."),
        "tool_calls": array(call, "Only the assistant's."), "tool_call_id": filled("Only a tool's, and needed there."),
        "name": text(), "reasoning_content": text("What the assistant thought."),
        "audio": nothing(NOT_OFFERED), "function_call": nothing("Refused: `tool_calls` replaced it."),
        **ignored("refusal", "annotations"),
    })  # fmt: skip


def _text_part() -> Schema:
    return request({"type": choice("text", "input_text", "output_text", "refusal")}, {
        "text": text(), "refusal": text("Only of its own type."),
        **ignored("annotations", "logprobs", "cache_control", "prompt_cache_breakpoint", "citations"),
    })  # fmt: skip


def _head(kind: str) -> dict[str, Schema]:
    return {"id": text(), "object": choice(kind), "created": integer(low=0), "model": text()}


def _logprob() -> Schema:
    entry = {"token": text(), "logprob": number("-9999 for what is impossible."),
             "bytes": nullable(array(integer(low=0, high=255), "null for part of a character."))}  # fmt: skip
    return reply({**entry, "top_logprobs": array(reply(entry))})


def _call(**more: Schema) -> Schema:
    function = reply({"name": text(), "arguments": text("JSON text.")})
    return reply({**more, "id": text(), "type": choice("function"), "function": function})


def _old_logprobs() -> Schema:
    return reply({
        "tokens": array(text()), "token_logprobs": array(number()),
        "top_logprobs": array(nullable(mapping(additionalProperties=number()))), "text_offset": array(integer(low=0)),
    })  # fmt: skip


def _usage() -> Schema:
    return reply({
        "prompt_tokens": integer(low=0), "completion_tokens": integer(low=0), "total_tokens": integer(low=0),
        "prompt_tokens_details": reply({"cached_tokens": integer("Not read again.", 0)}),
        "completion_tokens_details": reply({
            "reasoning_tokens": integer(low=0), "accepted_prediction_tokens": choice(0),
            "rejected_prediction_tokens": choice(0)}),
        "dflash2": ref("DraftingUsage"),
    })  # fmt: skip


def _completion_request() -> Schema:
    ids = array(integer("A token id."), minItems=1)
    return request({"model": MODEL, "prompt": either(
        filled(), ids, array(either(filled(), ids), minItems=1, maxItems=1), about="Text, or token ids; one prompt.",
    )}, {
        "stream": boolean("Answer with events."), "stream_options": WITH_USAGE, **sampling(), "stop": stop(),
        "max_tokens": length("16 where it is not given."),
        "logprobs": integer("So many likely tokens beside each.", 0, MOST_LOGPROBS),
        "n": choice(1, about=ONE), "best_of": choice(1, about=ONE), "echo": choice(False), "suffix": choice(""),
        **ignored(*WITHOUT_EFFECT),
    })  # fmt: skip


def _whole(kind: str, choice_of_reply: Schema) -> Schema:
    return reply({**_head(kind), "choices": array(choice_of_reply), "usage": ref("ChatUsage"),
                  "system_fingerprint": {"type": "null"}})  # fmt: skip


def _chunk(kind: str, choice_of_chunk: Schema) -> Schema:
    usage = {"usage": nullable(ref("ChatUsage"))}
    return reply({**_head(kind), "choices": array(choice_of_chunk, "Empty in the event of the usage.")}, usage)


def _schemas() -> dict[str, Schema]:
    logprobs = nullable(reply({"content": array(ref("TokenLogprob")), "refusal": {"type": "null"}}))
    message = reply(
        {"role": choice("assistant"), "content": nullable(text()), "refusal": {"type": "null"}},
        {"reasoning_content": text("The thinking."), "tool_calls": array(_call())},
    )
    delta = reply({}, {"role": choice("assistant"), "content": text(), "reasoning_content": text(),
                       "tool_calls": array(_call(index=integer(low=0)))})  # fmt: skip
    old = nullable(_old_logprobs())
    return {
        "ChatMessage": _message(), "TextPart": _text_part(), "ChatRequest": _chat_request(),
        "TokenLogprob": _logprob(), "ChatUsage": _usage(),
        "ChatCompletion": _whole("chat.completion", reply({**_LATER, "message": message, "logprobs": logprobs})),
        "ChatChunk": _chunk("chat.completion.chunk", reply({**_LATER, "delta": delta, "logprobs": logprobs})),
        "CompletionRequest": _completion_request(),
        "Completion": _whole("text_completion", reply({**_LATER, "text": text(), "logprobs": old})),
        "CompletionChunk": _chunk("text_completion", reply({**_LATER, "text": text(), "logprobs": old})),
    }  # fmt: skip


SCHEMAS: Mapping[str, Schema] = _schemas()


def text_operation(path: str, name: str, summary: str, names: tuple[str, str], **more: Any) -> Operation:
    """An endpoint that makes text, streamed or whole."""
    body, answer = names
    event = more.pop("event")
    error = more.get("errors", OPENAI)
    return Operation(
        "post", path, name, "text", summary, ref(answer), ref(body), event=either(event, ref(error)), statuses=BUSY,
        headers={"x-queue-position": "How many requests were in front of this one."}, **more,
    )  # fmt: skip


DONE = "Streamed, the last event is `data: [DONE]`; a reply that fails half-way ends with an error instead."
OPERATIONS = (
    text_operation(
        "/v1/chat/completions", "createChatCompletion", "Reply to a chat (OpenAI)", ("ChatRequest", "ChatCompletion"),
        event=ref("ChatChunk"), about=DONE,
    ),
    text_operation(
        "/v1/completions", "createCompletion", "Continue a text, without a chat template (OpenAI)",
        ("CompletionRequest", "Completion"), event=ref("CompletionChunk"), about=DONE,
    ),
)  # fmt: skip

"""OpenAI's Responses.

Owns: the request's fields and both forms of the reply. Nothing is kept between requests: what refers to an earlier
response is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..http.errors import ApiError, refuse
from ..http.fields import Fields
from ..serving.reply import LENGTH, Outcome
from ..serving.request import AUTO, Ask
from ..serving.source import Served
from . import openai
from .messages import MOST_MESSAGES, ROLES, assistant_call, one_system_message, read_content
from .request import (
    MOST_LOGPROBS,
    Draft,
    read_effort,
    read_length,
    read_sampling,
    read_schema,
    read_stop,
    read_template,
    set_tools,
)
from .responses_writer import Homes, ResponsesWriter, output_items

LOGPROBS = "message.output_text.logprobs"


INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")


class Responses:
    """The interface."""

    def read(self, body: object) -> ResponsesCall:
        return ResponsesCall(Fields(body))

    def error(self, error: ApiError) -> Mapping[str, Any]:
        return error.openai()


class ResponsesCall:
    """One request."""

    def __init__(self, fields: Fields):
        self._fields = fields
        self.model = fields.required_text("model")
        self.stream = bool(fields.boolean("stream"))
        self.instructions = fields.text("instructions")
        self.messages = read_input(fields.take("input"), self.instructions)
        self.id, self.created = openai.new_id("resp_"), int(time.time())
        self._homes: Homes = {}
        self.echo: dict[str, Any] = {"metadata": fields.mapping("metadata") or {}}
        options = fields.inner("stream_options")
        if options is not None:
            options.only("include_obfuscation", [False], "nothing is obfuscated here")
            options.finish()
        for name in ("previous_response_id", "conversation", "prompt", "context_management", "moderation"):
            fields.only(name, [], "this server keeps nothing between requests")
        fields.only("background", [False], "a reply is written while its client waits")
        fields.only("truncation", ["disabled"], "a prompt is never shortened")
        fields.accept(*openai.WITHOUT_EFFECT, "max_tool_calls", "client_metadata")

    def ask(self, served: Served) -> Ask:
        fields, draft = self._fields, Draft(served)
        self.echo.update(
            {name: fields.peek(name) for name in ("temperature", "top_p", "max_output_tokens", "reasoning", "text")}
        )
        self.echo["tools"] = fields.peek("tools") or []
        self.echo["tool_choice"] = fields.peek("tool_choice") or AUTO
        read_sampling(fields, draft)
        read_length(fields, draft, "max_output_tokens")
        read_stop(fields, draft)
        read_template(fields, draft)
        self._read_logprobs(fields, draft)
        reasoning = fields.inner("reasoning")
        if reasoning is not None:
            read_effort(draft, reasoning.text("effort"), "reasoning.effort")
            reasoning.accept("summary", "generate_summary")  # thinking is shown as it is
            reasoning.finish()
        _read_text(fields.inner("text"), draft)
        tools, self._homes = _read_tools(fields)
        parallel = fields.boolean("parallel_tool_calls") is not False
        self.echo["parallel_tool_calls"] = parallel
        set_tools(draft, tools, openai.read_tool_choice(fields.take("tool_choice"), nested=False), parallel=parallel)
        fields.finish()
        return draft.finish(self.messages)

    def whole(self, served: Served, outcome: Outcome) -> dict[str, Any]:
        cut = outcome.finish_reason == LENGTH
        logprobs = [openai.chat_logprob(served, item, self.top) for item in outcome.logprobs] if self.logprobs else []
        return {
            **self.head("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output_items(outcome, logprobs, self._homes),
            "usage": _usage(outcome),
        }

    def head(self, status: str) -> dict[str, Any]:
        """The response object without what only its end knows."""
        return {
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": None,
            "incomplete_details": None, "instructions": self.instructions, "model": self.model, "output": [],
            "previous_response_id": None, "store": False, "truncation": "disabled", "usage": None, **self.echo,
        }  # fmt: skip

    def writer(self, served: Served) -> ResponsesWriter:
        return ResponsesWriter(
            self.head, lambda outcome: self.whole(served, outcome),
            (lambda item: openai.chat_logprob(served, item, self.top)) if self.logprobs else None, self._homes,
        )  # fmt: skip

    def _read_logprobs(self, fields: Fields, draft: Draft) -> None:
        include = fields.items("include") or []
        for at, item in enumerate(include):
            if item not in INCLUDABLE:
                raise refuse(f"include[{at}]", item, " or ".join(INCLUDABLE))
        top = fields.integer("top_logprobs", 0, MOST_LOGPROBS)
        self.logprobs, self.top = LOGPROBS in include or top is not None, top or 0
        if self.logprobs:
            draft.config["logprobs"] = self.top


def _usage(outcome: Outcome) -> dict[str, Any]:
    counted = openai.usage(outcome)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": outcome.reasoning_tokens},
        "total_tokens": counted["total_tokens"],
        "dflash2": counted["dflash2"],
    }


def _read_text(fields: Fields | None, draft: Draft) -> None:
    if fields is None:
        return
    fields.only("verbosity", ["medium"], "no model here knows how")
    form = fields.inner("format")
    if form is not None:
        kind = form.one_of("type", "text", "json_object", "json_schema")
        if kind == "json_object":
            read_schema(draft, {"type": "object"}, "text.format")
        elif kind == "json_schema":
            form.required_text("name")
            read_schema(draft, form.mapping("schema"), "text.format.schema")
            form.accept("strict", "description")
        elif kind is None:
            raise refuse("text.format.type", None, "'text', 'json_object' or 'json_schema'")
        form.finish()
    fields.finish()


def _read_tools(fields: Fields) -> tuple[list[dict[str, Any]], Homes]:
    """The functions, and the namespaces of those that have one."""
    tools, homes = [], dict[str, tuple[str, str]]()
    for at, item in enumerate(fields.items("tools") or []):
        tool = Fields(item, f"tools[{at}]")
        if tool.peek("type") != "namespace":
            tools.append(_function(tool, "'function' or 'namespace'"))
            continue
        tool.take("type")
        space, about = tool.required_text("name"), tool.text("description")
        inside = [_function(Fields(raw, tool.name(f"tools[{at}]")), "'function'")
                  for at, raw in enumerate(tool.items("tools") or [])]  # fmt: skip
        tool.finish()
        for function in (tool["function"] for tool in inside):
            own, function["name"] = function["name"], model_s_name(space, function["name"])
            homes[function["name"]] = space, own
        if inside and about:  # templates have no place for it but a function's own description
            first = inside[0]["function"]
            first["description"] = f"{about}\n\n{first['description']}".rstrip()
        tools += inside
    return tools, homes


def _function(tool: Fields, expected: str) -> dict[str, Any]:
    kind = tool.take("type")
    if kind != "function":
        raise refuse(tool.name("type"), kind, f"{expected}: this server runs no tools of its own")
    return openai.read_function(tool)


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

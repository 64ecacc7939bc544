"""Anthropic's messages, and the counting of their tokens.

Owns: the request's fields (each honoured, accepted as without effect, or refused by name) and both forms of the reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..http.errors import ApiError, refuse
from ..http.fields import Fields
from ..http.wire import Frame
from ..serving.parts import Part, ToolCall
from ..serving.reply import LENGTH, TOOL_CALLS, Outcome, usage_details
from ..serving.request import AUTO, NONE, REQUIRED, Ask
from ..serving.source import Served
from .messages import MOST_MESSAGES, assistant_call
from .openai import new_id
from .request import (
    Draft,
    read_budget,
    read_effort,
    read_length,
    read_sampling,
    read_schema,
    read_stop,
    read_template,
    set_thinking,
    set_tools,
    thinks,
)

if TYPE_CHECKING:
    import dflash2_mlx as d2

MOST_TEMPERATURE = 1.0  # Anthropic's


EFFORT_WORDS = ("low", "medium", "high", "xhigh", "max")


USUAL_EFFORT = "high"  # means what saying nothing does


KEEPS_THINKING = "clear_thinking_20251015"  # an edit that agents ask for, to have all of the thinking kept


class Messages:
    """The interface."""

    def read(self, body: object) -> MessagesCall:
        return MessagesCall(Fields(body))

    def error(self, error: ApiError) -> Mapping[str, Any]:
        return error.anthropic()


class MessagesCall:
    """One request; with `counting`, one that only asks how long its prompt is."""

    def __init__(self, fields: Fields, *, counting: bool = False):
        self._fields, self._counting = fields, counting
        self.model = fields.required_text("model")
        self.stream = bool(fields.boolean("stream"))
        self.messages = read_anthropic(fields)
        for name in ("container", "mcp_servers"):
            fields.only(name, [], "not offered here")
        _read_context(fields.inner("context_management"))
        fields.only("speed", ["standard"], "there is one speed")
        fields.accept("metadata", "service_tier", "cache_control", "inference_geo", "diagnostics")

    def ask(self, served: Served) -> Ask:
        fields, draft = self._fields, Draft(served)
        read_sampling(fields, draft, most_temperature=MOST_TEMPERATURE)
        read_length(fields, draft, "max_tokens")
        if "max_tokens" not in draft.config and not self._counting:
            raise refuse("max_tokens", None, "an integer >= 1")
        stops = fields.items("stop_sequences")
        if stops:
            read_stop(Fields({"stop_sequences": stops}), draft, "stop_sequences")
        read_template(fields, draft)
        _read_thinking(fields.inner("thinking"), draft)
        _read_output(fields.inner("output_config"), draft)
        tools = [_tool(item, f"tools[{at}]") for at, item in enumerate(fields.items("tools") or [])]
        choice, parallel = _tool_choice(fields.inner("tool_choice"))
        set_tools(draft, tools, choice, parallel=parallel)
        fields.finish()
        return draft.finish(self.messages)

    def whole(self, served: Served, outcome: Outcome) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if outcome.reasoning:
            content.append({"type": "thinking", "thinking": outcome.reasoning, "signature": ""})
        if outcome.content or not (outcome.calls or outcome.reasoning):
            content.append({"type": "text", "text": outcome.content})
        content += [{**_tool_use(call), "input": json.loads(call.arguments)} for call in outcome.calls]
        return {**self.head(), "content": content, **_ending(outcome), "usage": _usage(outcome)}

    def head(self) -> dict[str, Any]:
        return {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": self.model}

    def writer(self, served: Served) -> MessagesWriter:
        return MessagesWriter(self)


class MessagesWriter:
    """Makes Anthropic's events: blocks one after the other, each begun, filled and ended."""

    def __init__(self, call: MessagesCall):
        self._call = call
        self._index = -1
        self._open: str | None = None  # the kind of the block that is under way

    def start(self, outcome: Outcome) -> list[Frame]:
        usage = {**_usage(outcome), "output_tokens": 0}
        message = {**self._call.head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [_frame("message_start", message=message)]

    def parts(self, parts: Sequence[Part], logprobs: Sequence[d2.TokenLogprob]) -> list[Frame]:
        frames = []
        for part in parts:
            if part.call is not None:
                frames += self._begin("tool_use", {**_tool_use(part.call), "input": {}}, fresh=True)
                frames.append(self._delta({"type": "input_json_delta", "partial_json": part.call.arguments}))
            elif part.reasoning:
                frames += self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                frames.append(self._delta({"type": "thinking_delta", "thinking": part.reasoning}))
            else:
                frames += self._begin("text", {"type": "text", "text": ""})
                frames.append(self._delta({"type": "text_delta", "text": part.content}))
        return frames

    def finish(self, outcome: Outcome) -> list[Frame]:
        frames = self._end()
        if self._index < 0:  # a reply without text has one empty block, as the whole form does
            frames = [*self._begin("text", {"type": "text", "text": ""}), *self._end()]
        frames.append(_frame("message_delta", delta=_ending(outcome), usage=_usage(outcome)))
        return [*frames, _frame("message_stop")]

    def failed(self, error: ApiError) -> list[Frame]:
        return [Frame(error.anthropic(), "error")]

    def _begin(self, kind: str, block: dict[str, Any], *, fresh: bool = False) -> list[Frame]:
        if self._open == kind and not fresh:
            return []
        frames = self._end()
        self._index, self._open = self._index + 1, kind
        return [*frames, _frame("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> Frame:
        return _frame("content_block_delta", index=self._index, delta=delta)

    def _end(self) -> list[Frame]:
        if self._open is None:
            return []
        signed = self._open == "thinking"  # Anthropic's own blocks end with a signature; clients wait for the event
        self._open = None
        signature = [self._delta({"type": "signature_delta", "signature": ""})] if signed else []
        return [*signature, _frame("content_block_stop", index=self._index)]


def _frame(kind: str, **fields: Any) -> Frame:
    return Frame({"type": kind, **fields}, kind)


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _ending(outcome: Outcome) -> dict[str, Any]:
    reason = {LENGTH: "max_tokens", TOOL_CALLS: "tool_use"}.get(outcome.finish_reason, "end_turn")
    if outcome.stop_text is not None and reason == "end_turn":
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": outcome.stop_text}


def _usage(outcome: Outcome) -> dict[str, Any]:
    stats = outcome.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,  # those read anew, as Anthropic counts
        "cache_read_input_tokens": stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": stats.generated_tokens,
        "dflash2": usage_details(stats),
    }


def _read_context(fields: Fields | None) -> None:
    """What is to be taken out of a long conversation: nothing is here, so only that may be asked for."""
    if fields is None:
        return
    for at, item in enumerate(fields.items("edits") or []):
        edit = Fields(item, fields.name(f"edits[{at}]"))
        if edit.one_of("type", KEEPS_THINKING) is None:
            raise refuse(edit.name("type"), None, repr(KEEPS_THINKING))
        keep = edit.take("keep")
        if keep != "all":
            raise refuse(edit.name("keep"), keep, "'all': nothing is taken out here")
        edit.finish()
    fields.finish()


def _read_thinking(fields: Fields | None, draft: Draft) -> None:
    if fields is None:
        return
    kind = fields.one_of("type", "enabled", "disabled", "adaptive")
    if kind is None:
        raise refuse("thinking.type", None, "'enabled', 'disabled' or 'adaptive'")
    budget = fields.integer("budget_tokens", 1)
    if kind == "enabled":
        if budget is None:
            raise refuse("thinking.budget_tokens", None, "an integer >= 1")
        read_budget(draft, budget, "thinking.budget_tokens")
        set_thinking(draft, True, "thinking")
    elif budget is not None:
        raise refuse("thinking.budget_tokens", budget, "none beside this type")
    elif kind == "disabled":
        read_effort(draft, NONE, "thinking")
    fields.accept("display")
    fields.finish()


def _read_output(fields: Fields | None, draft: Draft) -> None:
    if fields is None:
        return
    effort = fields.one_of("effort", *EFFORT_WORDS)
    if effort != USUAL_EFFORT or thinks(draft.served):
        read_effort(draft, "xhigh" if effort == "max" else effort, "output_config.effort")
    form = fields.inner("format")
    if form is not None:
        if form.one_of("type", "json_schema") is None:
            raise refuse("output_config.format.type", None, "'json_schema'")
        read_schema(draft, form.mapping("schema"), "output_config.format.schema")
        form.accept("name")
        form.finish()
    fields.finish()


def _tool(raw: object, path: str) -> dict[str, Any]:
    fields = Fields(raw, path)
    fields.only("type", ["custom"], "this server runs no tools of its own")
    function: dict[str, Any] = {"name": fields.required_text("name"), "description": fields.text("description") or ""}
    function["parameters"] = fields.mapping("input_schema") or {"type": "object", "properties": {}}
    if fields.boolean("strict"):
        function["strict"] = True
    for name, value in (("defer_loading", False), ("allowed_callers", ["direct"])):
        fields.only(name, [value], "every tool is shown to the model at once")
    fields.accept("cache_control", "eager_input_streaming", "input_examples")
    fields.finish()
    return {"type": "function", "function": function}


def _tool_choice(fields: Fields | None) -> tuple[str, bool]:
    """The choice in Ask's words, and whether several calls are wanted."""
    if fields is None:
        return AUTO, True
    kind = fields.one_of("type", "auto", "any", "tool", "none")
    if kind is None:
        raise refuse("tool_choice.type", None, "'auto', 'any', 'tool' or 'none'")
    choice = {"auto": AUTO, "any": REQUIRED, "none": NONE}.get(kind) or fields.required_text("name")
    single = bool(fields.boolean("disable_parallel_tool_use"))
    fields.finish()
    return choice, not single


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

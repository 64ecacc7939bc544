"""OpenAI's chat completions.

Owns: the request's fields (each honoured, accepted as without effect, or refused by name) and both forms of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..http.errors import ApiError, refuse
from ..http.fields import Fields
from ..http.wire import Frame
from ..serving.parts import Part, ToolCall
from ..serving.reply import Outcome
from ..serving.request import Ask  # fmt: skip
from ..serving.source import Served
from . import openai
from .messages import read_messages
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

if TYPE_CHECKING:
    import dflash2_mlx as d2


class ChatCompletions:
    """The interface."""

    def read(self, body: object) -> ChatCall:
        return ChatCall(Fields(body))

    def error(self, error: ApiError) -> Mapping[str, Any]:
        return error.openai()


class ChatCall:
    """One request."""

    def __init__(self, fields: Fields):
        self._fields = fields
        self.model = fields.required_text("model")
        self.wish = openai.read_stream(fields)
        self.stream = self.wish.stream
        self.messages = read_messages(fields.items("messages"))
        self.logprobs = bool(fields.boolean("logprobs"))
        top = fields.integer("top_logprobs", 0, MOST_LOGPROBS)
        if top is not None and not self.logprobs:
            raise refuse("top_logprobs", top, "logprobs true beside it")
        self.top = top or 0
        fields.only("n", [1], "one reply per request")
        fields.only("modalities", [["text"]], "text is all there is")
        fields.only("verbosity", ["medium"], "no model here knows how")
        for name in ("audio", "web_search_options", "functions", "function_call", "moderation"):
            fields.only(name, [], "not offered here" if name != "functions" else "`tools` replaced it")
        fields.accept(*openai.WITHOUT_EFFECT)

    def ask(self, served: Served) -> Ask:
        fields, draft = self._fields, Draft(served)
        read_sampling(fields, draft)
        read_length(fields, draft, "max_completion_tokens", "max_tokens")
        read_stop(fields, draft)
        read_template(fields, draft)
        read_effort(draft, fields.text("reasoning_effort"), "reasoning_effort")
        _read_format(fields, draft)
        _read_tools(fields, draft)
        if self.logprobs:
            draft.config["logprobs"] = self.top
        fields.finish()
        return draft.finish(self.messages)

    def whole(self, served: Served, outcome: Outcome) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": outcome.content or None, "refusal": None}
        if not outcome.calls:
            message["content"] = outcome.content
        if outcome.reasoning:
            message["reasoning_content"] = outcome.reasoning
        if outcome.calls:
            message["tool_calls"] = [_call(call) for call in outcome.calls]
        logprobs = None
        if self.logprobs:
            content = [openai.chat_logprob(served, item, self.top) for item in outcome.logprobs]
            logprobs = {"content": content, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": outcome.finish_reason}
        return {
            **openai.head("chat.completion", "chatcmpl-", self.model),
            "choices": [choice],
            "usage": openai.usage(outcome),
            "system_fingerprint": None,
        }

    def writer(self, served: Served) -> ChatWriter:
        return ChatWriter(self, served)


class ChatWriter:
    """Makes chunks."""

    def __init__(self, call: ChatCall, served: Served):
        self._call, self._served = call, served
        self._head = openai.head("chat.completion.chunk", "chatcmpl-", call.model)
        self._calls = 0
        self._outcome: Outcome | None = None

    def start(self, outcome: Outcome) -> list[Frame]:
        self._outcome = outcome
        return [self._chunk({"role": "assistant", "content": ""})]

    def parts(self, parts: Sequence[Part], logprobs: Sequence[d2.TokenLogprob]) -> list[Frame]:
        deltas = [self._delta(part) for part in parts]
        if self._call.logprobs and logprobs and not deltas:
            deltas = [{"content": ""}]  # the text of these tokens is still held back
        entries = [openai.chat_logprob(self._served, item, self._call.top) for item in logprobs]
        # The entries go with the last piece: text and tokens of an event need not end at the same place.
        return [self._chunk(delta, entries if delta is deltas[-1] else []) for delta in deltas]

    def finish(self, outcome: Outcome) -> list[Frame]:
        frames = [self._chunk({}, reason=outcome.finish_reason)]
        if self._call.wish.usage:
            frames.append(Frame({**self._head, "choices": [], "usage": openai.usage(outcome)}))
        return [*frames, Frame("[DONE]")]

    def failed(self, error: ApiError) -> list[Frame]:
        return [Frame(error.openai())]

    def _delta(self, part: Part) -> dict[str, Any]:
        if part.call is not None:
            self._calls += 1
            return {"tool_calls": [{"index": self._calls - 1, **_call(part.call)}]}
        return {"reasoning_content": part.reasoning} if part.reasoning else {"content": part.content}

    def _chunk(
        self, delta: dict[str, Any], logprobs: Sequence[dict[str, Any]] = (), reason: str | None = None
    ) -> Frame:
        shown = {"content": list(logprobs), "refusal": None} if self._call.logprobs and logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": shown, "finish_reason": reason}
        chunk = {**self._head, "choices": [choice]}
        if self._call.wish.usage:
            told = self._outcome if self._call.wish.each else None
            chunk["usage"] = None if told is None else openai.usage(told)
        return Frame(chunk)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _read_format(fields: Fields, draft: Draft) -> None:
    wanted = fields.inner("response_format")
    if wanted is None:
        return
    kind = wanted.one_of("type", "text", "json_object", "json_schema")
    if kind is None:
        raise refuse("response_format.type", None, "'text', 'json_object' or 'json_schema'")
    if kind == "json_object":
        read_schema(draft, {"type": "object"}, "response_format")
    elif kind == "json_schema":
        named = wanted.inner("json_schema")
        if named is None:
            raise refuse("response_format.json_schema", None, "an object with name and schema")
        named.required_text("name")
        named.accept("description", "strict")  # every schema is enforced
        read_schema(draft, named.mapping("schema") or {}, named.name("schema"))
        named.finish()
    wanted.finish()


def _read_tools(fields: Fields, draft: Draft) -> None:
    tools = [_tool(item, f"tools[{at}]") for at, item in enumerate(fields.items("tools") or [])]
    parallel = fields.boolean("parallel_tool_calls")
    choice = openai.read_tool_choice(fields.take("tool_choice"), nested=True)
    set_tools(draft, tools, choice, parallel=parallel is not False)


def _tool(raw: object, path: str) -> dict[str, Any]:
    fields = Fields(raw, path)
    if fields.one_of("type", "function") is None:
        raise refuse(f"{path}.type", None, "'function'")
    inner = fields.inner("function")
    if inner is None:
        raise refuse(f"{path}.function", None, "an object with name and parameters")
    fields.finish()
    return openai.read_function(inner)

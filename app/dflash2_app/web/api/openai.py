"""What OpenAI's interfaces have in common: usage, log-probabilities, tools, ignored fields."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..http.errors import ApiError, refuse
from ..http.fields import Fields
from ..serving.reply import Outcome, usage_details
from ..serving.request import AUTO, NONE, REQUIRED
from ..serving.source import Served

if TYPE_CHECKING:
    import dflash2_mlx as d2

# Fields that cannot change the text.
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                  "prompt_cache_retention", "prediction", "prompt_cache_options")  # fmt: skip
LEAST_LOGPROB = -9999.0  # OpenAI's number for "never"


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def head(kind: str, prefix: str, model: str) -> dict[str, Any]:
    """The fields every object of one reply begins with."""
    return {"id": new_id(prefix), "object": kind, "created": int(time.time()), "model": model}


def usage(outcome: Outcome) -> dict[str, Any]:
    stats = outcome.stats
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.generated_tokens,
        "total_tokens": stats.prompt_tokens + stats.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": outcome.reasoning_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
        "dflash2": usage_details(stats),
    }


@dataclass(frozen=True)
class StreamWish:
    """How a reply is to be streamed: `usage` at its end, `each` with every piece (vLLM's name for it is longer)."""

    stream: bool
    usage: bool = False
    each: bool = False


def read_stream(fields: Fields) -> StreamWish:
    """Whether to stream, and when the stream tells the usage."""
    stream = bool(fields.boolean("stream"))
    options = fields.inner("stream_options")
    with_usage = each = False
    if options is not None:
        if not stream:
            raise ApiError("stream_options: got them, expected none: stream is not true", param="stream_options")
        with_usage = bool(options.boolean("include_usage"))
        each = bool(options.boolean("continuous_usage_stats"))
        if each and not with_usage:
            name = "stream_options.continuous_usage_stats"
            raise ApiError(f"{name}: got true, expected include_usage true beside it", param=name)
        options.only("include_obfuscation", [False], "nothing is obfuscated here")
        options.finish()
    return StreamWish(stream, with_usage, each)


def read_function(fields: Fields) -> dict[str, Any]:
    """A function that a reply may call, in the form that chat templates are shown; takes all of `fields`."""
    function: dict[str, Any] = {"name": fields.required_text("name"), "description": fields.text("description") or ""}
    function["parameters"] = fields.mapping("parameters") or {"type": "object", "properties": {}}
    if fields.boolean("strict"):
        function["strict"] = True
    fields.finish()
    return {"type": "function", "function": function}


def read_tool_choice(raw: object, *, nested: bool) -> str:
    """The choice in Ask's words.

    Args:
        nested: a named function stands in an object of its own (chat completions), not beside the type (Responses).
    """
    if raw is None or isinstance(raw, str):
        if raw not in (None, AUTO, NONE, REQUIRED):
            raise refuse("tool_choice", raw, "'auto', 'none', 'required' or a function")
        return raw or AUTO
    fields = Fields(raw, "tool_choice")
    fields.one_of("type", "function")
    named = fields.inner("function") if nested else fields
    if named is None:
        raise refuse("tool_choice.function", None, "an object with the name of a tool")
    name = named.required_text("name")
    named.finish()
    fields.finish()
    if name in (AUTO, NONE, REQUIRED):
        raise refuse(named.name("name"), name, "a tool's name that is not a word of its own here")
    return name


def shown_logprob(value: float) -> float:
    return value if math.isfinite(value) else LEAST_LOGPROB


def chat_logprob(served: Served, item: d2.TokenLogprob, top: int) -> dict[str, Any]:
    """One entry of `logprobs.content`."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = served.token_reader.data(token)
        known = None if data is None else list(data)
        return {"token": served.token_reader.text(token), "logprob": shown_logprob(logprob), "bytes": known}

    return {**entry(item.token, item.logprob), "top_logprobs": [entry(*pair) for pair in item.top[:top]]}

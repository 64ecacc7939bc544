"""What OpenAI's chat and text completions have in common: usage, log-probabilities, ignored fields."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..reply import Outcome, usage_details
from ..served import Served
from .errors import ApiError
from .fields import Fields

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


def shown_logprob(value: float) -> float:
    return value if math.isfinite(value) else LEAST_LOGPROB


def token_text(served: Served, token: int) -> str:
    return str(served.tokenizer.decode([token]))


def chat_logprob(served: Served, item: d2.TokenLogprob, top: int) -> dict[str, Any]:
    """One entry of `logprobs.content`."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = token_text(served, token)
        # A token may be part of a character: then its text is a replacement sign, and its bytes are not known here.
        known = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": shown_logprob(logprob), "bytes": known}

    return {**entry(item.token, item.logprob), "top_logprobs": [entry(*pair) for pair in item.top[:top]]}

"""What a reply is made of, as callers see it: events while it runs, and the whole of it.

Owns: plain records. Knows nothing of sessions or threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..decode.request import TokenLogprob
from ..decode.stats import GenerationStats


@dataclass(frozen=True)
class RoundInfo:
    """One round, for display: `committed` tokens, the last of them the bonus when committed > num_accepted.

    A stop token is among the committed ones; what came after a stop string is not.
    """

    num_accepted: int
    width: int
    committed: int
    proposal: tuple[int, ...]


@dataclass(frozen=True)
class GenerationEvent:
    """One piece of a reply.

    `token_ids` were committed by this event (a stop token is left out); `text` is what became certain, which
    may lag behind the tokens. While the prompt is read, only `prefilled` of `prompt_tokens` changes. The last
    event carries the finish reason: "stop", "length" or "cancelled". `stats` are the numbers as of this event.
    """

    text: str
    token_ids: tuple[int, ...]
    stats: GenerationStats
    finish_reason: str | None = None
    round: RoundInfo | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prefilled: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True)
class GenerationResult:
    """A whole reply."""

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: GenerationStats
    model: str
    drafter: str | None
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields of `generate --json`."""
        stats = self.stats
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "generated_tokens": stats.generated_tokens,
            "mode": stats.mode,
            "fallback_reason": stats.fallback_reason,
            "notices": stats.notices,
            "verify_mode": stats.verify_mode,
            "rounds": stats.rounds,
            "rounds_by_width": {str(width): rounds for width, rounds in sorted(stats.rounds_by_width.items())},
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "acceptance_length": stats.acceptance_length,
            "acceptance_by_position": stats.acceptance_by_position,
            "block_size": stats.block_size,
            "prefill_s": stats.prefill_s,
            "decode_s": stats.decode_s,
            "tokens_per_second": stats.tokens_per_second,
            "peak_memory_bytes": stats.peak_memory_bytes,
            "model": self.model,
            "drafter": self.drafter,
            "seed": stats.seed,
        }

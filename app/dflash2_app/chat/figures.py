"""Figures of replies, in words.

Owns: the line under a reply, the status line while it is written, and the sums of a chat. Knows nothing of screens.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import dflash2_mlx as d2

SEPARATOR = " · "


def counted(number: int, word: str) -> str:
    """A number and its noun."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def figures(stats: d2.GenerationStats) -> str:
    """How a reply goes: tokens, speed, acceptance."""
    parts = [counted(stats.generated_tokens, "token")]
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.mode != "dflash2":
        parts.append("plain decoding")
    elif stats.acceptance_length is not None:
        parts.append(f"acceptance {stats.acceptance_length:.2f} of {stats.block_size}")
    return SEPARATOR.join(parts)


def numbers(stats: d2.GenerationStats) -> dict[str, Any]:
    """How a reply went, as it is saved with it."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "generated_tokens": stats.generated_tokens,
        "tokens_per_second": stats.tokens_per_second,
        "mode": stats.mode,
        "fallback_reason": stats.fallback_reason,
        "rounds": stats.rounds,
        "acceptance_length": stats.acceptance_length,
        "acceptance_by_position": stats.acceptance_by_position,
        "width": stats.block_size,
        "prefill_s": stats.prefill_s,
        "decode_s": stats.decode_s,
        "seed": stats.seed,
    }


def _added(mine: list[int], theirs: list[int]) -> list[int]:
    return [left + right for left, right in zip_longest(mine, theirs, fillvalue=0)]


class Totals:
    """Sums over the replies of one chat, since the pair or the way of decoding last changed."""

    def __init__(self) -> None:
        self.replies = 0
        self.last: d2.GenerationStats | None = None
        self._sum: d2.GenerationStats | None = None

    def add(self, stats: d2.GenerationStats) -> None:
        """Count a finished reply."""
        self.last = stats
        if self._sum is None or self._sum.mode != stats.mode:
            self.replies, self._sum = 1, stats.copy()
            return
        self.replies += 1
        total = self._sum
        total.block_size = max(total.block_size or 0, stats.block_size or 0) or None
        total.generated_tokens += stats.generated_tokens
        total.prompt_tokens += stats.prompt_tokens
        total.cached_tokens += stats.cached_tokens
        total.rounds += stats.rounds
        total.committed_tokens += stats.committed_tokens
        total.drafted_tokens += stats.drafted_tokens
        total.accepted_tokens += stats.accepted_tokens
        total.reached = _added(total.reached, stats.reached)
        total.tried = _added(total.tried, stats.tried)
        for width, rounds in stats.rounds_by_width.items():
            total.rounds_by_width[width] = total.rounds_by_width.get(width, 0) + rounds

    def rows(self) -> list[tuple[str, str]]:
        """What `/stats` says, without the chart; nothing before the first reply."""
        if self.last is None or self._sum is None:
            return []
        last, total = self.last, self._sum
        read = last.prompt_tokens - last.cached_tokens
        whole = (
            f"{self.replies} {'reply' if self.replies == 1 else 'replies'}, {counted(total.generated_tokens, 'token')}"
        )
        if total.acceptance_length is not None:
            whole += f", acceptance {total.acceptance_length:.2f}"
        reused = f"{last.cached_tokens} of {last.prompt_tokens} prompt tokens reused"
        return [
            ("last reply", figures(last)),
            ("its prompt", f"{reused}, {read} read in {last.prefill_s:.2f} s"),
            ("whole chat", whole),
        ]

    @property
    def by_position(self) -> list[float | None]:
        """Acceptance by position over the whole chat; empty without drafting."""
        shares = [] if self._sum is None else self._sum.acceptance_by_position
        return shares if any(share is not None for share in shares) else []

"""What rounds did, counted: acceptance, widths, times, and shares by position.

Owns: the definitions. Recall@k and conditional acceptance are the same one: how often position j is right among the
blocks in which every position before it was. Knows nothing of devices or text.

Reference: docs/dflash2.md 6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .request import RoundResult


@dataclass
class GenerationStats:
    """Numbers of one reply.

    `generated_tokens` counts the stop token, which the reply leaves out, and nothing after a stop string.
    `acceptance_length` is committed tokens per round (the token of the prefill pass counts for neither).
    `acceptance_by_position[j-1]` is how often draft j was accepted among the rounds that accepted j - 1 and drafted
    that far; None where no round did. `rounds_by_width` counts rounds by the rows they verified. `cached_tokens` of
    the prompt were known from an earlier reply and not read. `decode_s` starts when the first token is there;
    `prefill_s` ends then. Time spent waiting for a reader who fell behind is in neither.
    """

    mode: str
    block_size: int | None
    fallback_reason: str | None = None
    notices: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    committed_tokens: int = 0
    synchronous_rounds: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    peak_memory_bytes: int = 0
    seed: int | None = None
    lossless_mode: str | None = None
    verify_mode: str | None = None
    rounds_by_width: dict[int, int] = field(default_factory=dict)
    reached: list[int] = field(default_factory=list)  # reached[j]: rounds that accepted at least j drafts
    tried: list[int] = field(default_factory=list)  # tried[j]: rounds that drafted j + 1, of those that accepted j

    def add(self, result: RoundResult) -> None:
        """Count one result."""
        self.generated_tokens += len(result.tokens)
        if result.first or not result.width:
            return
        self.rounds += 1
        self.committed_tokens += len(result.tokens)
        self.synchronous_rounds += result.synchronous
        drafted = result.width - 1
        self.drafted_tokens += drafted
        self.accepted_tokens += min(result.num_accepted, len(result.tokens))
        self.rounds_by_width[result.width] = self.rounds_by_width.get(result.width, 0) + 1
        self.reached.extend([0] * (drafted + 1 - len(self.reached)))
        self.tried.extend([0] * (drafted - len(self.tried)))
        for j in range(min(result.num_accepted, drafted) + 1):
            self.reached[j] += 1
        for j in range(min(result.num_accepted + 1, drafted)):
            self.tried[j] += 1

    def copy(self) -> GenerationStats:
        """The numbers as they stand now."""
        return replace(
            self,
            notices=list(self.notices),
            rounds_by_width=dict(self.rounds_by_width),
            reached=list(self.reached),
            tried=list(self.tried),
        )

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens per round, mean over rounds; None where nothing was drafted."""
        if not self.rounds or not self.drafted_tokens:
            return None
        return self.committed_tokens / self.rounds

    @property
    def acceptance_by_position(self) -> list[float | None]:
        """By drafted position, the share of rounds that accepted it, of those that tried it; None where none did."""
        pairs = zip(self.reached[1:], self.tried, strict=True)
        shares = [kept / tried if tried else None for kept, tried in pairs]
        missing = (self.block_size or 1) - 1 - len(shares)
        return shares + [None] * missing

    @property
    def tokens_per_second(self) -> float | None:
        """Decoded tokens per second of decoding; the first token belongs to the prefill."""
        if self.generated_tokens < 2 or self.decode_s <= 0:
            return None
        return (self.generated_tokens - 1) / self.decode_s


def conditional_shares(right: np.ndarray, asked: np.ndarray) -> list[float | None]:
    """Share of blocks that are right at position j, of those that were asked there and right everywhere before.

    Shapes:
        right, asked: [A, N] bool; a block that is not asked at j is not asked behind it either
    Returns:
        one share per position; None where no block got that far
    """
    before = np.ones(len(right), dtype=bool)
    shares: list[float | None] = []
    for position in range(right.shape[1]):
        reached = before & asked[:, position]
        count = int(reached.sum())
        before = reached & right[:, position]
        shares.append(int(before.sum()) / count if count else None)
    return shares


def expected_length(shares: Sequence[float | None]) -> float:
    """1 + Σ_j Π_{i<=j} c_i: tokens of a round whose positions are right with these conditional shares.

    With the shares of Recall@k this is the oracle length: what a perfect choice among k candidates would reach. Where
    nobody got, nothing is added.
    """
    total, reached = 1.0, 1.0
    for share in shares:
        reached *= share or 0.0
        total += reached
    return total


def leading(right: np.ndarray) -> np.ndarray:
    """How many positions in a row are right, from the first on: [A, N] bool -> [A]."""
    return np.cumprod(right, axis=1, dtype=np.int64).sum(axis=1)


def reached_positions(num_accepted: Sequence[int], drafted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rounds as `conditional_shares` wants them: [rounds, N] bool twice, with N the most drafts of a round."""
    positions = np.arange(1, max(drafted, default=0) + 1)
    return (
        np.asarray(num_accepted, dtype=np.int64)[:, None] >= positions,
        np.asarray(drafted, dtype=np.int64)[:, None] >= positions,
    )

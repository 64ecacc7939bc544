"""What is asked of a session, and what it gives back: a request, and the results of its steps.

Knows nothing of models or states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sampling.config import SamplingConfig
from ..sampling.constraints import LogitConstraint
from ..validation import check_integer
from .widths import WidthPolicy

MOST_TOKENS = 2**31 - 1  # of one reply: they are counted in an int32 on the device


@dataclass(frozen=True)
class Request:
    """One reply to produce.

    `seed` is used only when `sampling` is not greedy. `width` is that of every round, or the most that `policy` may
    ask for. `boundaries` are prompt positions at which a chunk must end, so that a snapshot can be taken there.

    Raises:
        ConfigError: `max_tokens` does not fit the device's counter.
    """

    prompt: list[int]
    max_tokens: int
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    width: int = 1
    logprobs: int | None = None
    prefill_chunk: int = 512
    constraint: LogitConstraint | None = None
    policy: WidthPolicy | None = None
    boundaries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_integer("max_tokens", self.max_tokens, 1, MOST_TOKENS)


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one emitted token under the target, and its best alternatives.

    Log-softmax of the target's logits after bias and penalties, before temperature and cuts.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class RoundResult:
    """What one round committed, read by the host one round later.

    `first` marks the token that the prefill pass itself produced: it is not a round. `num_accepted` is what
    the target agreed to, before a stop token or the token limit cut the block.
    """

    tokens: tuple[int, ...]
    num_accepted: int
    width: int
    proposal: tuple[int, ...] = ()
    first: bool = False
    synchronous: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class PrefillProgress:
    """How much of the prompt has been read; `cached` of it was known before."""

    done: int
    total: int
    cached: int

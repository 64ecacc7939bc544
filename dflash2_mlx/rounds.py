"""What goes into a round and what comes out of it for the host.

Owns: the request, the packed result of a pass on its way, and the cut at stop token and limit, which runs on the
device. Knows nothing of models or states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from .config import GenerationConfig, SamplingConfig
from .constraints import LogitConstraint
from .stats import TokenLogprob
from .values import check_integer
from .widths import WidthPolicy


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
        check_integer("max_tokens", self.max_tokens, 1, GenerationConfig.MOST_TOKENS)


@dataclass(frozen=True)
class QueuedPass:
    """A pass on its way: `packed` is [count, num_accepted, spoilt, tokens (L), proposal (N)], int32.

    `spoilt` is 1 where a token was chosen by logits that are not finite; `dtype` is that of the target's logits.
    """

    packed: mx.array
    width: int
    first: bool
    dtype: mx.Dtype
    logprobs: tuple[mx.array, mx.array, mx.array] | None


@mx.compile
def cut(
    tokens: mx.array,
    num_accepted: mx.array,
    drafted: mx.array,
    best: mx.array,
    stops: mx.array,
    anchor: mx.array,
    remaining: mx.array,
    done: mx.array,
) -> tuple[mx.array, ...]:
    """End a block at the first stop token or at the limit, and pack what the host will read.

    Shapes:
        tokens: [B, L] int32; drafted: [B, N] int32; best: [B, L], the target's `best_logits`; stops: [S] int32;
        all others [B]
    Returns:
        packed [B, 3 + L + N] int32, keep [B] (0 when already done), then the new anchor, remaining and done
    """
    index = mx.arange(tokens.shape[1], dtype=mx.int32)[None]
    available = num_accepted + 1
    is_stop = (tokens[..., None] == stops).any(axis=-1) & (index < available[:, None])
    first_stop = mx.where(is_stop, index, tokens.shape[1]).min(axis=1)
    keep = mx.minimum(mx.minimum(available, first_stop + 1), remaining)
    keep = mx.where(done, 0, keep).astype(mx.int32)
    remaining = remaining - keep
    newest = mx.take_along_axis(tokens, mx.maximum(keep - 1, 0)[:, None], axis=1)[:, 0]
    anchor = mx.where(keep > 0, newest, anchor)
    done = done | (first_stop < keep) | (remaining <= 0)
    # Rows after the kept ones follow tokens that were refused: what they hold concerns nobody.
    spoilt = (~mx.isfinite(best) & (index < keep[:, None])).any(axis=1)
    counts = mx.stack([keep, num_accepted.astype(mx.int32), spoilt.astype(mx.int32)], axis=1)
    packed = mx.concatenate([counts, tokens, drafted], axis=1)
    return packed, keep, anchor, remaining, done


def best_logits(logits: mx.array) -> mx.array:
    """The largest logit of each row, [B, L] of [B, L, V]: finite exactly where a token can be chosen by the row.

    A maximum is NaN if any number is, and +inf if one overflowed. Single tokens at -inf are a target's way to exclude
    them (padded rows of a table), and leave it finite; a row of nothing else has no token to choose. Asked of what
    the target gave, before masks and biases.
    """
    return mx.max(logits, axis=-1)


def host_row(array: mx.array) -> list[Any]:
    """Row 0 of an evaluated array as Python values; slicing on the device would queue behind the next round."""
    rows: Any = array.tolist()
    return rows[0]


def read_log_probs(tokens: list[int], queued: QueuedPass) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of a pass's emitted tokens, of one sequence; empty where none were asked for."""
    if queued.logprobs is None:
        return ()
    own, ids, values = (host_row(array) for array in queued.logprobs)
    return tuple(
        TokenLogprob(token, own[i], tuple(zip(ids[i], values[i], strict=True))) for i, token in enumerate(tokens)
    )

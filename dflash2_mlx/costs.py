"""What a pass costs by its number of rows, and the verify width that pays.

Owns: measured times of target and draft passes, the expected tokens of a block, and the choice between widths.
Knows nothing of sessions: passes are run on a state of their own and never committed. All functions run on the
thread that owns MLX.

Reference: DFlash 2 specification 6.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx

from .drafter.model import DraftModel
from .targets.base import Target

MOST_ROWS = 16
CONTEXT = 128  # committed rows the measured passes look back on
_LONG_ENOUGH_S = 0.05  # what a chain of passes should take
_MOST_PASSES = 16
_REPEATS = 3

Key = tuple[str, int]  # "verify" or "draft", rows
Name = TypeVar("Name", bound=Hashable)
Chain = Callable[[int], mx.array]  # builds n passes; its result depends on the last


@dataclass(frozen=True)
class PassCosts:
    """Seconds per pass: `verify[rows]` of the target, `draft[width]` of a proposal with its context rows."""

    verify: dict[int, float]
    draft: dict[int, float]


class CostTable:
    """Costs of one pair on this machine, measured when they are first asked for.

    Args:
        costs: what is known already.
    """

    def __init__(self, costs: PassCosts | None = None):
        self._costs = costs

    @property
    def known(self) -> bool:
        return self._costs is not None

    def costs(self, target: Target, drafter: DraftModel) -> PassCosts:
        """Costs of plain passes and of every width up to the drafter's block size."""
        if self._costs is None:
            self._costs = measure_costs(target, drafter, range(1, drafter.config.block_size + 1))
        return self._costs


@dataclass(frozen=True)
class WidthGain:
    """What a width is expected to bring; `speedup` is over plain decoding, 1.0 for width 1."""

    width: int
    tokens: float
    speedup: float


def measure_costs(
    target: Target, drafter: DraftModel | None, rows: Iterable[int] = range(1, MOST_ROWS + 1)
) -> PassCosts:
    """Time passes of each number of rows, one after another as decoding runs them.

    Each pass waits for the one before it, on the device; the host reads only the end of a chain.
    """
    rows = list(rows)
    chains: dict[Key, Chain] = {("verify", count): target_chain(target, count) for count in rows}
    if drafter is not None:
        widths = [count for count in rows if 2 <= count <= drafter.config.block_size]
        chains |= {("draft", width): draft_chain(target, drafter, width) for width in widths}
    seconds = {key: statistics.median(times) for key, times in time_in_turns(chains, _REPEATS).items()}
    verify, draft = ({n: s for (what, n), s in seconds.items() if what == kind} for kind in ("verify", "draft"))
    return PassCosts(verify, draft)


def expected_tokens(acceptance: Sequence[float | None], width: int) -> float:
    """Tokens a round of `width` rows commits on average.

    Args:
        acceptance: share of rounds that accept draft j of those that accepted all before it; where nobody
            got that far, the last known share stands in.
    """
    tokens, reached, share = 1.0, 1.0, 0.0
    for position in range(width - 1):
        known = acceptance[position] if position < len(acceptance) else None
        share = share if known is None else known
        reached *= share
        tokens += reached
    return tokens


def gains(costs: PassCosts, acceptance: Sequence[float | None]) -> list[WidthGain]:
    """Expected tokens and speed of plain decoding (width 1) and of every width that was measured."""
    found = [WidthGain(1, 1.0, 1.0)]
    for width, draft in sorted(costs.draft.items()):
        tokens = expected_tokens(acceptance, width)
        found.append(WidthGain(width, tokens, tokens * costs.verify[1] / (costs.verify[width] + draft)))
    return found


def best_gain(found: Sequence[WidthGain]) -> WidthGain:
    """The fastest; of equals the narrowest. Width 1 means that drafting does not pay here."""
    return max(found, key=lambda gain: (gain.speedup, -gain.width))


def time_in_turns(chains: Mapping[Name, Chain], repeats: int) -> dict[Name, list[float]]:
    """Seconds of one pass of each chain, `repeats` times in turns: a slow moment of the machine hits all alike."""
    passes = {key: _enough_passes(chain) for key, chain in chains.items()}
    seconds: dict[Name, list[float]] = {key: [] for key in chains}
    for _ in range(repeats):
        for key, chain in chains.items():
            seconds[key].append(_timed(chain, passes[key]) / passes[key])
    return seconds


def _enough_passes(chain: Chain) -> int:
    mx.eval(chain(1))  # compiles, and allocates what is reused
    return max(1, min(_MOST_PASSES, round(_LONG_ENOUGH_S / _timed(chain, 1))))


def _timed(chain: Chain, passes: int) -> float:
    began = time.perf_counter()
    mx.eval(chain(passes))
    return time.perf_counter() - began


def target_chain(target: Target, rows: int) -> Chain:
    """Verify passes of `rows` rows, none of them committed."""
    state = target.new_state(1)
    prompt = mx.zeros((1, CONTEXT), dtype=mx.int32)
    target.forward(prompt, state, last_only=True)
    target.commit(state, CONTEXT)
    state.settle(CONTEXT, CONTEXT, 0)
    mx.eval(state.arrays())
    nothing = mx.zeros((1,), dtype=mx.int32)
    first = mx.zeros((1, rows), dtype=mx.int32)

    def chain(passes: int) -> mx.array:
        ids = first
        for _ in range(passes):
            out = target.forward(ids, state)
            target.commit(state, nothing)
            state.settle(rows, 0, CONTEXT)
            ids = mx.argmax(out.logits, axis=-1).astype(mx.int32)
        return ids

    return chain


def draft_chain(target: Target, drafter: DraftModel, width: int) -> Chain:
    """What a round does with the drafter: `width` context rows in, one greedy proposal out."""
    context = drafter.new_context()
    columns = len(drafter.config.target_layer_ids) * target.spec.hidden_size
    drafter.append_context(mx.zeros((1, CONTEXT, columns), dtype=drafter.dtype), context, CONTEXT)
    context.settle(CONTEXT, CONTEXT, 0)
    mx.eval(context.arrays())
    nothing = mx.zeros((1,), dtype=mx.int32)
    taps = mx.zeros((1, width, columns), dtype=drafter.dtype)

    def chain(passes: int) -> mx.array:
        anchor = nothing
        for _ in range(passes):
            # As in a round, the rows verified before go into the context first.
            drafter.append_context(taps, context, nothing)
            context.settle(width, 0, CONTEXT)
            anchor = drafter.propose(anchor, context, width, target).tokens[:, -1]
        return anchor

    return chain

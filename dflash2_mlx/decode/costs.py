"""What a pass costs by its number of rows, and the verify width that pays.

Owns: which passes of target and drafter are timed (`timing` says how), where a pair's costs come from, the expected
tokens of a block, and the choice between widths. What a chip should need by arithmetic is `cost_model`'s.
Knows nothing of sessions: passes are run on a state of their own and never committed. All functions run on the
thread that owns MLX.

Reference: docs/dflash2.md 6.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

import mlx.core as mx

from ..device.timing import MOST_PASSES, Chain, at_once, long_enough, timing_in_turns
from ..drafters.dflash2.model import DraftModel
from ..errors import ConfigError
from ..targets.base import Target

MOST_ROWS = 16
CONTEXT = 128  # committed rows the measured passes look back on
_REPEATS = 3

Key = tuple[str, int]  # "verify", "deep" or "draft", rows


@dataclass(frozen=True)
class PassCosts:
    """Seconds per pass.

    Attributes:
        verify: of the target, by rows, behind `CONTEXT` committed positions.
        draft: of a proposal with its context rows, by width; the drafter's window bounds what it sees.
        slope: what each further committed position adds to a target pass, by rows; rows that are missing add what a
            single row does, and nothing where that is missing too.
    """

    verify: dict[int, float]
    draft: dict[int, float]
    slope: dict[int, float] = field(default_factory=dict)

    def at(self, depth: int) -> PassCosts:
        """The costs behind `depth` committed positions."""
        beyond = max(0, depth - CONTEXT)
        if not self.slope or not beyond:
            return self
        single = self.slope.get(1, 0.0)
        deeper = {rows: cost + beyond * self.slope.get(rows, single) for rows, cost in self.verify.items()}
        return PassCosts(deeper, self.draft)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Plain JSON; seconds by rows."""
        parts = {"verify_s": self.verify, "draft_s": self.draft, "per_position_s": self.slope}
        return {name: {str(rows): seconds for rows, seconds in part.items()} for name, part in parts.items()}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> PassCosts:
        """Read what `to_dict` wrote.

        Raises:
            ConfigError: naming the entry that is not a table of positive numbers by rows.
        """
        return cls(*(_table(raw, name) for name in ("verify_s", "draft_s", "per_position_s")))


def is_seconds(value: object) -> TypeGuard[float]:
    """Whether a value of a file is a time: a number, not below 0, and one that a float can hold."""
    # The bound is asked of the number as it is: a whole one may be more than a float can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _table(raw: Mapping[str, Any], name: str) -> dict[int, float]:
    given, found = raw.get(name), {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"costs {name}: got {given!r}, expected seconds by rows")
    for rows, seconds in given.items():
        if not (isinstance(rows, str) and rows.isdecimal() and len(rows) < 6 and int(rows)) or not is_seconds(seconds):
            raise ConfigError(f"costs {name}: got {rows!r}: {seconds!r}, expected seconds by rows"[:200])
        found[int(rows)] = float(seconds)
    if name == "verify_s" and not found.get(1):
        raise ConfigError("costs verify_s: got no time of one row, expected one")
    return found


MEASURED, KEPT = "measured", "kept"


class CostTable:
    """Costs of one pair on this machine.

    Measured just now or in an earlier process (kept). Where there are none, they are measured when they are first
    asked for.

    Args:
        costs: what is known already.
    """

    def __init__(self, costs: PassCosts | None = None):
        self._costs = costs
        self.source: str | None = MEASURED if costs else None
        # Is told of newly measured ones, on the owner thread; says what went wrong.
        self.keep: Callable[[PassCosts], str | None] | None = None
        self.problem: str | None = None

    @property
    def known(self) -> bool:
        """Whether asking for costs measures nothing."""
        return self._costs is not None

    def adopt(self, costs: PassCosts, source: str) -> None:
        """Take these from now on; `source` is `MEASURED` or `KEPT`."""
        self._costs, self.source = costs, source
        if source == MEASURED and self.keep is not None:
            self.problem = self.keep(costs)

    def costs(self, target: Target, drafter: DraftModel) -> PassCosts:
        """Costs of plain passes and of every width up to the drafter's block size."""
        if self._costs is None:
            self.adopt(measure_costs(target, drafter, range(1, drafter.config.block_size + 1)), MEASURED)
        assert self._costs is not None
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
    return at_once(measuring_costs(target, drafter, rows))


def measuring_costs(
    target: Target, drafter: DraftModel | None, rows: Iterable[int], *, deep: int | None = None
) -> Generator[None, None, PassCosts]:
    """`measure_costs` in slices of about a pass; what else wants the device may run in between.

    Args:
        deep: also time passes behind so many positions, whose rows hold anything, for what a position adds.
    """
    rows = list(rows)
    chains: dict[Key, Chain] = {("verify", count): chain for count, chain in target_chains(target, rows).items()}
    yield
    for width in _widths(drafter, rows):
        assert drafter is not None
        chains["draft", width] = draft_chain(target, drafter, width)
        yield
    if deep is not None:
        chains |= {("deep", count): chain for count, chain in target_chains(target, rows, deep).items()}
        yield
    times = yield from timing_in_turns(chains, _REPEATS)
    seconds = {key: statistics.median(of_key) for key, of_key in times.items()}
    verify, draft, below = (
        {n: s for (what, n), s in seconds.items() if what == kind} for kind in ("verify", "draft", "deep")
    )
    slope = {count: max(0.0, s - verify[count]) / (deep - CONTEXT) for count, s in below.items()} if deep else {}
    return PassCosts(verify, draft, slope)


def cost_slices(drafter: DraftModel | None, rows: Iterable[int], deep: int | None) -> int:
    """How many slices `measuring_costs` takes."""
    rows = list(rows)
    states, drafts = 1 + (deep is not None), len(_widths(drafter, rows))
    return (len(rows) * states + drafts) * (1 + _REPEATS) + states + drafts


def seconds_to_measure(known: PassCosts, drafter: DraftModel | None, rows: Iterable[int], deep: int | None) -> float:
    """About how long `measuring_costs` takes where passes cost what is known of them."""
    rows, total = list(rows), 0.0
    for depth in (CONTEXT, deep):
        verify = {} if depth is None else known.at(depth).verify
        total += sum(_chain_s(verify[count]) for count in rows if count in verify)
    return total + sum(_chain_s(known.draft[width]) for width in _widths(drafter, rows) if width in known.draft)


def _chain_s(seconds: float) -> float:
    """Of one chain of passes: tried twice, then run."""
    return (2 + _REPEATS * long_enough(seconds, MOST_PASSES)) * seconds


def _widths(drafter: DraftModel | None, rows: Iterable[int]) -> list[int]:
    return [] if drafter is None else [count for count in rows if 2 <= count <= drafter.config.block_size]


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


def target_chain(target: Target, rows: int) -> Chain:
    """Verify passes of `rows` rows, none of them committed."""
    return target_chains(target, [rows])[rows]


def target_chains(target: Target, counts: Iterable[int], depth: int = CONTEXT) -> dict[int, Chain]:
    """Verify passes of each number of rows behind `depth` positions; all on one state, as none is committed."""
    state = target.new_state(1)
    # A pass that makes the layers' states; what the rows behind it hold is nothing to how long a pass takes.
    target.forward(mx.zeros((1, MOST_ROWS), dtype=mx.int32), state, last_only=True)
    target.commit(state, MOST_ROWS)
    state.settle(MOST_ROWS, MOST_ROWS, 0)
    state.pretend(depth)
    mx.eval(state.arrays())
    nothing = mx.zeros((1,), dtype=mx.int32)

    def chain(rows: int, passes: int) -> mx.array:
        ids = mx.zeros((1, rows), dtype=mx.int32)
        for _ in range(passes):
            out = target.forward(ids, state)
            target.commit(state, nothing)
            state.settle(rows, 0, depth)
            ids = mx.argmax(out.logits, axis=-1).astype(mx.int32)
        return ids

    return {count: partial(chain, count) for count in counts}


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

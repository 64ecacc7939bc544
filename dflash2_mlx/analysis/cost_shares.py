"""What convolution and selector cost of a round, on this machine.

Owns: the measurement by difference. A round is timed as its two passes, the drafter's and the target's; the drafter's
pass is timed again without the part, and what is saved is the part's. Host time between rounds is left out: the
pipeline hides it behind the passes.

Reference: docs/dflash2.md 10 (published: selector 0.6 %, convolution 0.7 % of a round).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..decode.costs import CONTEXT, draft_chain, target_chain
from ..device.runtime import owner
from ..device.timing import time_in_turns
from ..engine import Engine
from ..validation import check_integer
from .ablation import ablations
from .replies import drafter_of

REPEATS = 15
VERIFY, DRAFT = "verify", "draft"
METHOD = (
    "each part's share is the time of a draft pass minus that of a draft pass without the part, over the time of a "
    f"draft and a verify pass; chains of passes behind {CONTEXT} committed rows, timed in turns; median and "
    "middle half of the turns, each compared within itself; host time between rounds is not in it"
)


@dataclass(frozen=True)
class CostShare:
    """Share of a round's time: the median over turns, and the borders of the middle half.

    Noise can make it negative.
    """

    share: float
    quarter: float
    three_quarters: float

    @property
    def visible(self) -> bool:
        """Whether the middle half of the turns lies on one side of 0."""
        return self.quarter > 0 or self.three_quarters < 0


@dataclass(frozen=True)
class CostShares:
    """Medians in seconds, and shares of the round by what was switched off."""

    width: int
    repeats: int
    verify_s: float
    draft_s: float
    parts: dict[str, CostShare]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; milliseconds."""
        return {
            "width": self.width,
            "repeats": self.repeats,
            "verify_ms": 1e3 * self.verify_s,
            "draft_ms": 1e3 * self.draft_s,
            "draft_share": self.draft_s / (self.draft_s + self.verify_s),
            "parts": {name: {**asdict(part), "visible": part.visible} for name, part in self.parts.items()},
            "method": METHOD,
        }


def check_repeats(repeats: int) -> None:
    """Refuse fewer than two turns: their spread says what is visible.

    Raises:
        ConfigError: naming what was got.
    """
    check_integer("repeats", repeats, 2)


def measure_shares(engine: Engine, *, width: int | None = None, repeats: int = REPEATS) -> CostShares:
    """Time draft passes with and without each part the drafter has, and the verify pass beside them.

    Args:
        width: rows of a block; None takes the drafter's own block size.
    Raises:
        ConfigError: the engine has no drafter, or fewer than two turns are asked for.
    """
    check_repeats(repeats)
    drafter = drafter_of(engine)
    rows = width or drafter.config.block_size
    drafters = {DRAFT: drafter}
    drafters |= {name: variant.drafter for name, variant in ablations(engine).items() if variant.drafter is not None}

    def measure() -> dict[str, list[float]]:
        chains = {name: draft_chain(engine.target, each, rows) for name, each in drafters.items()}
        return time_in_turns({VERIFY: target_chain(engine.target, rows), **chains}, repeats)

    seconds = owner().call(measure)
    return CostShares(
        rows, repeats, statistics.median(seconds[VERIFY]), statistics.median(seconds[DRAFT]), shares_of(seconds)
    )


def shares_of(seconds: Mapping[str, list[float]]) -> dict[str, CostShare]:
    """Shares by what was switched off, from the times of each turn."""
    found = {}
    for name in seconds.keys() - {VERIFY, DRAFT}:
        turns = [
            (draft - without) / (draft + verify)
            for verify, draft, without in zip(seconds[VERIFY], seconds[DRAFT], seconds[name], strict=True)
        ]
        quarter, middle, three_quarters = statistics.quantiles(turns, n=4, method="inclusive")
        found[name] = CostShare(middle, quarter, three_quarters)
    return {name: found[name] for name in seconds if name in found}

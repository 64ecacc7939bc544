"""What a loaded pair costs and brings on this machine, and the block size that follows.

Owns: one examination: passes are timed, a sample reply gives the acceptance, the two give a recommendation. The
acceptance of another kind of text may differ; the report carries everything it was computed from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..decode.costs import MOST_ROWS, PassCosts, WidthGain, best_gain, gains, measure_costs
from ..device.runtime import owner
from ..engine import Engine
from ..generation.config import GenerationConfig
from ..generation.generate import generate
from ..generation.text import Prompt

SAMPLE_TOKENS = 128


@dataclass(frozen=True)
class PairReport:
    """Costs of passes, acceptance of a sample reply, and expected gains; `gains` is empty without a drafter."""

    costs: PassCosts
    acceptance_length: float | None
    acceptance_by_position: list[float | None]
    gains: list[WidthGain]

    @property
    def best(self) -> WidthGain | None:
        """The width to use; width 1 where drafting does not pay; None without a drafter."""
        return best_gain(self.gains) if self.gains else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; milliseconds."""
        best = self.best
        return {
            "verify_ms": {str(rows): 1e3 * seconds for rows, seconds in self.costs.verify.items()},
            "draft_ms": {str(width): 1e3 * seconds for width, seconds in self.costs.draft.items()},
            "acceptance_length": self.acceptance_length,
            "acceptance_by_position": self.acceptance_by_position,
            "gains": [
                {"block_size": gain.width, "tokens_per_round": gain.tokens, "speedup": gain.speedup}
                for gain in self.gains
                if gain.width > 1
            ],
            "recommended_block_size": None if best is None or best.width == 1 else best.width,
            "expected_speedup": None if best is None else best.speedup,
        }


def examine_pair(engine: Engine, prompt: Prompt, *, chat_template: bool = True, rows: int = MOST_ROWS) -> PairReport:
    """Time passes of 1..rows rows, and draft one greedy reply to see what is accepted."""
    costs = owner().call(lambda: measure_costs(engine.target, engine.drafter, range(1, rows + 1)))
    if engine.drafter is None:
        return PairReport(costs, None, [], [])
    config = GenerationConfig(max_tokens=SAMPLE_TOKENS, mode="dflash2", chat_template=chat_template)
    stats = generate(engine, prompt, replace(config, stop_token_ids=())).stats
    acceptance = stats.acceptance_by_position
    return PairReport(costs, stats.acceptance_length, acceptance, gains(costs, acceptance))

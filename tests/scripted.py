"""A drafter that knows the reply and errs on schedule.

Acceptance of a random drafter is near zero, so a test that needs a certain accept length says so here. All
else is real: context rows are appended from the target's taps, the block pass runs and writes its rows past
the context, and the position comes from the device, so a wrong length or a stale anchor changes the proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from dflash2_mlx.drafters.base import Lender
from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.drafters.dflash2.context import DrafterContext
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.sampling.acceptance import Proposal
from tests.tiny import drafter_config, drafter_weights


class ScriptedDrafter(DraftModel):
    """Proposes the first `accepts[r]` tokens of the reply right in round r, the next one wrong.

    Args:
        truth: prompt and plain reply; what follows its end counts as token 0.
        accepts: right proposals per round, repeated from the start when used up; -1 for all of them.
        garbage_after: what follows the wrong token is wrong too. Otherwise it is right again: a rule that
            counts matches instead of the leading ones then accepts too much.
        seed: of the weights.
        changes: of the drafter config, as in `tiny.make_tiny_drafter`.
    """

    def __init__(
        self,
        truth: Sequence[int],
        accepts: Sequence[int],
        *,
        garbage_after: bool = False,
        seed: int = 1,
        **changes: Any,
    ):
        config = DrafterConfig.from_dict(drafter_config(**changes))
        super().__init__(config)
        self.load_weights(list(drafter_weights(config, seed=seed).items()))
        self.freeze()
        mx.eval(self.parameters())
        self._garbage_after = garbage_after
        self._accepts = tuple(accepts)
        # Not attributes of the module: mlx counts arrays there among its parameters.
        self._log: list[tuple[mx.array, mx.array]] = []
        self.learn(truth)

    def learn(self, truth: Sequence[int]) -> None:
        """Change what is known, for another turn; the schedule starts again."""
        self._truth = mx.array([*truth, *[0] * (self.config.block_size + 1)], dtype=mx.int32)
        self._log.clear()

    def propose(
        self,
        anchor: mx.array,
        context: DrafterContext,
        width: int,
        lender: Lender,
        *,
        temperature: float = 0.0,
        noise: Callable[[mx.array], mx.array] | None = None,
    ) -> Proposal:
        real = super().propose(anchor, context, width, lender, temperature=temperature, noise=noise)
        right = self._accepts[len(self._log) % len(self._accepts)]
        right = width - 1 if right < 0 else right
        self._log.append((anchor, context.length))
        index = mx.arange(width - 1, dtype=mx.int32)[None]
        known = self._truth[mx.minimum(context.length[:, None] + 1 + index, self._truth.size - 1)]
        wrong = (known + 1) % self.config.vocab_size
        err = index >= right if self._garbage_after else index == right
        return Proposal(mx.where(err, wrong, known), real.candidates, real.unary, real.q)

    def rounds(self) -> list[tuple[int, int]]:
        """Anchor and context length each round was drafted from."""
        return [(anchor.item(), length.item()) for anchor, length in self._log]


def ramp(gamma: int) -> list[int]:
    """Every accept length in turn: 0, 1, .., gamma."""
    return list(range(gamma + 1))


def reject_every(n: int) -> list[int]:
    """All right, but every n-th block fully rejected."""
    return [-1] * (n - 1) + [0]


RIGHT, WRONG = [-1], [0]

"""What a sequence that was read can still serve, and a session's memory put aside.

Owns: how much of a new prompt a remembered sequence covers, and the snapshot of a session. Knows nothing of rounds
or of where snapshots are kept. Invariant: a snapshot's arrays are never written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..drafters.dflash2.context import DrafterContext
from ..targets.state import TargetState


@dataclass(frozen=True)
class Extent:
    """Which tokens have rows, and how far back each part of the memory reaches.

    `first_sliding` and `first_context` are the first positions that sliding layers and the drafter's context hold
    without a gap; None where there is no such part. `window` is that of the target's sliding layers.
    """

    tokens: np.ndarray  # [position] int32
    recurrent: bool
    first_sliding: int | None
    window: int | None
    first_context: int | None

    def kept(self, prompt: Sequence[int], first_visible: int | None) -> int:
        """Rows that can serve `prompt`, counted from its beginning; its last token is always left to be read.

        Args:
            first_visible: first context row that a block after the prompt sees; None when nothing is drafted.
        """
        common = min(shared_beginning(self.tokens, prompt), len(prompt) - 1)
        if common == 0 or not self._drafts(common, first_visible):
            return 0
        return common if self._goes_back_to(common) else 0

    def covers(self, other: Extent) -> bool:
        """Whether this serves every prompt that goes on from the end of `other`, and as well."""
        length = len(other.tokens)
        if shared_beginning(self.tokens, other.tokens) < length or not self._goes_back_to(length):
            return False
        if other.first_context is None or self.first_context is None:
            return other.first_context is None
        return length == len(self.tokens) or self.first_context <= other.first_context

    def _drafts(self, position: int, first_visible: int | None) -> bool:
        if first_visible is None:
            return True
        if self.first_context is None:
            return False
        # A context that starts too late does no harm when none of its rows will be seen.
        return position <= first_visible or self.first_context <= first_visible

    def _goes_back_to(self, position: int) -> bool:
        if position == len(self.tokens):
            return True
        if self.recurrent:
            return False
        first_seen = max(0, position - (self.window or 1) + 1)
        return self.first_sliding is None or self.first_sliding <= first_seen


def shared_beginning(mine: np.ndarray, theirs: Sequence[int] | np.ndarray) -> int:
    """How many leading tokens two sequences have in common."""
    length = min(len(mine), len(theirs))
    differs = mine[:length] != np.asarray(theirs[:length], dtype=np.int32)
    return int(differs.argmax()) if differs.any() else length


def extent_of(tokens: Sequence[int], position: int, state: TargetState, context: DrafterContext | None) -> Extent:
    """What a session's memory reaches."""
    sliding = state.sliding if state.sliding.num_layers else None
    return Extent(
        tokens=np.asarray(tokens[:position], dtype=np.int32),
        recurrent=bool(state.recurrent),
        first_sliding=None if sliding is None else sliding.first_whole,
        window=None if sliding is None else sliding.window,
        first_context=None if context is None else context.buffers.first_whole,
    )


@dataclass(frozen=True)
class SessionSnapshot:
    """A session between two passes. `tokens` may hold one more than the `position` rows that were read."""

    tokens: list[int]
    position: int
    state: TargetState
    context: DrafterContext | None

    @property
    def extent(self) -> Extent:
        """What it can serve of a prompt."""
        return extent_of(self.tokens, self.position, self.state, self.context)

    def arrays(self) -> list[mx.array]:
        """Every device array."""
        return [*self.state.arrays(), *([] if self.context is None else self.context.arrays())]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; of a packed snapshot, what it costs."""
        return sum(array.nbytes for array in self.arrays())

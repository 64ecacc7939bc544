"""What a session has read: the target's KV cache and states, the drafter's context, and copies of both.

Owns: the two halves moving together, how much of a new prompt they cover, and snapshots. Knows nothing of sampling or
of where snapshots are kept. Invariant: a snapshot's arrays are never written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..drafters.base import Drafter
from ..drafters.dflash2.context import DrafterContext
from ..targets.base import Target
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


class Memory:
    """What a session has read: the target's state and, beside it, the drafter's context.

    The two halves move together: outside of a pass, the context's length is that of the state.

    Attributes:
        state: of the target, one sequence.
        context: of the drafter; None without one.
        tokens: the committed ones, as far as the host knows; the newest may not have been read yet.
        position: rows that state and context hold, as the host knows.
    """

    def __init__(self, target: Target, drafter: Drafter | None = None):
        self._target, self._drafter = target, drafter
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.state = self._target.new_state(1)
        self.context = None if self._drafter is None else self._drafter.new_context(1)
        self.tokens: list[int] = []
        self.position = 0
        self._first_row = 0  # of the context, that a block after the prompt sees

    # What it can serve.

    def extent(self) -> Extent:
        """What is remembered, as a prefix cache compares it."""
        return extent_of(self.tokens, self.position, self.state, self.context)

    def first_visible(self, prompt_length: int) -> int | None:
        """First context row that a block after a prompt of this length sees; None when nothing is drafted."""
        return None if self._drafter is None else self._drafter.config.first_visible(prompt_length)

    @property
    def needs_boundary(self) -> bool:
        """Whether something here cannot be cut back to any earlier position."""
        windowed = self._drafter is not None and self._drafter.config.context_window is not None
        return bool(self.state.recurrent) or self.state.sliding.num_layers > 0 or windowed

    def keeps(self, prompt: list[int]) -> int:
        """Tokens of `prompt` that would not be read again."""
        return self.extent().kept(prompt, self.first_visible(len(prompt)))

    # A prompt.

    def begin(self, prompt: list[int], boundaries: Sequence[int] = ()) -> int:
        """Go back to the longest prefix of `prompt` that is held; returns its length.

        Args:
            boundaries: prompt positions at which a snapshot will be taken; it must serve any prompt that goes on there.
        """
        common = self.keeps(prompt)
        if common == 0:
            self.clear()
        elif common < self.position:
            self.truncate(common)
        self.position, self.tokens = common, list(prompt)
        if self._drafter is None or self.context is None:
            return common
        ahead = [boundary + 1 for boundary in boundaries if boundary > common]
        first_visible = self._drafter.config.first_visible
        self._first_row = first_visible(min([len(prompt), *ahead]))
        if self._first_row < common and self.context.buffers.first_whole > self._first_row:
            self._first_row = first_visible(len(prompt))  # rows kept for a longer prompt: enough for this
        if self._first_row and self._first_row >= common:  # rows up to there will never be seen: leave a gap
            self.context.skip_to(self._first_row)
        return common

    def prompt_taps(self, end: int) -> tuple[int, ...]:
        """Target layers whose outputs the context needs of the prompt chunk that ends before position `end`."""
        if self._drafter is None or not (end > self._first_row or self.position < self._drafter.config.sink):
            return ()
        return self._drafter.config.target_layer_ids

    def read_prompt(self, taps: mx.array | None, rows: int) -> None:
        """Take in a prompt chunk that the target has passed over, and wait for it.

        Nothing is in flight here: waiting bounds the memory of a long prompt to one chunk.
        """
        start, end = self.position, self.position + rows
        self._target.commit(self.state, rows)
        self.state.forget_future(end)  # prompt rows are never taken back one by one
        if taps is not None:
            self._read_taps(taps, start, end)
        self.position = end
        mx.eval(self.arrays())

    def end_prompt(self) -> None:
        """Give back the room that long chunks needed and decoding does not."""
        self.state.trim()

    def _read_taps(self, taps: mx.array, start: int, end: int) -> None:
        """Add context rows for those of positions start..end-1 that a block will see."""
        assert self._drafter is not None and self.context is not None
        sink_end = min(end, self._drafter.config.sink)
        if start < sink_end < self._first_row:  # the sink's rows; between them and the window is a gap
            self._project(taps[:, : sink_end - start], start)
            self.context.truncate(self._first_row)
        if end > self._first_row:
            first = max(start, self._first_row)
            self._project(taps[:, first - start :], first)
        if end == len(self.tokens):
            self.context.trim()

    def _project(self, taps: mx.array, start: int) -> None:
        """Add the context rows of prompt positions start.. ."""
        assert self._drafter is not None and self.context is not None
        rows = taps.shape[1]
        self.context.truncate(start)
        self._drafter.append_context(taps, self.context, rows)
        self.context.settle(rows, rows, start + rows)

    # Rounds.

    def commit(self, taps: mx.array | None, keep: int | mx.array) -> None:
        """On the device: the first `keep` rows of the pass that was just built stay, the rest is rolled back."""
        self._target.commit(self.state, keep)
        if self._drafter is not None and self.context is not None:
            assert taps is not None
            self._drafter.append_context(taps, self.context, keep)

    def settle(self, rows: int, kept: int) -> None:
        """The host has learned that the oldest pass in flight, of `rows` rows, kept `kept`."""
        start, self.position = self.position, self.position + kept
        self.state.settle(rows, kept, start)
        if self.context is not None:
            self.context.settle(rows, kept, start)

    def drop(self, in_flight: int, unwanted: int | None, last_count: int) -> None:
        """End of a reply: take back passes in flight, and tokens that were read but do not count.

        Args:
            in_flight: passes that the host has not read.
            unwanted: tokens at the end of the pass read last that are dropped; 0 or None for none.
            last_count: tokens of that pass.
        """
        if unwanted:
            self.tokens = self.tokens[:-unwanted]
            self.position = len(self.tokens) - 1
            self.state.rewind(in_flight + 1, last_count - unwanted, self.position)
        elif in_flight:
            self.state.rewind(in_flight, 0, self.position)
        else:
            self.state.forget_future(self.position)
        if self.context is not None:
            self.context.truncate(self.position)

    def truncate(self, position: int) -> None:
        """Go back to `position`, as far as everything a row there may see is still held."""
        self.state.truncate(position)
        if self.context is not None:
            self.context.truncate(position)

    # Snapshots.

    def snapshot(self, tokens: list[int], *, packed: bool = False) -> SessionSnapshot:
        """A copy at one moment; `tokens` are those that belong to it."""
        context = self.context
        if not packed:
            return SessionSnapshot(tokens, self.position, self.state.copy(), context and context.copy())
        taken = SessionSnapshot(tokens, self.position, self.state.packed(), context and context.packed())
        mx.eval(taken.arrays())
        return taken

    def restore(self, snapshot: SessionSnapshot) -> None:
        """Go back to a snapshot, which stays usable.

        Raises:
            TypeError: there is a drafter here, and no context of one in the snapshot.
        """
        if self._drafter is not None and snapshot.context is None:
            raise TypeError("restore: got a snapshot without drafter context, expected one of a DFlash2Session")
        self.tokens, self.position = list(snapshot.tokens), snapshot.position
        self.state = snapshot.state.copy()
        if self._drafter is not None and snapshot.context is not None:
            self.context = snapshot.context.copy()

    def arrays(self) -> list[mx.array]:
        """Every device array."""
        return [*self.state.arrays(), *([] if self.context is None else self.context.arrays())]

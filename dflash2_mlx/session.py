"""One conversation with one target, decoded plainly or with DFlash 2.

Owns: what drafting adds to the loop: a proposal before the pass, context rows after it, and how much of the context
a prompt needs. Invariant: outside of a pass, the context's length is that of the target state.
"""

from __future__ import annotations

import mlx.core as mx

from .drafter.context import DrafterContext
from .drafter.model import DraftModel, Proposal
from .loop import Session
from .rounds import Request
from .snapshots import Extent, extent_of
from .targets.base import Target


class PlainSession(Session):
    """One token per pass, no drafter; pipelined exactly like a drafting session."""


class DFlash2Session(Session):
    """Drafts a block, verifies it in one pass, keeps what the target agrees to."""

    def __init__(self, target: Target, drafter: DraftModel):
        super().__init__(target)
        self.drafter = drafter
        self.context = drafter.new_context(1)

    def reset(self) -> None:
        super().reset()
        self.context = self.drafter.new_context(1)

    def extent(self) -> Extent:
        return extent_of(self.tokens, self.position, self.state, self.context)

    def first_visible(self, prompt_length: int) -> int:
        return self.drafter.config.first_visible(prompt_length)

    @property
    def needs_boundary(self) -> bool:
        return super().needs_boundary or self.drafter.config.context_window is not None

    def _prepare(self, request: Request) -> None:
        # What is put aside at a boundary must serve any prompt that goes on from there.
        ahead = [boundary + 1 for boundary in request.boundaries if boundary > self.position]
        self._first_row = self.first_visible(min([len(request.prompt), *ahead]))
        if self._first_row < self.position and self.context.buffers.first_whole > self._first_row:
            self._first_row = self.first_visible(len(request.prompt))  # rows kept for a longer prompt: enough for this
        if self._first_row and self._first_row >= self.position:  # rows up to there will never be seen: leave a gap
            self.context.skip_to(self._first_row)

    def _taps(self) -> tuple[int, ...]:
        return self.drafter.config.target_layer_ids

    def _prefill_taps(self, end: int) -> tuple[int, ...]:
        needed = end > self._first_row or self.position < self.drafter.config.sink
        return self._taps() if needed else ()

    def _keep_context(self, taps: mx.array | None, start: int, end: int) -> None:
        if taps is None:
            return
        sink_end = min(end, self.drafter.config.sink)
        if start < sink_end < self._first_row:  # the sink's rows; between them and the window is a gap
            self._project(taps[:, : sink_end - start], start)
            self.context.truncate(self._first_row)
        if end > self._first_row:
            first = max(start, self._first_row)
            self._project(taps[:, first - start :], first)
        if self._request is not None and end == len(self._request.prompt):
            self.context.trim()

    def _project(self, taps: mx.array, start: int) -> None:
        """Add the context rows of prompt positions start.. ."""
        rows = taps.shape[1]
        self.context.truncate(start)
        self.drafter.append_context(taps, self.context, rows)
        self.context.settle(rows, rows, start + rows)

    def _draft(self, request: Request) -> Proposal | None:
        width = request.width if request.policy is None else request.policy.width()
        assert 1 <= width <= request.width, "a width policy left its range"
        self._shared = None
        if width == 1:
            return None
        start, sampling = self.state.length, request.sampling
        if not sampling.greedy and sampling.coupled:
            self._shared = self._chooser.shared_noise(start, width)
        return self.drafter.propose(
            self._anchor,
            self.context,
            width,
            self.target,
            temperature=0.0 if sampling.greedy else sampling.temperature,
            noise=self._chooser.draft_noise(start, width - 1, self._shared),
        )

    def _append_context(self, taps: mx.array | None, keep: int | mx.array) -> None:
        assert taps is not None
        self.drafter.append_context(taps, self.context, keep)

    def _settle(self, rows: int, kept: int, start: int) -> None:
        super()._settle(rows, kept, start)
        self.context.settle(rows, kept, start)

    def _truncate_context(self, position: int) -> None:
        self.context.truncate(position)

    def _context_arrays(self) -> list[mx.array]:
        return self.context.arrays()

    def _copied_context(self) -> DrafterContext:
        return self.context.copy()

    def _packed_context(self) -> DrafterContext:
        return self.context.packed()

    def _restore_context(self, context: DrafterContext | None) -> None:
        if context is None:
            raise TypeError("restore: got a snapshot without drafter context, expected one of a DFlash2Session")
        self.context = context.copy()

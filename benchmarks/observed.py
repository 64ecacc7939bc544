"""Sessions that note the time: where a round goes, and how long the host keeps the device waiting.

Two kinds, because one cannot measure both. `Phases` evaluates after every phase, so the phases are separate and
the pipeline is gone: its rounds are slower than real ones, and only the shares mean something. `Gaps` changes
nothing and notes when the host has read a round and when it hands over the next one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import mlx.core as mx

from dflash2_mlx.drafter.model import Proposal
from dflash2_mlx.rounds import Request
from dflash2_mlx.session import DFlash2Session, PlainSession, Session
from dflash2_mlx.stats import RoundResult

DRAFT, VERIFY, COMMIT, BUILD = "draft", "verify + accept", "commit + context", "graph building"


class Phases(Session):
    """Mixed into a session: every phase is built, then waited for."""

    seconds: defaultdict[str, list[float]]
    _mark = 0.0
    _build = 0.0

    def note(self) -> None:
        """Forget what was noted; call once before the first step."""
        self.seconds = defaultdict(list)

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name].append(now - self._mark)
        self._mark = now

    def _built(self) -> None:
        self._build += time.perf_counter() - self._mark

    def _draft(self, request: Request) -> Proposal | None:
        self._mark, self._build = time.perf_counter(), 0.0
        proposal = super()._draft(request)
        self._built()
        if proposal is not None:
            mx.eval(proposal.tokens)
            self._lap(DRAFT)
        return proposal

    def _queue(self, *args: Any, first: bool = False) -> mx.array:
        if first:
            return super()._queue(*args, first=True)
        self._built()  # all but the small graph of the cut, which the call below builds and starts at once
        keep = super()._queue(*args)
        mx.eval(self._pending[-1].packed)
        self._lap(VERIFY)
        return keep

    def _append_context(self, taps: mx.array | None, keep: mx.array) -> None:
        super()._append_context(taps, keep)
        self._built()
        mx.eval(self.state.arrays(), self._context_arrays())
        self._lap(COMMIT)
        self.seconds[BUILD].append(self._build)


class PlainPhases(Phases, PlainSession):
    """Plain decoding, phase by phase."""


class DFlash2Phases(Phases, DFlash2Session):
    """DFlash 2, phase by phase."""


class Gaps(Session):
    """Mixed into a session: how long the host takes from one round's tokens to the next round's hand-over."""

    gaps: list[float]
    _read_at = 0.0

    def note(self) -> None:
        self.gaps = []

    def _queue(self, *args: Any, first: bool = False) -> mx.array:
        if self._read_at and not first:
            self.gaps.append(time.perf_counter() - self._read_at)
        return super()._queue(*args, first=first)

    def _read(self, request: Request) -> RoundResult:
        result = super()._read(request)
        self._read_at = 0.0 if result.first else time.perf_counter()
        return result


class PlainGaps(Gaps, PlainSession):
    """Plain decoding, pipelined, with gaps noted."""


class DFlash2Gaps(Gaps, DFlash2Session):
    """DFlash 2, pipelined, with gaps noted."""

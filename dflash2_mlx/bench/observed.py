"""Sessions that note the time: where a round goes, and how long the host keeps the device waiting.

Two kinds, because one cannot measure both. `Phases` evaluates after every phase, so the phases are separate and
the pipeline is gone: its rounds are slower than real ones, and only the shares mean something. `Gaps` changes
nothing and notes when the host has read a round and when it hands over the next one.

Both are measured apart from the timed runs and commit the same tokens as any other session.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx

from ..decode.request import Request, RoundResult
from ..decode.session import DFlash2Session, PlainSession, Session
from ..device.runtime import owner
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine
from ..generation.config import GenerationConfig
from ..generation.generate import generate
from ..generation.text import Prompt
from ..sampling.acceptance import Proposal
from ..targets.base import Target

DRAFT, SELECT, VERIFY, COMMIT = "draft", "select", "verify", "commit"
BUILD = "build"  # what the host needs to build the graphs of a round; part of the phases above
HOST_GAP = "host_gap"
PHASES = (DRAFT, SELECT, VERIFY, COMMIT, HOST_GAP)


class Phases(Session):
    """Mixed into a session: every phase is built, then waited for. A round begins with `_draft`."""

    _mark = 0.0
    _build = 0.0

    def __init__(self, target: Target, *drafter: DraftModel):
        super().__init__(target, *drafter)
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def _begin_round(self) -> None:
        self._mark, self._build = time.perf_counter(), 0.0

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name].append(now - self._mark)
        self._mark = now

    def _built(self) -> None:
        self._build += time.perf_counter() - self._mark

    def _draft(self, request: Request) -> Proposal | None:
        self._begin_round()
        return super()._draft(request)

    def _queue(self, *args: Any, first: bool = False) -> mx.array:
        if first:
            return super()._queue(*args, first=True)
        self._built()  # all but the small graph of the cut, which the call below builds and starts at once
        keep = super()._queue(*args)
        mx.eval(self._pending[-1].packed)
        self._lap(VERIFY)
        return keep

    def _append_context(self, taps: mx.array | None, keep: int | mx.array) -> None:
        super()._append_context(taps, keep)
        self._built()
        mx.eval(self.state.arrays(), self._context_arrays())
        self._lap(COMMIT)
        self.seconds[BUILD].append(self._build)


class PlainPhases(Phases, PlainSession):
    """Plain decoding, phase by phase."""


class DFlash2Phases(Phases, DFlash2Session):
    """DFlash 2, phase by phase.

    The noise is asked for between the drafter's pass and the walk, so asking is where the two are told apart. A
    greedy walk gets noise too, all of it zero: its choice is the same, its time nearly so.
    """

    def _draft(self, request: Request) -> Proposal:
        self._begin_round()
        start, sampling = self.state.length, request.sampling
        self._shared = None
        if not sampling.greedy and sampling.coupled:
            self._shared = self._chooser.shared_noise(start, request.width)
        noise = self._chooser.draft_noise(start, request.width - 1, self._shared)

        def watched(candidates: mx.array) -> mx.array:
            self._built()
            mx.eval(candidates)
            self._lap(DRAFT)
            return mx.zeros(candidates.shape) if noise is None else noise(candidates)

        temperature = 1.0 if sampling.greedy else sampling.temperature
        proposal = self.drafter.propose(
            self._anchor, self.context, request.width, self.target, temperature=temperature, noise=watched
        )
        self._built()
        mx.eval(proposal.tokens)
        self._lap(SELECT)
        return replace(proposal, q=None) if sampling.greedy else proposal


class Gaps(Session):
    """Mixed into a session: how long the host takes from one round's tokens to the next round's hand-over."""

    _read_at = 0.0

    def __init__(self, target: Target, *drafter: DraftModel):
        super().__init__(target, *drafter)
        self.gaps: list[float] = []

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


def time_phases(engine: Engine, prompt: Prompt, config: GenerationConfig) -> dict[str, list[float]]:
    """Milliseconds of every round of a reply: each phase, `build` and `host_gap`.

    Phases come from a run that waits after each of them, gaps from a pipelined run: they do not add up to a round of a
    normal run. `host_gap` is empty where a reply is too short to have one.
    """
    plain = config.mode == "plain" or engine.drafter is None
    phases = _observed(engine, prompt, config, PlainPhases if plain else DFlash2Phases).seconds
    gaps = _observed(engine, prompt, config, PlainGaps if plain else DFlash2Gaps).gaps
    return {name: [1e3 * value for value in values] for name, values in {**phases, HOST_GAP: gaps}.items()}


def _observed(engine: Engine, prompt: Prompt, config: GenerationConfig, kind: type) -> Any:
    """One reply in a session that notes the time."""
    parts = (engine.target,) if issubclass(kind, PlainSession) else (engine.target, engine.drafter)
    session = owner().call(partial(kind, *parts))
    generate(engine, prompt, config, session=session)
    return session

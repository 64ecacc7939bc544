"""Where the time of a round goes, and how long the host keeps the device waiting.

Two probes of a session, because one cannot measure both. `Phases` evaluates after every phase, so the phases are
separate and the pipeline is gone: its rounds are slower than real ones, and only the shares mean something. `Gaps`
changes nothing and notes when the host has read a round and when it hands over the next one.

Both are measured apart from the timed runs and commit the same tokens as any other session.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from ..decode.session import BEGUN, BUILT, COMMITTED, DRAFTED, QUEUED, READ, Probe, Session
from ..device.runtime import owner
from ..drafters.base import Drafter, Lender
from ..drafters.dflash2.context import DrafterContext
from ..engine import Engine
from ..generation.config import GenerationConfig
from ..generation.generate import generate
from ..generation.text import Prompt
from ..sampling.acceptance import Proposal

DRAFT, SELECT, VERIFY, COMMIT = "draft", "select", "verify", "commit"
BUILD = "build"  # what the host needs to build the graphs of a round; part of the phases above
HOST_GAP = "host_gap"
PHASES = (DRAFT, SELECT, VERIFY, COMMIT, HOST_GAP)


class Phases:
    """A probe of a session that waits after every phase of a round.

    Attributes:
        seconds: of each round, by phase; `BUILD` is part of the others.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._mark = self._build = 0.0

    def __call__(self, moment: str, arrays: Sequence[mx.array]) -> None:
        if moment == BEGUN:
            self._mark, self._build = time.perf_counter(), 0.0
        elif moment == DRAFTED:
            self.wait(SELECT, *arrays)
        elif moment == BUILT:
            self._built()  # all but the small graph of the cut, which is built and started at once
        elif moment == QUEUED:
            self._lap(VERIFY, *arrays)
        elif moment == COMMITTED:
            self.wait(COMMIT, *arrays)
            self.seconds[BUILD].append(self._build)

    def wait(self, phase: str, *arrays: mx.array) -> None:
        """The graphs of a phase are built: compute them."""
        self._built()
        self._lap(phase, *arrays)

    def _built(self) -> None:
        self._build += time.perf_counter() - self._mark

    def _lap(self, phase: str, *arrays: mx.array) -> None:
        mx.eval(*arrays)
        now = time.perf_counter()
        self.seconds[phase].append(now - self._mark)
        self._mark = now


class WatchedDrafter:
    """A drafter that drafts and selects apart, and has `phases` time both.

    The noise is asked for between the drafter's pass and the walk, so asking is where the two are told apart. A
    greedy walk gets noise too, all of it zero: its choice is the same, its time nearly so.
    """

    def __init__(self, drafter: Drafter, phases: Phases):
        self.config, self._drafter, self._phases = drafter.config, drafter, phases
        self.new_context, self.append_context = drafter.new_context, drafter.append_context

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
        """As a drafter's."""

        def watched(candidates: mx.array) -> mx.array:
            self._phases.wait(DRAFT, candidates)
            return mx.zeros(candidates.shape) if noise is None else noise(candidates)

        drawn = self._drafter.propose(
            anchor, context, width, lender, temperature=1.0 if noise is None else temperature, noise=watched
        )
        return replace(drawn, q=None) if noise is None else drawn


class Gaps:
    """A probe of a session that changes nothing: how long the host takes from a round's tokens to the next hand-over.

    Attributes:
        seconds: of each gap.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._read_at = 0.0

    def __call__(self, moment: str, arrays: Sequence[mx.array]) -> None:
        if moment == READ:
            self._read_at = time.perf_counter()
        elif moment == BUILT and self._read_at:
            self.seconds.append(time.perf_counter() - self._read_at)


def time_phases(engine: Engine, prompt: Prompt, config: GenerationConfig) -> dict[str, list[float]]:
    """Milliseconds of every round of a reply: each phase, `build` and `host_gap`.

    Phases come from a run that waits after each of them, gaps from a pipelined run: they do not add up to a round of a
    normal run. `host_gap` is empty where a reply is too short to have one.
    """
    phases, gaps = Phases(), Gaps()
    drafter = None if config.mode == "plain" else engine.drafter
    watched: Any = None if drafter is None else WatchedDrafter(drafter, phases)
    _observe(replace(engine, drafter=watched), prompt, config, phases)
    _observe(replace(engine, drafter=drafter), prompt, config, gaps)
    both = {**phases.seconds, HOST_GAP: gaps.seconds}
    return {name: [1e3 * value for value in values] for name, values in both.items()}


def _observe(engine: Engine, prompt: Prompt, config: GenerationConfig, probe: Probe) -> None:
    """One reply in a session with a probe."""
    session = owner().call(lambda: Session(engine.target, engine.drafter, probe=probe))
    generate(engine, prompt, config, session=session)

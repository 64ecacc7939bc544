"""Honest numbers (CK-19): what is counted, when the clock starts, and what a target call buys.

Definitions are those of docs/dflash2.md 6.1. Replies come from a tiny target with a drafter that knows the text and
errs on schedule; where time matters the clock is a fake one that only target passes move.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.request import RoundResult
from dflash2_mlx.targets.base import PassOutput, Target, TargetSpec
from dflash2_mlx.targets.state import TargetState
from tests.engines import scripted_engine, tiny_engine
from tests.runs import PROMPT, lively_reply, lively_target
from tests.scripted import RIGHT, WRONG

FAMILY = "qwen3"
WIDTH = 5
KNOWN = 257 + WIDTH


def reply(tokens: int) -> list[int]:
    return list(lively_reply(FAMILY, max_tokens=tokens))


# Counting, by hand.


def stats_of(accepts: Sequence[int], *, width: int = WIDTH, cut_last_to: int | None = None) -> d2.GenerationStats:
    stats = d2.GenerationStats(mode="dflash2", block_size=width)
    stats.add(RoundResult(tokens=(1,), num_accepted=0, width=1, first=True))
    for number, accepted in enumerate(accepts):
        committed = accepted + 1
        if cut_last_to is not None and number == len(accepts) - 1:
            committed = cut_last_to
        stats.add(RoundResult(tokens=(2,) * committed, num_accepted=accepted, width=width))
    return stats


def test_definitions_by_hand() -> None:
    stats = stats_of([0, 2, 4, 1])
    assert stats.rounds == 4
    assert stats.generated_tokens == 1 + 1 + 3 + 5 + 2
    assert stats.acceptance_length == (1 + 3 + 5 + 2) / 4
    assert (stats.drafted_tokens, stats.accepted_tokens) == (16, 7)
    # 4 rounds tried draft 1, 3 kept it; 3 tried draft 2, 2 kept it; 2 and 1; 1 and 1.
    assert stats.acceptance_by_position == [3 / 4, 2 / 3, 1 / 2, 1.0]
    expected, product = 1.0, 1.0
    for share in stats.acceptance_by_position:
        product *= share
        expected += product
    assert stats.acceptance_length == pytest.approx(expected)  # the identity of docs/dflash2.md 6.1


def test_positions_nobody_reached_are_none_not_zero() -> None:
    assert stats_of([1, 1]).acceptance_by_position == [1.0, 0.0, None, None]
    assert stats_of([0, 0]).acceptance_by_position == [0.0, None, None, None]


def test_a_cut_round_counts_what_it_emitted_and_what_was_agreed() -> None:
    stats = stats_of([4, 4], cut_last_to=2)
    assert stats.acceptance_length == (5 + 2) / 2
    assert stats.accepted_tokens == 4 + 2
    assert stats.acceptance_by_position == [1.0] * 4


def test_nothing_is_a_rate_of_nothing() -> None:
    stats = stats_of([])
    assert stats.acceptance_length is None
    assert stats.tokens_per_second is None
    stats = d2.GenerationStats(mode="plain", block_size=None)
    stats.add(RoundResult(tokens=(1,), num_accepted=0, width=1))
    assert stats.acceptance_length is None
    assert stats.acceptance_by_position == []


# Real replies.


@dataclass
class Clock:
    """Stands in for the `time` module of reply.py."""

    now: float = 100.0

    def perf_counter(self) -> float:
        return self.now


@dataclass
class CountingTarget:
    """Passes everything on to a real target; a prompt chunk takes 10 s of the fake clock, a round 1 s."""

    real: Target
    clock: Clock = field(default_factory=Clock)
    chunks: int = 0
    rounds: int = 0

    @property
    def spec(self) -> TargetSpec:
        return self.real.spec

    def new_state(self, batch: int = 1) -> TargetState:
        return self.real.new_state(batch)

    def forward(
        self, ids: mx.array, state: TargetState, *, taps: Sequence[int] = (), last_only: bool = False
    ) -> PassOutput:
        self.chunks += last_only
        self.rounds += not last_only
        self.clock.now += 10.0 if last_only else 1.0
        return self.real.forward(ids, state, taps=taps, last_only=last_only)

    def commit(self, state: TargetState, keep: int | mx.array) -> None:
        self.real.commit(state, keep)

    def embed(self, ids: mx.array) -> mx.array:
        return self.real.embed(ids)

    def head(self, hidden: mx.array) -> mx.array:
        return self.real.head(hidden)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> CountingTarget:
    counting = CountingTarget(lively_target(FAMILY))
    monkeypatch.setattr(sys.modules["dflash2_mlx.generation.reply"], "time", counting.clock)
    return counting


def drafting(target: CountingTarget, accepts: Sequence[int]) -> d2.Engine:
    """An engine whose drafter knows more of the reply than any test asks for."""
    lively = scripted_engine(FAMILY, accepts, max_tokens=KNOWN)
    return replace(lively, target=target)


def run(engine: d2.Engine, **settings: Any) -> d2.GenerationResult:
    return d2.generate(engine, PROMPT, d2.GenerationConfig(**settings))


def rounds_by_hand(accepted: int, max_tokens: int) -> int:
    """Rounds that emit max_tokens - 1 tokens when every round keeps `accepted` drafts and adds one."""
    return -(-(max_tokens - 1) // (accepted + 1))


@pytest.mark.parametrize("max_tokens", [1, 2, 16, 64, 65])
@pytest.mark.parametrize(("name", "schedule", "accepted"), [("perfect", RIGHT, 4), ("hopeless", WRONG, 0)])
def test_perfect_and_hopeless_drafter(
    target: CountingTarget, max_tokens: int, name: str, schedule: list[int], accepted: int
) -> None:
    result = run(drafting(target, schedule), max_tokens=max_tokens)
    stats = result.stats
    rounds = rounds_by_hand(accepted, max_tokens)
    assert result.token_ids == reply(KNOWN)[:max_tokens]
    assert (result.finish_reason, stats.generated_tokens, stats.rounds) == ("length", max_tokens, rounds)
    assert stats.drafted_tokens == rounds * 4
    if max_tokens == 1:
        assert (stats.acceptance_length, stats.tokens_per_second, stats.decode_s) == (None, None, 0.0)
        assert target.rounds == 0
        return
    assert stats.acceptance_length == (max_tokens - 1) / rounds
    assert stats.acceptance_by_position == ([1.0] * 4 if accepted else [0.0, None, None, None])
    # The next round is on its way before the last one is read, so at most one pass is for nothing.
    assert target.rounds - rounds in ((0,) if accepted == 0 else (0, 1))
    assert stats.decode_s == target.rounds


def test_acceptance_zero_costs_one_target_call_per_token(target: CountingTarget) -> None:
    drafted = run(drafting(target, WRONG), max_tokens=32)
    calls = (target.chunks, target.rounds)
    target.chunks = target.rounds = 0
    plain = run(replace(drafting(target, WRONG), drafter=None), max_tokens=32)
    assert calls == (target.chunks, target.rounds) == (1, 31)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.acceptance_length == 1.0
    assert drafted.stats.accepted_tokens == 0


def test_only_the_leading_matches_are_accepted(target: CountingTarget) -> None:
    """The proposal agrees with the target's text as [1, 0, 1, 1]: one draft is accepted."""
    engine = drafting(target, [1])
    events = list(d2.stream_generate(engine, PROMPT, d2.GenerationConfig(max_tokens=21)))
    rounds = [event.round for event in events if event.round is not None]
    text = reply(KNOWN)
    at = 1
    for info in rounds:
        matches = [token == right for token, right in zip(info.proposal, text[at:], strict=False)]
        assert matches == [True, False, True, True]
        assert (info.num_accepted, info.committed, info.width) == (1, 2, WIDTH)
        at += info.committed
    assert at == 21
    assert events[-1].stats.acceptance_by_position == [1.0, 0.0, None, None]


def test_a_full_round_emits_one_more_than_it_accepts() -> None:
    engine = scripted_engine(FAMILY, [0, 1, 2, 3, 4])
    events = list(d2.stream_generate(engine, PROMPT, d2.GenerationConfig(max_tokens=1 + 15 + 15)))
    infos = [event.round for event in events if event.round is not None]
    assert [info.num_accepted for info in infos] == [0, 1, 2, 3, 4] * 2
    assert all(info.committed == info.num_accepted + 1 for info in infos)
    assert all(len(event.token_ids) == event.round.committed for event in events if event.round is not None)
    assert sum(info.committed for info in infos) + 1 == events[-1].stats.generated_tokens


# Time.


@pytest.mark.parametrize("mode", ["plain", "dflash2"])
def test_prefill_is_not_in_the_decode_rate(target: CountingTarget, mode: str) -> None:
    engine = drafting(target, WRONG)
    prompt = PROMPT * 3
    result = d2.generate(engine, prompt, d2.GenerationConfig(max_tokens=9, mode=mode, prefill_chunk=5))
    assert target.chunks == 4
    assert result.stats.prefill_s == 40.0
    assert result.stats.decode_s == 8.0
    assert result.stats.tokens_per_second == 1.0


def test_time_of_a_perfect_drafter(target: CountingTarget) -> None:
    """16 tokens: one from the prefill, three full rounds, and one pass that was already on its way."""
    stats = run(drafting(target, RIGHT), max_tokens=16).stats
    assert (stats.prefill_s, stats.decode_s, target.rounds) == (10.0, 4.0, 4)
    assert stats.tokens_per_second == 15 / 4


def test_a_second_turn_times_only_its_own(target: CountingTarget) -> None:
    engine = drafting(target, WRONG)
    session = d2.new_session(engine)
    config = d2.GenerationConfig(max_tokens=5)
    first = d2.generate(engine, PROMPT, config, session=session)
    second = d2.generate(engine, [*PROMPT, *first.token_ids, 8], config, session=session)
    assert (second.stats.prefill_s, second.stats.decode_s) == (10.0, 4.0)
    assert second.stats.cached_tokens == len(PROMPT) + 4
    assert second.stats.generated_tokens == 5


# Which engine ran, and why.


def test_fallback_is_visible() -> None:
    alone = tiny_engine(FAMILY)
    result = run(alone, max_tokens=3)
    assert (result.stats.mode, result.stats.fallback_reason) == ("plain", "no drafter given")
    assert (result.drafter, result.stats.block_size) == (None, None)
    assert result.to_dict()["fallback_reason"] == "no drafter given"
    asked = run(alone, max_tokens=3, mode="plain")
    assert (asked.stats.mode, asked.stats.fallback_reason) == ("plain", None)
    with pytest.raises(d2.ConfigError, match=r"mode: got 'dflash2'.*no drafter"):
        run(alone, max_tokens=3, mode="dflash2")


def test_drafting_is_not_a_fallback() -> None:
    result = run(scripted_engine(FAMILY, RIGHT), max_tokens=3)
    assert (result.stats.mode, result.stats.fallback_reason, result.drafter) == ("dflash2", None, "tiny")
    assert result.stats.block_size == WIDTH
    plain = run(scripted_engine(FAMILY, RIGHT), max_tokens=3, mode="plain")
    assert (plain.stats.mode, plain.drafter, plain.stats.block_size) == ("plain", None, None)


@pytest.mark.parametrize(
    ("sampling", "seed", "mode"),
    [
        (d2.SamplingConfig(), None, None),
        (d2.SamplingConfig(seed=5), None, None),
        (d2.SamplingConfig(temperature=0.8, seed=5), 5, "coupled"),
        (d2.SamplingConfig(temperature=0.8, seed=5, lossless_mode="rejection"), 5, "rejection"),
        (d2.SamplingConfig(temperature=0.8), "drawn", "rejection"),
    ],
)
def test_seed_and_lossless_mode_are_reported(sampling: d2.SamplingConfig, seed: Any, mode: str | None) -> None:
    stats = run(scripted_engine(FAMILY, RIGHT), max_tokens=3, sampling=sampling).stats
    assert stats.lossless_mode == mode
    assert isinstance(stats.seed, int) if seed == "drawn" else stats.seed == seed


# Ends inside a block.


def test_a_stop_token_counts_and_is_left_out_of_the_text() -> None:
    text = reply(64)
    end = next(i for i in range(7, 20) if text[i] not in text[:i] and (i - 1) % WIDTH not in (0, WIDTH - 1))
    engine = scripted_engine(FAMILY, RIGHT)
    config = d2.GenerationConfig(max_tokens=64, stop_token_ids=(text[end],), logprobs=0)
    events = list(d2.stream_generate(engine, PROMPT, config))
    ids = [token for event in events for token in event.token_ids]
    stats = events[-1].stats
    assert (ids, events[-1].finish_reason) == (text[:end], "stop")
    assert stats.generated_tokens == end + 1
    assert stats.rounds == 1 + (end - 1) // WIDTH
    assert stats.acceptance_length == end / stats.rounds
    assert sum(event.round.committed for event in events if event.round) + 1 == stats.generated_tokens
    assert sum(len(event.logprobs) for event in events) == len(ids)


def test_tokens_cut_by_a_stop_string_are_not_counted() -> None:
    text = reply(64)
    end = next(i for i in range(7, 20) if text[i] not in text[:i] and (i - 1) % WIDTH not in (0, WIDTH - 1))
    engine = scripted_engine(FAMILY, RIGHT)
    config = d2.GenerationConfig(max_tokens=64, stop=(f"<{text[end]}>",), logprobs=0)
    events = list(d2.stream_generate(engine, PROMPT, config))
    ids = [token for event in events for token in event.token_ids]
    stats = events[-1].stats
    assert (ids, events[-1].finish_reason) == (text[: end + 1], "stop")
    assert "".join(event.text for event in events) == "".join(f"<{token}>" for token in text[:end])
    assert stats.generated_tokens == end + 1
    assert stats.acceptance_length == end / stats.rounds
    assert sum(event.round.committed for event in events if event.round) + 1 == stats.generated_tokens
    assert sum(len(event.logprobs) for event in events) == len(ids)

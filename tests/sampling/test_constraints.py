"""Constraints on the next token: same reply as plain decoding under them, exact positions, named faults (CK-14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx import SamplingConfig
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.sampling.constraints import constraint_rows
from tests.automata import Automaton, Rule, budget, forced_at, nested_lists
from tests.engines import tiny_engine
from tests.messages import mentions
from tests.runs import PROMPT, Reply, assert_same_log_probabilities, lively_target, run, thinned
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import VOCAB

TOKENS = 40
RULES: dict[str, Rule] = {
    "nested lists": nested_lists,
    "forced at 0": forced_at(0, 42),
    "forced at 13": forced_at(13, 42),
    "budget": budget(10, end=9, never=11),
}
SAMPLINGS = {
    "greedy": SamplingConfig(),
    "penalties": SamplingConfig(frequency_penalty=0.8, repetition_penalty=1.2),
    "coupled": SamplingConfig(temperature=1.0, top_p=0.95, lossless_mode="coupled"),
}


def reply(session: Session, rule: Rule, width: int = 1, **settings: Any) -> tuple[Reply, Automaton]:
    constraint = Automaton(rule, VOCAB)
    request = Request(PROMPT, TOKENS, seed=6, width=width, constraint=constraint, **settings)
    return run(session, request), constraint


def drafting(family: str, text: Sequence[int]) -> DFlash2Session:
    return DFlash2Session(lively_target(family), ScriptedDrafter([*PROMPT, *text], ramp(4)))


@pytest.mark.parametrize(
    ("family", "rule", "sampling"), thinned(["qwen3_5", "llama_sliding"], list(RULES), list(SAMPLINGS), keep=4)
)
def test_drafting_equals_plain_decoding(family, rule, sampling):
    settings = {"sampling": SAMPLINGS[sampling]}
    plain, told = reply(PlainSession(lively_target(family)), RULES[rule], **settings)
    assert told.committed == plain.tokens and len(plain.tokens) == TOKENS
    free = run(PlainSession(lively_target(family)), Request(PROMPT, TOKENS, seed=6, **settings))
    assert free.tokens != plain.tokens, "the rule forbids nothing here"
    drafted, told = reply(drafting(family, plain.tokens), RULES[rule], width=5, **settings)
    assert drafted.tokens == plain.tokens == told.committed
    assert {result.num_accepted for result in drafted.rounds} >= {0, 1, 2, 3}
    assert all(result.synchronous for result in [*drafted.rounds, *plain.rounds])


def test_the_constraint_is_asked_about_each_proposal_and_told_every_token():
    plain, _ = reply(PlainSession(lively_target("qwen3")), nested_lists)
    drafted, told = reply(drafting("qwen3", plain.tokens), nested_lists, width=4)
    assert told.asked[0] == ()  # the token of the prefill pass
    assert told.asked[1:] == [result.proposal for result in drafted.rounds]
    assert {len(proposal) for proposal in told.asked[1:]} == {3}


@pytest.mark.parametrize("position", range(12))
def test_a_forced_token_lands_on_its_exact_place(position):
    target = lively_target("qwen3")
    free = run(PlainSession(target), Request(PROMPT, 20)).tokens
    forced, _ = reply(drafting("qwen3", free), forced_at(position, 42), width=5)
    assert forced.tokens[:position] == free[:position]
    assert forced.tokens[position] == 42


def test_a_thinking_budget_ends_the_thinking_in_time():
    for width in (1, 2, 5):
        session = PlainSession(lively_target("qwen3")) if width == 1 else drafting("qwen3", [3] * 40)
        thinking, _ = reply(session, budget(10, end=9, never=11), width=width)
        assert thinking.tokens.index(9) <= 10
        assert 11 not in thinking.tokens[: thinking.tokens.index(9)]
        assert thinking.tokens.count(9) == 1


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_sampling_never_leaves_the_constraint(mode):
    # The automaton itself refuses what it forbade; a wrong draft must be rejected however likely it is.
    for seed in range(6):
        constraint = Automaton(nested_lists, VOCAB)
        sampling = SamplingConfig(temperature=1.5, lossless_mode=mode)
        session = drafting("qwen3", [11, 13, 16, 0] * 20)
        run(session, Request(PROMPT, 40, sampling, seed=seed, width=5, constraint=constraint))
        assert len(constraint.committed) == 40


def test_logprobs_under_a_constraint_are_those_of_the_constrained_target():
    plain, _ = reply(PlainSession(lively_target("qwen3")), nested_lists, logprobs=3)
    drafted, _ = reply(drafting("qwen3", plain.tokens), nested_lists, width=5, logprobs=3)
    left, right = ([entry for result in r.rounds for entry in result.logprobs] for r in (plain, drafted))
    assert_same_log_probabilities(left, right[: len(left)])
    assert all(np.isfinite(entry.logprob) for entry in right)


# Through the public API.


def streamed(constraint: d2.LogitConstraint, mode: str = "auto", tokens: int = 24) -> d2.GenerationResult:
    drafter = owner().call(lambda: ScriptedDrafter([*PROMPT, *[3] * 40], ramp(4)))
    engine = tiny_engine("qwen3", drafter)
    config = d2.GenerationConfig(max_tokens=tokens, mode=mode, stop_token_ids=())
    return d2.generate(engine, PROMPT, config, constraint=constraint)


def test_rounds_are_counted_as_synchronous_and_the_user_is_told():
    results = {mode: streamed(Automaton(nested_lists, VOCAB), mode) for mode in ("plain", "dflash2")}
    assert results["plain"].token_ids == results["dflash2"].token_ids
    for result in results.values():
        assert result.stats.synchronous_rounds == result.stats.rounds > 0
    assert results["dflash2"].stats.mode == "dflash2"
    assert any("constraint" in notice for notice in results["dflash2"].stats.notices)


class Returning:
    """A constraint whose masks come from a function of the shape asked for."""

    def __init__(self, make: Callable[[int], Any], after: int = 0):
        self.make = make
        self.after = after  # well-behaved calls before that

    def masks(self, proposal: Sequence[int]) -> Any:
        self.after -= 1
        return np.ones((len(proposal) + 1, VOCAB), dtype=bool) if self.after >= 0 else self.make(len(proposal) + 1)

    def commit(self, tokens: Sequence[int]) -> None:
        pass


FAULTS = {
    "too few rows": (lambda rows: np.ones((rows - 1, VOCAB), dtype=bool), "expected bool"),
    "too many columns": (lambda rows: np.ones((rows, VOCAB + 1), dtype=bool), f"[1, {VOCAB + 1}]"),
    "numbers": (lambda rows: np.ones((rows, VOCAB), dtype=np.int8), "int8"),
    "one row for all": (lambda rows: np.ones(VOCAB, dtype=bool), f"[{VOCAB}]"),
    "nothing": (lambda rows: None, "object"),
    "ragged": (lambda rows: [[True], [True, False]], "ragged"),
    "nothing allowed": (lambda rows: np.zeros((rows, VOCAB), dtype=bool), "no allowed token"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault):
    make, part = FAULTS[fault]
    with pytest.raises(d2.ConstraintError) as caught:
        constraint_rows(Returning(make), [], VOCAB)
    mentions(caught.value, "LogitConstraint.masks", part)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_fault_reaches_the_reader_and_the_next_reply_runs(after):
    with pytest.raises(d2.ConstraintError):
        streamed(Returning(lambda rows: None, after))
    assert len(streamed(Automaton(nested_lists, VOCAB)).token_ids) == 24


def test_a_constraint_that_raises_reaches_the_reader():
    class Broken(Exception):
        pass

    def fail(rows: int) -> None:
        raise Broken

    with pytest.raises(Broken):
        streamed(Returning(fail, after=2))


def test_rows_after_a_refused_token_may_be_empty():
    rows = np.zeros((3, 4), dtype=bool)
    rows[0, 1] = True
    got = np.array(constraint_rows(Returning(lambda _: rows), [2, 3], 4))[0]
    np.testing.assert_array_equal(got[0], rows[0])
    assert got[1:].all()  # any filler will do, but not "nothing": a law of no token is not a law

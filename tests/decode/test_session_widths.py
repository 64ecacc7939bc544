"""Rounds of changing width: the text stays plain decoding's, the state stays exact, and the law holds.

Widths come from a policy that knows nothing; what a good policy decides is `test_widths`' subject.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.costs import CostTable, PassCosts
from dflash2_mlx.decode.request import Request, RoundResult
from dflash2_mlx.decode.session import DFlash2Session
from dflash2_mlx.decode.widths import Adaptive
from dflash2_mlx.sampling.acceptance import Acceptance, Proposal
from dflash2_mlx.sampling.config import SamplingConfig
from dflash2_mlx.sampling.sampler import TokenChooser
from tests.decode.test_session_law import DRAFTERS, LENGTH, TABLE, TableModel, TableTarget, exact_law
from tests.decode.test_session_law import PROMPT as LAW_PROMPT
from tests.distributions import DRAFTERS as LAW_DRAFTERS
from tests.distributions import TableDrafter, converse, p_value, plain_law
from tests.engines import scripted_engine
from tests.runs import CRITICAL, PROMPT, assert_state_of, lively_reply, lively_target, plain_reply, run
from tests.scripted import RIGHT, WRONG, ScriptedDrafter, ramp

BLOCK = 5


class Drawn:
    """Any width, round by round; remembers what it decided and what it was told."""

    def __init__(self, most: int, seed: int, widths: Sequence[int] = ()):
        self._draw, self._widths = random.Random(seed), list(widths) or list(range(1, most + 1))
        self.asked: list[int] = []
        self.told: list[tuple[int, int]] = []

    def width(self) -> int:
        self.asked.append(self._draw.choice(self._widths))
        return self.asked[-1]

    def learn(self, width: int, num_accepted: int) -> None:
        self.told.append((width, num_accepted))


@pytest.mark.bits
@pytest.mark.parametrize("family", [*CRITICAL, "qwen3"])
def test_random_widths_equal_plain_decoding(family):
    plain = lively_reply(family)
    text = [*PROMPT, *plain]
    drafter = ScriptedDrafter(text, [*ramp(BLOCK - 1), 0, -1])
    session = DFlash2Session(lively_target(family), drafter)
    policy = Drawn(BLOCK, seed=len(family))
    checked = []

    def check(reply):
        if len(reply.rounds) % 5 == 0:
            checked.append(assert_state_of(session, text))

    reply = run(session, Request(PROMPT, len(plain), width=BLOCK, policy=policy), each=check)
    assert reply.tokens == list(plain) and len(checked) > 4
    assert set(policy.asked) == set(range(1, BLOCK + 1))
    # Told of every round that was read, in order, and of no other; decided before the round before was known.
    assert policy.told == [(r.width, r.num_accepted) for r in reply.rounds]
    assert [width for width, _ in policy.told] == policy.asked[: len(policy.told)]
    assert_state_of(session, text)


@pytest.mark.bits
@pytest.mark.parametrize("widths", [(1,), (1, 5), (5, 1, 1)])
@pytest.mark.parametrize("results", [2, 3, 5, 8])
def test_cancelled_and_cut_between_plain_and_drafted_rounds(widths, results):
    family = "qwen3_5"
    plain = lively_reply(family)
    text = [*PROMPT, *plain]
    session = DFlash2Session(lively_target(family), ScriptedDrafter(text, [2, 0, 4]))
    policy = Drawn(BLOCK, results, widths)
    session.begin(Request(PROMPT, 40, width=BLOCK, policy=policy))
    for _ in range(results):
        result = session.step()
    session.finish(keep=1 if results % 2 else None)
    assert result is not None
    assert session.tokens == text[: len(session.tokens)]
    assert_state_of(session, session.tokens)
    rest = run(session, Request(list(session.tokens), 12, width=BLOCK, policy=Drawn(BLOCK, 1, widths)))
    assert rest.tokens == plain_reply(session.target, session.tokens[: -len(rest.tokens)], 12)


@pytest.mark.bits
@pytest.mark.parametrize("stop_at", [6, 7, 9, 12])
def test_a_stop_token_inside_rounds_of_any_width(stop_at):
    family = "qwen3_5"
    plain = lively_reply(family)
    stop = plain[stop_at]
    end = plain.index(stop) + 1
    for widths in ((1,), (1, 4), (5, 2)):
        session = DFlash2Session(lively_target(family), ScriptedDrafter([*PROMPT, *plain], RIGHT))
        policy = Drawn(BLOCK, stop_at, widths)
        reply = run(session, Request(PROMPT, 64, width=BLOCK, policy=policy, stop_token_ids=frozenset({stop})))
        assert (reply.tokens, reply.finish_reason) == (list(plain[:end]), "stop")
        assert_state_of(session, [*PROMPT, *plain])


# The law. A drafter that knows how the second draft of the first round goes on, so that the rules have work to do.

SHARP = TableDrafter(np.zeros(TABLE.shape[-1]), TABLE[4], TABLE.shape[-1])
REPLIES = 250


def follow(policy_of: Callable[[int], Drawn | Adaptive], mode: str, runs: int, drafter: TableModel) -> np.ndarray:
    """First tokens of many replies, each with a seed and a policy of its own."""
    sampling = SamplingConfig(temperature=1.0, lossless_mode=mode)
    session, replies = DFlash2Session(TableTarget(), drafter), []
    for seed in range(runs):
        request = Request(LAW_PROMPT, LENGTH, sampling, seed=seed, width=4, policy=policy_of(seed))
        replies.append(run(session, request).tokens)
    return np.array(replies)


class Fickle(Drawn):
    """Decides by what it was told, as sharply as it can: plain after a rejection, wide after an acceptance."""

    def width(self) -> int:
        self.asked.append(1 if self.told and self.told[-1][1] == 0 else 4)
        return self.asked[-1]


def test_widths_by_past_acceptance_keep_the_law():
    tokens = follow(lambda seed: Fickle(4, seed), "rejection", REPLIES, TableModel(SHARP))
    assert p_value(tokens, exact_law(SamplingConfig(temperature=1.0))) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("drafter", [SHARP, *DRAFTERS.values()], ids=["sharp", *DRAFTERS])
@pytest.mark.parametrize("policy", [Fickle, Drawn])
def test_the_law_over_five_thousand_replies(policy, drafter, mode):
    tokens = follow(lambda seed: policy(4, seed), mode, 5000, TableModel(drafter))
    assert p_value(tokens, exact_law(SamplingConfig(temperature=1.0))) > 1e-4


def narrowed(narrow_rows: Callable[[mx.array, Proposal], mx.array]) -> Callable[..., Acceptance]:
    """A verifier of `law.converse` that makes a round plain, width 1, in the conversations that are pointed out."""

    def verify(chooser: TokenChooser, logits: mx.array, start: mx.array, proposal: Proposal, _: object) -> Acceptance:
        block, _ = chooser.choose(logits, start, proposal)
        plain, _ = chooser.choose(logits[:, :1], start, None, shared=chooser.shared_noise(start, 1))
        narrow = narrow_rows(start, proposal)
        first = mx.where(narrow, plain.tokens[:, 0], block.tokens[:, 0])
        tokens = mx.concatenate([first[:, None], block.tokens[:, 1:]], axis=1)
        return Acceptance(mx.where(narrow, 0, block.num_accepted), tokens)

    return verify


def by_position(start: mx.array, proposal: Proposal) -> mx.array:
    return start % 2 == 0


def by_the_draw(start: mx.array, proposal: Proposal) -> mx.array:
    """Cheating: look at d_1, and do not verify it if it was an unlikely one."""
    assert proposal.q is not None
    drawn = proposal.candidates == proposal.tokens[..., None]
    return mx.where(drawn, proposal.q, 0.0).sum(axis=-1)[:, 0] < 0.2


def test_a_policy_that_looks_at_the_draw_is_noticed_and_one_that_does_not_is_fine():
    sampling = SamplingConfig(temperature=1.0)
    law_of = plain_law(sampling)
    values = {
        rule: p_value(converse(sampling, LAW_DRAFTERS["good"], rows=4000, verify=narrowed(rule)).tokens, law_of)
        for rule in (by_position, by_the_draw)
    }
    assert values[by_position] > 1e-4
    assert values[by_the_draw] < 1e-9


# Replies.

FLAT = PassCosts(dict.fromkeys(range(1, 6), 1.0), dict.fromkeys(range(2, 6), 0.1))
STEEP = PassCosts({rows: float(rows) for rows in range(1, 6)}, dict.fromkeys(range(2, 6), 0.3))


@pytest.mark.parametrize(("accepts", "costs", "best"), [(RIGHT, FLAT, 5), (WRONG, FLAT, 1), (RIGHT, STEEP, 1)])
def test_adaptive_replies_say_what_they_did(accepts, costs, best):
    engine = replace(scripted_engine("qwen3", accepts), costs=CostTable(costs))
    config = d2.GenerationConfig(max_tokens=48, verify_mode="adaptive")
    result = d2.generate(engine, PROMPT, config)
    assert result.token_ids == list(lively_reply("qwen3"))[:48]
    shown = result.to_dict()
    assert shown["verify_mode"] == "adaptive" and shown["notices"] == []
    assert sum(shown["rounds_by_width"].values()) == shown["rounds"]
    # A short reply already takes at most 7 % more than its best width would, which nobody told it.
    took = sum(rounds * seconds(costs, int(width)) for width, rounds in shown["rounds_by_width"].items())
    assert took <= 1.07 * seconds(costs, best) * -(-48 // (best if accepts == RIGHT else 1))
    narrow = d2.generate(engine, PROMPT, replace(config, block_size=3)).stats
    assert max(narrow.rounds_by_width) <= 3


def seconds(costs: PassCosts, width: int) -> float:
    return costs.verify[width] + (costs.draft[width] if width > 1 else 0.0)


def test_off_is_plain_decoding_and_says_so():
    engine = scripted_engine("qwen3", RIGHT)
    stats = d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=8, verify_mode="off")).stats
    assert (stats.mode, stats.verify_mode, stats.fallback_reason) == ("plain", None, "verify_mode is off")
    with pytest.raises(d2.ConfigError, match="verify_mode: got 'off', expected 'dflash' or 'adaptive': mode 'dflash2'"):
        d2.GenerationConfig(verify_mode="off", mode="dflash2")
    with pytest.raises(d2.ConfigError, match="verify_mode: got 'ddtree', expected 'dflash', 'adaptive' or 'off'"):
        d2.GenerationConfig(verify_mode="ddtree")


def test_costs_are_measured_once_per_engine():
    engine = scripted_engine("qwen3", RIGHT)
    config = d2.GenerationConfig(max_tokens=6, verify_mode="adaptive")
    first, second = (d2.generate(engine, PROMPT, config).stats.notices for _ in range(2))
    assert "costs of passes were measured first" in first[0] and second == []


def test_costs_that_were_kept_serve_until_others_are_measured():
    engine = replace(scripted_engine("qwen3", RIGHT), costs=CostTable())
    assert not engine.costs.known and engine.costs.source is None
    engine.costs.adopt(STEEP, "kept")
    stats = d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=12, verify_mode="adaptive")).stats
    assert engine.costs.source == "kept" and stats.notices == [] and set(stats.rounds_by_width) == {1}


def test_a_long_prompt_counts_as_depth():
    walled = PassCosts(FLAT.verify, FLAT.draft, {1: 0.0, 2: 9.0, 3: 9.0, 4: 9.0, 5: 9.0})
    engine = replace(scripted_engine("qwen3", RIGHT), costs=CostTable(walled))
    config = d2.GenerationConfig(max_tokens=12, verify_mode="adaptive")
    assert max(d2.generate(engine, PROMPT, config).stats.rounds_by_width) == 5
    assert set(d2.generate(engine, PROMPT * 60, config).stats.rounds_by_width) == {1}


def test_shares_by_position_count_only_rounds_that_drafted_that_far():
    stats = d2.GenerationStats(mode="dflash2", block_size=4)
    for width, accepted in ((4, 3), (2, 1), (2, 0), (1, 0), (3, 1)):
        stats.add(RoundResult(tokens=(1,) * (accepted + 1), num_accepted=accepted, width=width))
    # Draft 1: 4 rounds tried, 3 kept. Draft 2: the rounds of width 4 and 3. Draft 3: that of width 4.
    assert stats.acceptance_by_position == [3 / 4, 1 / 2, 1.0]
    assert stats.rounds_by_width == {4: 1, 2: 2, 1: 1, 3: 1}
    assert stats.acceptance_length == (4 + 2 + 1 + 1 + 2) / 5

"""Stop tokens and the token limit, at every place of a block (CK-10, CK-11)."""

from __future__ import annotations

import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from dflash2_mlx.decode.stats import GenerationStats
from tests.runs import CRITICAL, PROMPT, Reply, assert_state_of, lively_reply, lively_target, run, thinned
from tests.scripted import RIGHT, WRONG, ScriptedDrafter, ramp, reject_every

pytestmark = pytest.mark.bits

BLOCK = 5
N = len(PROMPT)
SCHEDULES = {"right": RIGHT, "wrong": WRONG, "ramp": ramp(BLOCK - 1), "reject-third": reject_every(3)}


def session_for(family: str, schedule: str | None) -> Session:
    target = lively_target(family)
    if schedule is None:
        return PlainSession(target)
    return DFlash2Session(target, ScriptedDrafter([*PROMPT, *lively_reply(family)], SCHEDULES[schedule]))


def check(session: Session, reply: Reply, plain: tuple[int, ...], limit: int, stops: set[int]) -> None:
    """What plain decoding with the same settings would have to say, told from the unstopped reply."""
    stop = next((i for i, token in enumerate(plain) if token in stops), len(plain))
    length = min(stop + 1, limit)
    assert reply.tokens == list(plain[:length])
    assert reply.finish_reason == ("stop" if stop < limit else "length")
    assert session.tokens == [*PROMPT, *plain[:length]]
    assert session.step() is None
    # Nothing after the end is remembered: the newest token itself has no row yet.
    assert assert_state_of(session, [*PROMPT, *plain]) == session.memory.position == N + length - 1


@pytest.mark.parametrize(("family", "schedule"), thinned(["qwen3_5", "muse_glimmer"], [*SCHEDULES, None]))
def test_a_stop_at_each_place_of_the_first_two_blocks(family, schedule):
    plain = lively_reply(family)
    for place in range(2 * BLOCK + 1):  # 0 is the token of the prefill pass
        session = session_for(family, schedule)
        stops = {plain[place]}
        reply = run(session, Request(PROMPT, 64, width=BLOCK, stop_token_ids=frozenset(stops)))
        check(session, reply, plain, 64, stops)


@pytest.mark.parametrize("family", CRITICAL)
def test_a_list_of_stops(family):
    plain = lively_reply(family)
    for places in ((9, 4), (4, 9), (3, 3, 12), (0, 1), (20,)):
        # A stop that never comes is among them, the lowest and the highest id too.
        stops = {plain[i] for i in places} | {0, 210} - set(plain)
        session = session_for(family, "ramp")
        reply = run(session, Request(PROMPT, 64, width=BLOCK, stop_token_ids=frozenset(stops)))
        check(session, reply, plain, 64, stops)


def test_a_stop_token_that_was_proposed_but_rejected_stops_nothing():
    family = "qwen3_5"
    plain = lively_reply(family)
    drafter = ScriptedDrafter([*PROMPT, *plain], [1])
    wrong = {(token + 1) % drafter.config.vocab_size for token in plain} - set(plain)
    assert len(wrong) > 10  # most rounds propose one of them
    session = DFlash2Session(lively_target(family), drafter)
    reply = run(session, Request(PROMPT, 64, width=BLOCK, stop_token_ids=frozenset(wrong)))
    assert reply.tokens == list(plain) and reply.finish_reason == "length"
    assert any(set(result.proposal) & wrong for result in reply.rounds)


def test_a_stop_token_in_the_prompt_stops_nothing():
    plain = lively_reply("qwen3_5")
    stops = frozenset(set(PROMPT) - set(plain))
    reply = run(session_for("qwen3_5", "ramp"), Request(PROMPT, 64, width=BLOCK, stop_token_ids=stops))
    assert stops and reply.tokens == list(plain)


@pytest.mark.parametrize(("family", "schedule"), thinned(["qwen3_5", "llama_sliding"], ["right", "ramp", None]))
def test_a_stop_against_the_limit(family, schedule):
    plain = lively_reply(family)
    for limit in range(1, 2 * BLOCK + 1):
        for place in range(limit - 2, limit + 2):  # the stop just before, at and just after the limit
            if place < 0:
                continue
            session = session_for(family, schedule)
            stops = {plain[place]}
            reply = run(session, Request(PROMPT, limit, width=BLOCK, stop_token_ids=frozenset(stops)))
            check(session, reply, plain, limit, stops)


@pytest.mark.slow
@pytest.mark.parametrize("width", range(2, BLOCK + 1))
@pytest.mark.parametrize("schedule", ["right", "ramp"])
@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer"])
def test_every_stop_against_every_limit(family, schedule, width):
    plain = lively_reply(family)
    for limit in range(1, 2 * BLOCK + 1):
        for place in range(2 * BLOCK):
            session = session_for(family, schedule)
            stops = {plain[place]}
            reply = run(session, Request(PROMPT, limit, width=width, stop_token_ids=frozenset(stops)))
            check(session, reply, plain, limit, stops)


@pytest.mark.parametrize("limit", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("schedule", [*SCHEDULES, None])
def test_limits_and_counts(schedule, limit):
    plain = lively_reply("qwen3_5")
    session = session_for("qwen3_5", schedule)
    reply = run(session, Request(PROMPT, limit, width=BLOCK if schedule else 1))
    check(session, reply, plain, limit, set())
    stats = GenerationStats("dflash2", BLOCK)
    for result in reply.rounds:
        stats.add(result)
    # The token of the prefill pass belongs to no round.
    assert stats.committed_tokens == stats.generated_tokens == limit - 1
    assert stats.accepted_tokens <= stats.committed_tokens
    if schedule is None or schedule == "wrong":
        assert stats.rounds == limit - 1
    if schedule == "right":
        assert stats.rounds == -(-(limit - 1) // BLOCK)


@pytest.mark.parametrize("limit", [1, 2])
def test_one_token_needs_no_round(limit):
    session = session_for("qwen3_5", "right")
    reply = run(session, Request(PROMPT, limit, width=BLOCK))
    assert len(reply.rounds) == len(session.drafter.rounds()) == limit - 1


# Lengths that the device's counter cannot hold.

MOST = 2**31 - 1


@pytest.mark.parametrize("limit", [0, 2**31, 2**32, 2**63, 10**30])
def test_a_request_beyond_the_counter(limit):
    with pytest.raises(d2.ConfigError, match=rf"max_tokens: got {limit}, expected an integer in 1\.\.{MOST}"):
        Request(PROMPT, limit)


def test_the_longest_request():
    session = session_for("qwen3", None)
    session.begin(Request(PROMPT, MOST, stop_token_ids=frozenset(lively_reply("qwen3")[4:5])))
    while session.step() is not None:
        pass
    assert session.finish_reason == "stop"

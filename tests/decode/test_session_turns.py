"""Later turns on one session: only what is new is read, and the reply is that of a cold session (CK-4, CK-21).

The random drafter's own proposals are compared too: they depend on every context row it can see.
"""

from __future__ import annotations

import pytest

from dflash2_mlx.decode.request import RoundResult
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from tests.runs import (
    CRITICAL,
    HYBRIDS,
    PROMPT,
    SLIDING,
    Reply,
    assert_state_of,
    lively_reply,
    lively_target,
    run,
    step_through,
    thinned,
)
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import make_tiny_drafter

pytestmark = pytest.mark.bits

BLOCK = 5
N = len(PROMPT)
EXTRA = [11, 48, 150, 2, 61, 62, 63, 90, 17, 133, 8, 8, 204, 31, 77, 5, 19, 120, 44, 45]
FULL = {"layer_types": ["full_attention"] * 2}


def new_session(family: str, **changes) -> DFlash2Session:
    return DFlash2Session(lively_target(family), make_tiny_drafter(**changes))


def request(prompt: list[int], tokens: int = 12, **settings) -> Request:
    return Request(list(prompt), tokens, width=settings.pop("width", BLOCK), **settings)


def cold(family: str, prompt: list[int], tokens: int = 12, **changes) -> Reply:
    return run(new_session(family, **changes), request(prompt, tokens))


def assert_same_turn(session: DFlash2Session, reply: Reply, fresh: Reply) -> None:
    assert reply.tokens == fresh.tokens
    assert [r.proposal for r in reply.rounds] == [r.proposal for r in fresh.rounds]
    assert reply.rounds == fresh.rounds
    assert_state_of(session, session.tokens)


def end_turn(session: Session, how: str) -> list[int]:
    """Have a first turn that ends in one of four ways; returns the text it leaves."""
    plain = lively_reply("qwen3_5") if session.target is lively_target("qwen3_5") else None
    stop = frozenset()
    if how == "stop":
        reply = run(PlainSession(session.target), request(PROMPT, 20)).tokens
        stop = frozenset({next(t for i, t in enumerate(reply) if i > 8 and t not in reply[:i])})
    steps = step_through(session, request(PROMPT, 20 if how != "limit" else 13, stop_token_ids=stop))
    results = 0
    for result in steps:
        results += isinstance(result, RoundResult)
        if how == "cancel" and results == 4:
            break
        if how == "cut" and results > 2 and len(result.tokens) > 1:
            session.finish(keep=1, reason="stop")
            break
    session.finish()
    assert plain is None or session.tokens == [*PROMPT, *plain][: len(session.tokens)]
    return list(session.tokens)


@pytest.mark.parametrize(("family", "how"), thinned([*CRITICAL, "qwen3"], ["limit", "stop", "cancel", "cut"]))
def test_a_second_turn_equals_a_cold_run(family, how):
    truth = [*PROMPT, *lively_reply(family)]
    session = DFlash2Session(lively_target(family), ScriptedDrafter(truth, [2, 3, 4, 1]))
    text = end_turn(session, how)
    assert len(text) < N + 20
    # From here on the drafter's own proposals count: same weights, no script.
    session.drafter = make_tiny_drafter()
    prompt = [*text, *EXTRA[: 3 if how == "cut" else 12]]
    reply = run(session, request(prompt))
    assert reply.cached == len(text) - 1
    assert_same_turn(session, reply, cold(family, prompt))


@pytest.mark.parametrize(("family", "extra"), thinned(["qwen3_5", "muse_glimmer"], [0, 1, 6, 7, 8, 20]))
def test_new_text_of_any_length(family, extra):
    # Around the drafter's window of 8: a longer prompt leaves a gap in its context.
    session = new_session(family)
    text = end_turn(session, "limit")
    prompt = [*text, *EXTRA[:extra]]
    reply = run(session, request(prompt))
    assert reply.cached == len(text) - 1
    assert_same_turn(session, reply, cold(family, prompt))


@pytest.mark.parametrize("family", CRITICAL)
def test_four_turns_of_changing_width(family):
    session, text = new_session(family), list(PROMPT)
    for number, width in enumerate((5, 2, 4, 3)):
        reply = run(session, request(text, 9, width=width))
        assert reply.cached == (len(text) - 1 - 5 if number else 0)
        fresh = run(new_session(family), request(text, 9, width=width))
        assert_same_turn(session, reply, fresh)
        text += [*reply.tokens, *EXTRA[5 * number : 5 * number + 5]]


@pytest.mark.parametrize(("family", "shared"), thinned(["qwen3", "qwen3_5"], [1, N - 1, N, N + 1, N + 7, N + 11]))
def test_a_prompt_that_shares_a_part(family, shared):
    # Attention forgets the rest; a recurrent state cannot, and reads the prompt again.
    session = new_session(family, **FULL)
    text = end_turn(session, "limit")
    prompt = [*text[:shared], *EXTRA[:6]]
    reply = run(session, request(prompt))
    assert reply.cached == (0 if family in HYBRIDS else shared)
    assert_same_turn(session, reply, cold(family, prompt, **FULL))


SHARED = [0, 1, 7, 8, 12, 16, 19, 20, 21, 22, 23, 24, 28, 32]


@pytest.mark.parametrize(("family", "shared"), thinned(SLIDING, SHARED, keep=3))
def test_a_shared_part_with_windows(family, shared):
    # Rows the window has passed are gone, so a prompt that turns off early is read again.
    session = new_session(family)
    text = [*EXTRA, *run(session, request(EXTRA, 13)).tokens]
    left = session.memory.state.sliding.base
    assert 7 < left < 20  # the lengths tried lie on both sides of the border
    prompt = [*text[:shared], *PROMPT]
    reply = run(session, request(prompt))
    assert reply.cached == (shared if shared - 7 >= left else 0)
    assert_same_turn(session, reply, cold(family, prompt))


@pytest.mark.parametrize("family", [*CRITICAL, "qwen3"])
def test_the_same_prompt_again(family):
    session = new_session(family, **FULL)
    first = run(session, request(PROMPT))
    again = run(session, request(PROMPT))
    assert again.cached == (0 if family in HYBRIDS else N - 1)
    assert again.rounds == first.rounds
    assert_same_turn(session, again, cold(family, PROMPT, **FULL))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3"])
def test_another_conversation_starts_cold(family):
    session = new_session(family)
    end_turn(session, "cancel")
    reply = run(session, request(EXTRA))
    assert reply.cached == 0
    assert_same_turn(session, reply, cold(family, EXTRA))


READ, THEN = (0, 7, 21, 35, 39), (5, 8, 22, 25, 28, 36, 37, 40, 60)


@pytest.mark.parametrize(("family", "read", "length"), thinned(("qwen3_5", "muse_glimmer"), READ, THEN, keep=6))
def test_a_prompt_after_one_that_was_cancelled_while_read(family, read, length):
    # The context's first row was chosen for the cancelled prompt; a shorter one needs earlier rows.
    long = [*PROMPT, *lively_reply(family)]
    session = new_session(family)
    session.begin(request(long[:40], prefill_chunk=7 if read < 39 else 13))
    while session.memory.position < read:
        session.step()
    session.finish()
    # The token after the last row read may stay: it needs no row yet.
    assert session.tokens == long[: 40 if read == 39 else read]
    reply = run(session, request(long[:length]))
    assert_same_turn(session, reply, cold(family, long[:length]))


@pytest.mark.parametrize("family", ["qwen3_5", "llama_sliding"])
def test_second_turn_of_plain_decoding(family):
    session = PlainSession(lively_target(family))
    text = [*PROMPT, *run(session, request(PROMPT, 13)).tokens, *EXTRA[:4]]
    reply = run(session, request(text))
    assert reply.cached == N + 12
    assert reply.tokens == run(PlainSession(session.target), request(text)).tokens


def test_two_sessions_in_turn_do_not_meet():
    # Weights and compiled functions are shared, everything else is not (CK-15).
    family = "qwen3_5"
    drafter = make_tiny_drafter()
    sessions = [DFlash2Session(lively_target(family), drafter) for _ in range(2)]
    prompts = [PROMPT, EXTRA]
    steps = [step_through(s, request(p, 20)) for s, p in zip(sessions, prompts, strict=True)]
    replies: list[list[int]] = [[], []]
    for _ in range(60):
        for index, step in enumerate(steps):
            result = next(step, None)
            if isinstance(result, RoundResult):
                replies[index].extend(result.tokens)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply == cold(family, prompt, 20).tokens


def test_a_long_first_turn_then_a_scripted_second_one():
    # Accept lengths of all kinds on both sides of the turn's border.
    family = "qwen3_5_moe"
    first = [*PROMPT, *lively_reply(family)]
    drafter = ScriptedDrafter(first, ramp(BLOCK - 1))
    session = DFlash2Session(lively_target(family), drafter)
    run(session, request(PROMPT, 64))
    prompt = [*first, *EXTRA]
    plain = run(PlainSession(session.target), request(prompt, 64)).tokens
    drafter.learn([*prompt, *plain])
    text = [*prompt, *plain]
    reply = run(session, request(prompt, 64), each=lambda _: assert_state_of(session, text))
    assert reply.cached == len(first) - 1
    assert reply.tokens == plain

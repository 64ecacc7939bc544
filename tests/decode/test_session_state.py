"""Whatever was drafted, a session remembers exactly what was committed (CK-2, T10).

Compared bit for bit with a fresh prefill: all K/V rows, recurrent and convolution states, drafter context.
"""

from __future__ import annotations

import pytest

from dflash2_mlx.decode.request import RoundResult
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from tests.runs import (
    CRITICAL,
    FAMILIES,
    HYBRIDS,
    PROMPT,
    SEEDS,
    assert_state_of,
    formats,
    lively_reply,
    lively_target,
    run,
    step_through,
    thinned,
)
from tests.scripted import RIGHT, WRONG, ScriptedDrafter, ramp, reject_every

pytestmark = pytest.mark.bits

BLOCK = 5
N = len(PROMPT)


def drafting(family: str, accepts: list[int], *, kind: str = "f32", seed: int = 0, tokens: int = 64) -> DFlash2Session:
    """A session whose drafter knows the plain reply."""
    plain = lively_reply(family, kind, seed, tokens)
    drafter = ScriptedDrafter([*PROMPT, *plain], accepts)
    return DFlash2Session(lively_target(family, kind, seed), drafter)


def advance(session: Session, request: Request, results: int) -> list[RoundResult]:
    """Begin a request and read its first `results` results, the first token being one."""
    seen = []
    steps = step_through(session, request)
    while len(seen) < results:
        result = next(steps)
        if isinstance(result, RoundResult):
            seen.append(result)
    return seen


def cases() -> list[tuple[str, str, list[int], int]]:
    schedules = [ramp(BLOCK - 1), reject_every(3), [3, 0, 1], [0, -1]]
    rows = []
    for number, family in enumerate(FAMILIES):
        kinds = formats(family)
        for step in range(2 if family in CRITICAL else 1):
            turn = number + step
            rows.append((family, kinds[turn % len(kinds)], schedules[turn % 4], BLOCK - turn % 2))
    return rows


@pytest.mark.parametrize(("family", "kind", "accepts", "width"), cases())
def test_state_after_every_round(family, kind, accepts, width):
    session = drafting(family, accepts, kind=kind, seed=SEEDS[1])
    text = [*PROMPT, *lively_reply(family, kind, SEEDS[1])[:40]]
    reply = run(session, Request(PROMPT, 40, width=width), each=lambda _: assert_state_of(session, text), finish=False)
    assert [*PROMPT, *reply.tokens] == text
    session.finish()
    # The newest token was never fed, so its row does not exist.
    assert assert_state_of(session, text, one_pass=True) == session.memory.position == len(text) - 1


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "muse_glimmer"])
def test_state_of_plain_decoding(family):
    text = [*PROMPT, *lively_reply(family)]
    session = PlainSession(lively_target(family))
    run(session, Request(PROMPT, 64), each=lambda _: assert_state_of(session, text))
    assert assert_state_of(session, text, one_pass=True) == len(text) - 1


SCRIPTS = {"wrong": WRONG, "right": RIGHT, "ramp": ramp(BLOCK - 1)}


@pytest.mark.parametrize(("family", "accepts", "results"), thinned(CRITICAL, [*SCRIPTS], [1, 2, 3, 6]))
def test_cancel_takes_back_the_round_in_flight(family, accepts, results):
    session = drafting(family, SCRIPTS[accepts])
    seen = advance(session, Request(PROMPT, 64, width=BLOCK), results)
    session.finish(reason="cancelled")
    read = [token for result in seen for token in result.tokens]
    assert session.finish_reason == "cancelled"
    assert session.tokens == [*PROMPT, *read]
    assert assert_state_of(session, session.tokens) == session.memory.position == N + len(read) - 1


@pytest.mark.parametrize("family", ["qwen3_5", "llama_sliding"])
def test_cancel_of_plain_decoding(family):
    session = PlainSession(lively_target(family))
    advance(session, Request(PROMPT, 64), 9)
    session.finish(reason="cancelled")
    assert assert_state_of(session, session.tokens) == session.memory.position == N + 8


@pytest.mark.parametrize("family", CRITICAL)
def test_cancel_while_the_prompt_is_read(family):
    plain = lively_reply(family)
    long = [*PROMPT, *plain][:40]
    session = drafting(family, RIGHT)
    request = Request(long, 8, width=BLOCK, prefill_chunk=7)
    steps = step_through(session, request)
    for done in (7, 14, 21):
        assert next(steps).done == done
    session.finish()
    assert session.tokens == long[:21]
    # The drafter's first row is decided by the whole prompt: here none was due yet.
    assert session.memory.state.length.item() == session.memory.position == 21
    # The same prompt again goes on where the reading stopped.
    reply = run(session, Request(long, 8, width=BLOCK))
    assert reply.cached == 21
    assert reply.tokens == run(drafting(family, WRONG), Request(long, 8, width=BLOCK)).tokens
    assert_state_of(session, session.tokens)


@pytest.mark.parametrize("keep", range(1, BLOCK + 1))
@pytest.mark.parametrize("family", CRITICAL)
def test_a_stop_string_cuts_inside_a_block(family, keep):
    # The host finds it one round late: a round that must go is already queued behind it.
    session = drafting(family, RIGHT)
    seen = advance(session, Request(PROMPT, 64, width=BLOCK), 4)
    assert len(seen[-1].tokens) == BLOCK
    session.finish(keep=keep, reason="stop")
    text = [*PROMPT, *lively_reply(family)]
    length = N + 1 + 2 * BLOCK + keep
    assert session.tokens == text[:length]
    assert assert_state_of(session, text) == session.memory.position == length - 1
    assert session.finish_reason == "stop"


@pytest.mark.parametrize("offset", range(BLOCK))
@pytest.mark.parametrize("family", CRITICAL)
def test_a_stop_token_inside_a_block(family, offset):
    plain = lively_reply(family)
    at = next(i for i in range(1 + BLOCK + offset, 64, BLOCK) if plain[i] not in plain[:i])
    session = drafting(family, RIGHT)
    request = Request(PROMPT, 64, width=BLOCK, stop_token_ids=frozenset({plain[at]}))
    reply = run(session, request)
    assert reply.finish_reason == "stop"
    assert reply.tokens == list(plain[: at + 1])
    assert assert_state_of(session, [*PROMPT, *plain]) == session.memory.position == N + at


@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer"])
@pytest.mark.parametrize("limit", range(1, 2 * BLOCK + 2))
def test_the_token_limit_inside_a_block(family, limit):
    plain = lively_reply(family)
    session = drafting(family, RIGHT)
    reply = run(session, Request(PROMPT, limit, width=BLOCK))
    assert reply.tokens == list(plain[:limit])
    assert assert_state_of(session, [*PROMPT, *plain]) == session.memory.position == N + limit - 1


def test_an_error_inside_a_round_leaves_nothing_behind():
    session = drafting("qwen3_5", ramp(BLOCK - 1))
    advance(session, Request(PROMPT, 64, width=BLOCK), 3)
    session.abandon()
    assert session.tokens == [] and session.step() is None
    reply = run(session, Request(PROMPT, 64, width=BLOCK))
    assert reply.cached == 0 and reply.tokens == list(lively_reply("qwen3_5"))


@pytest.mark.parametrize("family", HYBRIDS)
def test_the_recurrent_state_stays_float32_with_bfloat16_weights(family):
    kind = "bf16" if "bf16" in formats(family) else "f32"
    session = drafting(family, ramp(BLOCK - 1), kind=kind)
    run(session, Request(PROMPT, 30, width=BLOCK))
    assert {str(state.recurrent.dtype) for state in session.memory.state.recurrent} == {"mlx.core.float32"}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family in FAMILIES for kind in formats(family)])
def test_300_tokens_in_every_format(family, kind):
    seed = SEEDS[2]
    text = [*PROMPT, *lively_reply(family, kind, seed, 300)]
    session = drafting(family, [*ramp(BLOCK - 1), 0, 3, 0], kind=kind, seed=seed, tokens=300)
    reply = run(session, Request(PROMPT, 300, width=BLOCK), each=lambda _: assert_state_of(session, text))
    assert [*PROMPT, *reply.tokens] == text

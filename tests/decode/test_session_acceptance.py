"""DFlash 2 says what plain decoding says, at every width and accept length, on every family (CK-1, T7)."""

from __future__ import annotations

from typing import Any

import pytest

from dflash2_mlx.decode.session import DFlash2Session, Request
from dflash2_mlx.decode.stats import GenerationStats
from dflash2_mlx.sampling.config import SamplingConfig
from tests.runs import (
    CRITICAL,
    FAMILIES,
    PROMPT,
    SEEDS,
    Reply,
    assert_state_of,
    formats,
    lively_reply,
    lively_target,
    plain_reply,
    run,
    slow_unless,
    thinned,
)
from tests.scripted import RIGHT, WRONG, ScriptedDrafter, ramp, reject_every
from tests.tiny import make_tiny_drafter

pytestmark = pytest.mark.bits

BLOCK = 5
SCHEDULES = {"ramp": ramp(BLOCK - 1), "right": RIGHT, "wrong": WRONG, "reject-third": reject_every(3)}


def pairwise() -> list[Any]:
    """Every family at every width, and every pair of (family, format), (width, schedule), (format, schedule)."""
    cases = []
    for number, family in enumerate(FAMILIES):
        kinds = formats(family)
        for step, width in enumerate(range(2, BLOCK + 1)):
            turn = number + step
            schedule = list(SCHEDULES)[turn % len(SCHEDULES)]
            case = (family, kinds[turn % len(kinds)], width, schedule, SEEDS[(number + 2 * step) % 3])
            # Two widths of each family always, the other two in a slow run.
            cases.append(slow_unless((number + step) % 2 == 1, *case))
    return cases


def draft(family: str, kind: str, seed: int, width: int, drafter: ScriptedDrafter, tokens: int) -> Reply:
    session = DFlash2Session(lively_target(family, kind, seed), drafter)
    return run(session, Request(PROMPT, tokens, width=width))


@pytest.mark.parametrize(("family", "kind", "width", "schedule", "seed"), pairwise())
def test_greedy_reply_equals_plain_decoding(family, kind, width, schedule, seed):
    plain = lively_reply(family, kind, seed)
    drafter = ScriptedDrafter([*PROMPT, *plain], SCHEDULES[schedule], garbage_after=width % 2 == 0)
    reply = draft(family, kind, seed, width, drafter, len(plain))
    assert reply.tokens == list(plain)
    assert reply.finish_reason == "length"


@pytest.mark.parametrize(("schedule", "width"), thinned([*SCHEDULES], range(2, BLOCK + 1)))
def test_accept_length_is_what_the_drafter_got_right(schedule, width):
    plain = lively_reply("qwen3_5")
    drafter = ScriptedDrafter([*PROMPT, *plain], SCHEDULES[schedule])
    session = DFlash2Session(lively_target("qwen3_5"), drafter)
    reply = run(session, Request(PROMPT, len(plain), width=width))
    script = SCHEDULES[schedule]
    position = len(PROMPT)
    for number, result in enumerate(reply.rounds[:-1]):  # the limit may cut the last one
        wanted = script[number % len(script)]
        wanted = width - 1 if wanted < 0 else min(wanted, width - 1)
        assert result.num_accepted == wanted
        assert result.tokens[:-1] == result.proposal[:wanted]
        assert len(result.tokens) == wanted + 1
        # Drafted from the newest committed token, with context rows for everything before it and no more.
        assert drafter.rounds()[number] == ([*PROMPT, *plain][position], position)
        position += wanted + 1


def test_an_always_right_drafter_gains_a_whole_block_and_a_wrong_one_still_gains_a_token():
    plain = lively_reply("llama", max_tokens=41)
    for script, length in ((RIGHT, BLOCK), (WRONG, 1), ([2], 3)):
        drafter = ScriptedDrafter([*PROMPT, *plain], script)
        reply = draft("llama", "f32", 0, BLOCK, drafter, len(plain))
        stats = GenerationStats("dflash2", BLOCK)
        for result in reply.rounds:
            stats.add(result)
        assert reply.tokens == list(plain)
        # The first token comes from the prefill, so 40 are left for the rounds.
        assert stats.rounds == -(-40 // length)
        assert stats.acceptance_length == 40 / stats.rounds


@pytest.mark.parametrize("family", CRITICAL)
@pytest.mark.parametrize("compiled", [False, True], ids=["as-is", "compiled"])
def test_the_state_is_checked_after_every_round(family, compiled):
    tokens = 120 if family == "qwen3_5" else 60
    plain = lively_reply(family, max_tokens=tokens)
    text = [*PROMPT, *plain]
    drafter = ScriptedDrafter(text, [*ramp(BLOCK - 1), 0, 3, 0])
    if compiled:
        drafter.compile_for_inference()
    session = DFlash2Session(lively_target(family), drafter)
    request, lengths = Request(PROMPT, len(plain), width=BLOCK), []
    reply = run(session, request, each=lambda _: lengths.append(assert_state_of(session, text)))
    assert reply.tokens == list(plain)
    assert lengths[-1] == len(text) - 1 and len(set(lengths)) > tokens * 0.3
    assert_state_of(session, text, one_pass=True)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "muse_glimmer", "qwen3_moe"])
def test_a_random_drafter_changes_nothing(family):
    # Real proposals: acceptance is near zero, but the walk, the candidates and the block pass are the real ones.
    plain = lively_reply(family)
    session = DFlash2Session(lively_target(family), make_tiny_drafter())
    assert run(session, Request(PROMPT, len(plain), width=BLOCK)).tokens == list(plain)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(presence_penalty=1.5, frequency_penalty=0.4),
        SamplingConfig(repetition_penalty=1.3),
        SamplingConfig(temperature=0.9, seed=5, top_k=40, lossless_mode="coupled"),
        SamplingConfig(temperature=1.3, seed=6, top_p=0.9, presence_penalty=0.7, lossless_mode="coupled"),
    ],
    ids=["presence-frequency", "repetition", "coupled", "coupled-presence"],
)
def test_history_and_coupled_noise_roll_back_with_the_rest(sampling):
    target = lively_target("qwen3_5")
    plain = plain_reply(target, PROMPT, 64, sampling=sampling, seed=5)
    drafter = ScriptedDrafter([*PROMPT, *plain], [*ramp(BLOCK - 1), 1, 0])
    request = Request(PROMPT, 64, sampling=sampling, seed=5, width=BLOCK)
    reply = run(DFlash2Session(target, drafter), request)
    assert reply.tokens == plain
    # Penalties see the same history in both ways, so a right proposal is accepted.
    assert sum(result.num_accepted for result in reply.rounds) > 20

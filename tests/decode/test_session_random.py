"""Random conversations on one session: any prompt after any ending, and nothing of the past shows (CK-15)."""

from __future__ import annotations

import random

import pytest

from dflash2_mlx.decode.request import RoundResult
from dflash2_mlx.decode.session import DFlash2Session, Request
from dflash2_mlx.layers import kv_cache
from tests.runs import CRITICAL, assert_state_of, lively_target, plain_reply, thinned
from tests.scripted import ScriptedDrafter

pytestmark = pytest.mark.bits

BLOCK = 6


def next_prompt(chance: random.Random, text: list[int]) -> list[int]:
    """What was said before and more, a part of it and something else, the same again, or something new."""
    new = [chance.randrange(211) for _ in range(chance.choice([1, 2, 7, 8, 9, 25]))]
    kind = chance.choice(["goes on", "goes on", "turns off", "again", "new"])
    if kind == "goes on":
        return [*text, *new]
    if kind == "turns off":
        return [*text[: chance.randint(0, len(text))], *new]
    return new if kind == "new" or not text else list(text)


def converse(session: DFlash2Session, drafter: ScriptedDrafter, chance: random.Random, prompt: list[int]) -> None:
    """One reply with random settings and a random end; checked against plain decoding and a fresh prefill."""
    limit = chance.randint(1, 25)
    plain = plain_reply(session.target, prompt, limit)
    drafter.learn([*prompt, *plain])
    stops = frozenset(chance.sample(plain, 1)) if chance.random() < 0.3 else frozenset()
    width, chunk = chance.randint(2, BLOCK), chance.choice([3, 8, 11, 512])
    session.begin(Request(prompt, limit, width=width, prefill_chunk=chunk, stop_token_ids=stops))
    assert session.cached_tokens < len(prompt)
    patience = chance.choice([1, 3, 6, 100, 100])
    reply: list[int] = []
    last: RoundResult | None = None
    while patience and (result := session.step()) is not None:
        patience -= 1
        if isinstance(result, RoundResult):
            reply.extend(result.tokens)
            last = result
    cut = last is not None and len(last.tokens) > 1 and chance.random() < 0.3
    keep = chance.randint(1, len(last.tokens) - 1) if cut else None
    session.finish(keep=keep)
    if cut:
        reply = reply[: len(reply) - len(last.tokens) + keep]
    assert reply == plain[: len(reply)]
    assert assert_state_of(session, session.tokens, with_context=last is not None) == session.memory.position
    if last is None:  # cancelled while the prompt was read
        assert session.tokens == prompt[: len(session.tokens)]
    else:
        assert session.tokens == [*prompt, *reply]


@pytest.mark.parametrize(("family", "tight"), thinned([*CRITICAL, "qwen3"], [False, True]))
def test_random_conversations(family, tight, monkeypatch):
    hold_conversations(family, tight, monkeypatch, seed=1, replies=9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("family", [*CRITICAL, "qwen3"])
def test_long_random_conversations(family, seed, monkeypatch):
    hold_conversations(family, seed % 2 == 0, monkeypatch, seed=seed, replies=100)


def hold_conversations(family: str, tight: bool, monkeypatch: pytest.MonkeyPatch, *, seed: int, replies: int) -> None:
    if tight:
        monkeypatch.setattr(kv_cache, "GROWTH", 3)
        monkeypatch.setattr(kv_cache, "_SMALL", 2)
    chance = random.Random(f"{family} {seed}")
    drafter = ScriptedDrafter(
        [],
        [chance.randint(0, BLOCK - 1) for _ in range(17)],
        block_size=BLOCK,
        layer_types=chance.choice([["sliding_attention"] * 2, ["full_attention", "sliding_attention"]]),
    )
    session = DFlash2Session(lively_target(family), drafter)
    reused = 0
    for _ in range(replies):
        prompt = next_prompt(chance, session.tokens)
        if len(prompt) > 200:
            prompt = prompt[-9:]
        converse(session, drafter, chance, prompt)
        reused += session.cached_tokens > 0
    assert reused > replies // 5

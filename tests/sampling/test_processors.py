"""Penalties, bias and log-probabilities on the fast path: the same as plain decoding, never dropped (CK-14)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx import SamplingConfig
from dflash2_mlx.decode.request import TokenLogprob
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request
from dflash2_mlx.device.runtime import owner
from tests.automata import Automaton, nested_lists
from tests.engines import tiny_engine
from tests.reference import sampling as reference
from tests.runs import (
    PROMPT,
    Reply,
    assert_same_log_probabilities,
    lively_target,
    plain_reply,
    run,
    step_through,
    thinned,
)
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import VOCAB

TOKENS = 40
GREEDY = {
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.0},
    "negative frequency": {"frequency_penalty": -0.5, "repetition_penalty": 1.6},
    "bias": {"logit_bias": {5: 4.0, 100: -100.0, 77: 2.5}},
    "all": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.4, "logit_bias": {9: 1.5}},
}


def drafting(family: str, text: list[int]) -> DFlash2Session:
    return DFlash2Session(lively_target(family), ScriptedDrafter([*PROMPT, *text], ramp(4)))


@pytest.mark.parametrize(("family", "name"), thinned(["qwen3_5", "muse_glimmer"], list(GREEDY)))
def test_greedy_replies_with_processors_equal_plain_decoding(family, name):
    sampling = SamplingConfig(**GREEDY[name])
    plain = plain_reply(lively_target(family), PROMPT, TOKENS, sampling=sampling)
    assert plain != plain_reply(lively_target(family), PROMPT, TOKENS), "the processor changes nothing here"
    reply = run(drafting(family, plain), Request(PROMPT, TOKENS, sampling=sampling, width=5))
    assert reply.tokens == plain
    assert {result.num_accepted for result in reply.rounds} == set(range(5))


@pytest.mark.parametrize("name", ["repetition", "all"])
def test_plain_decoding_with_processors_is_the_reference(name):
    # Otherwise both ways could be wrong alike.
    settings = GREEDY[name]
    target = lively_target("qwen3")
    reply = plain_reply(target, PROMPT, 20, sampling=SamplingConfig(**settings))
    out = target.forward(mx.array([[*PROMPT, *reply]]), target.new_state())
    for number, token in enumerate(reply):
        logits = reference.penalise(
            np.array(out.logits[0, len(PROMPT) - 1 + number]), PROMPT, reply[:number], **settings
        )
        assert int(np.argmax(logits)) == token


# Log-probabilities.


def entries(reply: Reply, session: Any, request: Request) -> list[TokenLogprob]:
    found = []
    for result in step_through(session, request):
        found.extend(getattr(result, "logprobs", ()))
        reply.tokens.extend(getattr(result, "tokens", ()))
    session.finish()
    return found


@pytest.mark.bits
@pytest.mark.parametrize(
    ("settings", "top"),
    thinned([{}, GREEDY["all"], {"temperature": 0.7, "top_k": 5, "lossless_mode": "coupled"}], [0, 1, 5, 20]),
)
def test_log_probabilities_equal_plain_decodings_and_the_reference(settings, top):
    target, sampling = lively_target("qwen3_5"), SamplingConfig(**settings)
    plain, drafted = Reply(), Reply()
    ask = {"sampling": sampling, "seed": 3, "logprobs": top}
    left = entries(plain, PlainSession(target), Request(PROMPT, TOKENS, **ask))
    right = entries(drafted, drafting("qwen3_5", plain.tokens), Request(PROMPT, TOKENS, width=5, **ask))
    assert plain.tokens == drafted.tokens == [entry.token for entry in right]
    assert_same_log_probabilities(left, right)
    out = target.forward(mx.array([[*PROMPT, *plain.tokens]]), target.new_state())
    shared = {key: settings[key] for key in settings if key.endswith(("penalty", "bias"))}
    for number, entry in enumerate(left):
        logits = reference.penalise(
            np.array(out.logits[0, len(PROMPT) - 1 + number]), PROMPT, plain.tokens[:number], **shared
        )
        want = np.log(reference.softmax(logits))
        assert entry.logprob == pytest.approx(want[entry.token], abs=1e-4)
        assert len(entry.top) == top
        np.testing.assert_allclose([value for _, value in entry.top], np.sort(want)[::-1][:top], atol=1e-4)
        if top and not settings.get("temperature"):
            assert entry.top[0][0] == entry.token  # greedy emits the best


def test_no_log_probabilities_unless_asked_for():
    result = d2.generate(tiny_engine(), PROMPT, d2.GenerationConfig(max_tokens=5))
    assert result.logprobs == []


def test_log_probabilities_follow_what_is_emitted():
    # One entry per emitted token: none for a stop token, none for what a limit or stop string cut.
    text = plain_reply(lively_target("qwen3"), PROMPT, 30)
    drafter = owner().call(lambda: ScriptedDrafter([*PROMPT, *text], [-1]))
    engine = tiny_engine("qwen3", drafter)
    for config in (
        d2.GenerationConfig(max_tokens=7, logprobs=2),
        d2.GenerationConfig(max_tokens=30, logprobs=2, stop_token_ids=(text[8],)),
        d2.GenerationConfig(max_tokens=30, logprobs=2, stop=(f"<{text[6]}><{text[7]}>",)),
    ):
        result = d2.generate(engine, PROMPT, config)
        assert [entry.token for entry in result.logprobs] == result.token_ids
        assert all(len(entry.top) == 2 for entry in result.logprobs)


# Several requests with different processors (CK-14: six in a row, six at once).

SIX = [
    {"sampling": SamplingConfig(repetition_penalty=1.5)},
    {"sampling": SamplingConfig(presence_penalty=2.0, logit_bias={5: 3.0})},
    {"sampling": SamplingConfig(temperature=0.9, seed=4, frequency_penalty=0.7)},
    {"constraint": True},
    {"logprobs": 3},
    {"sampling": SamplingConfig(temperature=1.0, top_p=0.8, seed=9, lossless_mode="rejection")},
]


def answer(engine: d2.Engine, settings: dict[str, Any]) -> tuple[list[int], list[TokenLogprob], int]:
    settings = dict(settings)
    constraint = Automaton(nested_lists, VOCAB) if settings.pop("constraint", False) else None
    config = d2.GenerationConfig(max_tokens=20, stop_token_ids=(), **settings)
    result = d2.generate(engine, PROMPT, config, constraint=constraint)
    return result.token_ids, result.logprobs, result.stats.synchronous_rounds


def test_six_in_a_row_and_six_at_once():
    def engine() -> d2.Engine:
        text = plain_reply(lively_target("qwen3"), PROMPT, 20)
        return tiny_engine("qwen3", owner().call(lambda: ScriptedDrafter([*PROMPT, *text], ramp(4))))

    # The scripted drafter counts rounds, so a request has one to itself; the target is shared.
    alone = [answer(engine(), settings) for settings in SIX]
    assert len({tuple(tokens) for tokens, _, _ in alone}) >= 5
    again = [answer(engine(), settings) for settings in SIX]
    assert again == alone
    with ThreadPoolExecutor(len(SIX)) as pool:
        at_once = list(pool.map(lambda settings: answer(engine(), settings), SIX))
    assert at_once == alone

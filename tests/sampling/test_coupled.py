"""Coupled mode is plain sampling with that seed, token for token, at every width (architecture 3; CK-12, CK-13).

The scripted drafter makes every accept length happen; the real ones show that shared noise makes drafts agree.
Rejection mode promises less: the same seed and width give the same text.
"""

from __future__ import annotations

import functools

import pytest

import dflash2_mlx as d2
from dflash2_mlx import SamplingConfig
from dflash2_mlx.decode.session import DFlash2Session, Request
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.targets.base import Target
from dflash2_mlx.targets.registry import make_target
from tests.pairs import bootstrap_pair
from tests.runs import PROMPT, lively_target, plain_reply, run, slow_unless, thinned
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import TARGET_CONFIGS, make_mlx_model, make_tiny_drafter

BLOCK = 5
TOKENS = 64
SETTINGS = {
    "bare": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "top-k": {"temperature": 0.8, "top_k": 20},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "min-p": {"temperature": 1.5, "min_p": 0.05},
    "presence": {"temperature": 1.0, "presence_penalty": 1.5},
    "frequency": {"temperature": 0.7, "frequency_penalty": 0.8, "top_p": 0.95},
    "repetition": {"temperature": 0.9, "repetition_penalty": 1.4, "top_k": 50},
    "bias": {"temperature": 0.9, "logit_bias": {5: 3.0, 7: -5.0}},
    "everything": {
        "temperature": 0.8,
        "top_k": 60,
        "top_p": 0.95,
        "min_p": 0.01,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {5: 1.0},
    },
}
FAMILIES = ["qwen3", "qwen3_5", "muse_glimmer", "llama_sliding"]


def request(sampling: SamplingConfig, width: int = 1, seed: int = 5, tokens: int = TOKENS) -> Request:
    return Request(PROMPT, tokens, sampling=sampling, seed=seed, width=width)


# Every setting at the full width and at another one, families in turn.
CASES = [
    slow_unless((number + step) % 2 == 1, FAMILIES[(number + step) % len(FAMILIES)], name, width)
    for number, name in enumerate(SETTINGS)
    for step, width in enumerate((BLOCK, 2 + number % (BLOCK - 2)))
]


@functools.cache
def plain(family: str, name: str) -> tuple[int, ...]:
    return tuple(plain_reply(lively_target(family), PROMPT, TOKENS, sampling=SamplingConfig(**SETTINGS[name]), seed=5))


@pytest.mark.parametrize(("family", "name", "width"), CASES)
def test_every_accept_length_gives_plain_samplings_text(family, name, width):
    text = plain(family, name)
    assert len(text) == TOKENS and len(set(text)) > 12
    drafter = ScriptedDrafter([*PROMPT, *text], ramp(width - 1))
    sampling = SamplingConfig(lossless_mode="coupled", **SETTINGS[name])
    reply = run(DFlash2Session(lively_target(family), drafter), request(sampling, width))
    assert reply.tokens == list(text)
    assert {result.num_accepted for result in reply.rounds} == set(range(width))


# Real drafters: a vocabulary small enough for a random one to be right now and then.

SMALL = {"vocab_size": 12}


@functools.cache
def small_target(family: str) -> Target:
    config = {**TARGET_CONFIGS[family], **SMALL}
    return make_target(make_mlx_model(config, seed=2), config)


@functools.cache
def small_drafter() -> DraftModel:
    return make_tiny_drafter(compiled=True, selector_top_k=8, **SMALL)


@pytest.mark.parametrize(("family", "name"), thinned(["qwen3_untied", "muse_glimmer"], ["bare", "top-p", "everything"]))
def test_a_real_drafter_with_shared_noise(family, name):
    target = small_target(family)
    settings = {**SETTINGS[name], "logit_bias": {5: 1.0}}
    text = plain_reply(target, PROMPT[:3], TOKENS, sampling=SamplingConfig(**settings), seed=5)
    sampling = SamplingConfig(lossless_mode="coupled", **settings)
    for width in (2, BLOCK):
        session = DFlash2Session(target, small_drafter())
        reply = run(session, Request(PROMPT[:3], TOKENS, sampling=sampling, seed=5, width=width))
        assert reply.tokens == text
        # A drafter that guessed would be right once in twelve; the shared noise makes it better than that.
        if name == "bare":
            kept = sum(result.num_accepted > 0 for result in reply.rounds)
            assert kept / len(reply.rounds) > 1.5 / 12


def test_the_trained_pair():
    engine = bootstrap_pair()
    prompt = "def add(a, b):\n"
    for sampling in (SamplingConfig(temperature=0.8, top_p=0.95, seed=4), SamplingConfig(temperature=1.0, seed=2**40)):
        replies = [
            d2.generate(
                engine,
                prompt,
                d2.GenerationConfig(
                    max_tokens=48,
                    sampling=sampling,
                    mode=mode,
                    block_size=width,
                    stop_token_ids=(),
                ),
            )
            for mode, width in (("plain", None), ("dflash2", None), ("dflash2", 3))
        ]
        assert replies[1].token_ids == replies[2].token_ids == replies[0].token_ids
        assert replies[1].stats.lossless_mode == "coupled"
        assert replies[1].stats.accepted_tokens > 0


# Seeds.


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_same_seed_same_text_and_another_seed_another(mode):
    sampling = SamplingConfig(temperature=1.0, lossless_mode=mode)
    texts = [
        run(
            DFlash2Session(small_target("qwen3_untied"), small_drafter()),
            Request(PROMPT[:3], 60, sampling=sampling, seed=seed, width=4),
        ).tokens
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_rejection_mode_repeats_itself_after_another_reply_in_the_same_session():
    sampling = SamplingConfig(temperature=1.0, lossless_mode="rejection")
    session = DFlash2Session(small_target("qwen3_untied"), small_drafter())
    ask = Request(PROMPT[:3], 40, sampling=sampling, seed=1, width=4)
    first = run(session, ask).tokens
    run(session, Request([7, 7], 9, sampling=sampling, seed=8, width=4))
    assert run(session, ask).tokens == first


def test_top_k_1_and_no_temperature_are_greedy_in_every_mode():
    target = lively_target("qwen3_5")
    greedy = plain_reply(target, PROMPT, 40)
    for settings in ({"temperature": 1.0, "top_k": 1}, {"temperature": 0.9e-5}):
        assert plain_reply(target, PROMPT, 40, sampling=SamplingConfig(**settings), seed=3) == greedy
        for mode in ("rejection", "coupled"):
            drafter = ScriptedDrafter([*PROMPT, *greedy], ramp(4))
            sampling = SamplingConfig(lossless_mode=mode, **settings)
            assert run(DFlash2Session(target, drafter), request(sampling, 5, tokens=40)).tokens == greedy


def test_plain_sampling_ignores_the_lossless_mode():
    modes = ("rejection", "coupled", None)
    texts = [
        plain_reply(lively_target("qwen3"), PROMPT, 30, seed=3, sampling=sampling)
        for sampling in (SamplingConfig(temperature=1.0, lossless_mode=mode) for mode in modes)
    ]
    assert texts[0] == texts[1] == texts[2]

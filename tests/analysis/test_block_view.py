"""A block taken apart is the block that was decoded: same proposal, same acceptance, whatever the sampling."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.analysis import decode, view_block
from dflash2_mlx.device.runtime import owner
from tests.engines import tiny_engine
from tests.pairs import bootstrap_pair
from tests.runs import PROMPT
from tests.tiny import make_tiny_drafter

CODE = "import os\nimport sys\n\n\ndef main(argv=None):\n"
SAMPLINGS = {
    "greedy": d2.SamplingConfig(),
    "coupled": d2.SamplingConfig(temperature=0.8, top_p=0.9, seed=3, lossless_mode="coupled"),
    "rejection": d2.SamplingConfig(temperature=0.8, seed=3, lossless_mode="rejection"),
    "penalties": d2.SamplingConfig(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
}


@cache
def bootstrap() -> d2.Engine:
    return bootstrap_pair(target_dtype="float32")


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_block_is_the_one_that_was_decoded(name):
    engine = bootstrap()
    config = d2.GenerationConfig(max_tokens=12, mode="dflash2", block_size=6, sampling=SAMPLINGS[name])
    reply = decode(engine, CODE, config)
    at, seen = 1, 0
    for done in reply.rounds:
        view = view_block(engine, CODE, config, reply.reply[:at], width=done.width)
        assert view.proposal == done.proposal
        assert view.num_accepted == done.num_accepted
        assert (view.position, view.anchor) == (reply.prompt_tokens + at - 1, reply.reply[at - 1])
        assert view.target_tokens[: done.committed] == reply.reply[at : at + done.committed]
        assert view.width == done.width and view.selector
        at, seen = at + done.committed, seen + done.num_accepted
    assert 0 < seen < 5 * len(reply.rounds), "some drafts were right, some were not"


@pytest.mark.parametrize("family", ["qwen3_5", "llama_sliding"])
def test_states_that_cannot_be_cut_back_and_windows(family):
    engine = tiny_engine(family, owner().call(lambda: make_tiny_drafter(compiled=True)))
    config = d2.GenerationConfig(max_tokens=16, mode="dflash2", prefill_chunk=7)
    reply = decode(engine, PROMPT, config)
    at = 1
    for done in reply.rounds:
        view = view_block(engine, PROMPT, config, reply.reply[:at])
        assert (view.proposal, view.num_accepted) == (done.proposal, done.num_accepted)
        at += done.committed


def test_a_row_tells_all_there_was_to_choose_from():
    engine = bootstrap()
    config = d2.GenerationConfig(max_tokens=12, mode="dflash2")
    reply = decode(engine, CODE, config)
    view = view_block(engine, CODE, config, reply.reply[:1])
    assert engine.drafter is not None
    k = engine.drafter.config.selector_top_k
    assert len(view.rows) == engine.block_size - 1
    for row in view.rows:
        assert len(row.candidates) == len(set(row.candidates)) == len(row.logits) == k
        assert list(row.logits) == sorted(row.logits, reverse=True)
        assert row.likeliest == row.candidates[0]
        for shares in (row.probabilities, row.path_probabilities):
            assert sum(shares) == pytest.approx(1, abs=1e-5)
        own = np.exp(np.array(row.logits) - row.logits[0])
        assert row.probabilities == pytest.approx(own / own.sum(), abs=1e-6)
        # A greedy walk takes the best of what its own row offers.
        assert row.chosen == row.candidates[int(np.argmax(row.path_probabilities))]
    assert any(row.probabilities != pytest.approx(row.path_probabilities) for row in view.rows), "the selector scores"


def test_a_drafter_without_selector_takes_the_likeliest():
    drafter = owner().call(lambda: make_tiny_drafter(architectures=["DFlashDraftModel"]))
    engine = tiny_engine("qwen3", drafter)
    view = view_block(engine, PROMPT, d2.GenerationConfig(mode="dflash2"), [5])
    assert not view.selector
    for row in view.rows:
        assert row.chosen == row.likeliest and row.path_probabilities == pytest.approx(row.probabilities)


def test_what_cannot_be_shown_is_refused():
    engine, config = bootstrap(), d2.GenerationConfig()
    sampled = replace(config, sampling=d2.SamplingConfig(temperature=1.0))
    for reply, width, given, message in (
        ([], None, config, "reply: got no tokens"),
        ([10**6], None, config, "reply: got token id 1000000"),
        ([-1], None, config, "reply: got token id -1"),
        ([5], 1, config, "width: got 1, expected an integer in 2..8"),
        ([5], 9, config, "width: got 9"),
        ([5], None, sampled, "seed: got none"),
        ([5] * 10**5, None, config, "reply: got 1000"),
    ):
        with pytest.raises(d2.Dflash2Error, match=message):
            view_block(engine, CODE, given, reply, width=width)
    with pytest.raises(d2.ConfigError, match="drafter: got none"):
        view_block(tiny_engine(), PROMPT, config, [5])

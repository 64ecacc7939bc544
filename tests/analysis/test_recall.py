"""Recall on replies: what is drafted is what decoding drafts, and what is counted is counted by hand (6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.analysis import Reply, decode, measure_recall
from dflash2_mlx.analysis.recall import next_tokens
from dflash2_mlx.analysis.replies import blocks
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.sampling.acceptance import Proposal
from tests.engines import scripted_engine, tiny_engine
from tests.runs import PROMPT, lively_reply
from tests.scripted import RIGHT, WRONG, ScriptedDrafter, ramp
from tests.tiny import make_tiny_drafter

GREEDY = d2.GenerationConfig(max_tokens=20, mode="dflash2")
GAMMA = 4


class RankedDrafter(ScriptedDrafter):
    """Puts the true token of position j at rank `ranks[anchor][j]` of its candidates, or leaves it out (-1)."""

    def __init__(self, truth: Sequence[int], ranks: np.ndarray, **changes: Any):
        super().__init__(truth, RIGHT, **changes)
        self._ranks = mx.array(ranks, dtype=mx.int32)

    def propose(self, anchor: mx.array, context: Any, width: int, lender: Any, **settings: Any) -> Proposal:
        real = super().propose(anchor, context, width, lender, **settings)
        rank = self._ranks[context.length - len(PROMPT)][..., None]  # [1, N, 1]
        k = self.config.selector_top_k
        others = (real.tokens[..., None] + 1 + mx.arange(k, dtype=mx.int32)) % self.config.vocab_size
        candidates = mx.where(mx.arange(k) == rank, real.tokens[..., None], others)
        return Proposal(real.tokens, candidates, real.unary, None)


def reply_of(length: int) -> tuple[list[int], Reply]:
    """The plain reply of the tiny target, as if it had been decoded."""
    truth = [*PROMPT, *lively_reply("qwen3")[:length]]
    return truth, Reply(tuple(truth), len(PROMPT), (), d2.GenerationStats("dflash2", 5))


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "llama_sliding"])
def test_the_second_walk_drafts_what_decoding_drafted(family):
    drafter = owner().call(lambda: make_tiny_drafter(compiled=True))  # its window of 8 is long passed
    engine = tiny_engine(family, drafter)
    reply = decode(engine, PROMPT, d2.GenerationConfig(max_tokens=30, mode="dflash2"))
    assert reply.reply == lively_reply(family)[:30]

    def again() -> list[tuple[int, ...]]:
        found = []
        for anchor, context in blocks(engine.target, drafter, reply, reply.round_anchors):
            token = mx.array([reply.tokens[anchor]], dtype=mx.int32)
            found.append(tuple(drafter.propose(token, context, 5, engine.target).tokens[0].tolist()))
        return found

    assert owner().call(again) == [done.proposal for done in reply.rounds]
    assert len(reply.rounds) > 20


def test_anchors_are_where_the_rounds_began():
    engine = scripted_engine("qwen3", ramp(GAMMA))
    reply = decode(engine, PROMPT, d2.GenerationConfig(max_tokens=40, mode="dflash2"))
    begun = owner().call(engine.drafter.rounds)
    assert len(reply.round_anchors) == len(reply.rounds)
    for position, (token, length) in zip(reply.round_anchors, begun, strict=False):
        assert position == length and reply.tokens[position] == token
    assert reply.anchors == list(range(len(PROMPT), len(PROMPT) + 39))


def test_the_stop_token_is_part_of_the_reply():
    stop = lively_reply("qwen3")[9]
    first = lively_reply("qwen3").index(stop)
    engine = tiny_engine("qwen3", owner().call(make_tiny_drafter), stops=[stop])
    reply = decode(engine, PROMPT, GREEDY)
    assert reply.reply == lively_reply("qwen3")[: first + 1]


def test_labels_end_with_the_reply():
    reply = Reply((9, 1, 2, 3, 4), 2, (), d2.GenerationStats("dflash2", 4))
    labels, asked = next_tokens(reply, 4)
    assert reply.anchors == [2, 3]
    assert labels.tolist() == [[3, 4, 0], [4, 0, 0]]
    assert asked.tolist() == [[True, True, False], [True, False, False]]


@pytest.mark.parametrize(
    ("accepts", "shares"),
    [(RIGHT, [1.0] * 4), (WRONG, [0.0, None, None, None]), ([2], [1.0, 1.0, 0.0, None])],
    ids=["right", "wrong", "wrong at 3"],
)
def test_stub_drafters(accepts, shares):
    truth, reply = reply_of(20)
    engine = tiny_engine("qwen3", owner().call(lambda: ScriptedDrafter(truth, accepts)))
    found = measure_recall(engine, [reply])
    assert found.walk == shares and found.blocks == 19 and found.k == 6
    lengths = found.to_dict()
    assert lengths["length_of_walk"] == {(-1,): 5.0, (0,): 1.0, (2,): 3.0}[tuple(accepts)]


def test_recall_at_1_and_at_k_by_hand():
    truth, reply = reply_of(6)
    # One row per anchor; the third block knows only three positions, then two, then one.
    ranks = np.array([[0, 0, 5, -1], [0, 3, 0, 0], [1, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 0]])
    engine = tiny_engine("qwen3", owner().call(lambda: RankedDrafter(truth, ranks)))
    found = measure_recall(engine, [reply])
    # Five anchors: blocks reach 4, 4, 3, 2 and 1 of the tokens that follow (six tokens, the first is an anchor).
    assert found.blocks == 5
    assert found.at_1 == [3 / 5, 1 / 2, 0 / 1, None]
    assert found.at_k == [4 / 5, 3 / 3, 3 / 3, 1 / 2]
    shown = found.to_dict()
    assert shown["length_at_1"] == pytest.approx(1 + 3 / 5 + 3 / 10)
    assert shown["oracle_length"] == pytest.approx(1 + 4 / 5 + 4 / 5 + 4 / 5 + 2 / 5)


def test_shares_are_pooled_over_replies_not_averaged():
    truth, reply = reply_of(6)
    ranks = np.array([[0, 0, 5, -1], [0, 3, 0, 0], [1, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 0]])
    engine = tiny_engine("qwen3", owner().call(lambda: RankedDrafter(truth, ranks)))
    short = Reply(reply.tokens[: len(PROMPT) + 2], len(PROMPT), (), reply.stats)
    assert measure_recall(engine, [reply, short]).at_1 == [4 / 6, 1 / 2, 0 / 1, None]


def test_a_narrower_block():
    truth, reply = reply_of(12)
    engine = tiny_engine("qwen3", owner().call(lambda: ScriptedDrafter(truth, RIGHT)))
    assert measure_recall(engine, [reply], width=3).walk == [1.0, 1.0]


def test_nothing_to_measure():
    with pytest.raises(d2.ConfigError, match="drafter: got none"):
        measure_recall(tiny_engine(), [reply_of(6)[1]])
    engine = tiny_engine("qwen3", owner().call(make_tiny_drafter))
    for replies in ([], [reply_of(1)[1]]):
        with pytest.raises(d2.ConfigError, match="replies: got none"):
            measure_recall(engine, replies)

"""Where the drafter looks, against softmax in float64, of blocks that decoding really drafted (3.6, 6.3)."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.analysis import decode, measure_attention
from dflash2_mlx.analysis.attention import block_share
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.attention import DrafterAttention
from tests.drafters.test_model import VARIANTS
from tests.engines import scripted_engine, tiny_engine
from tests.reference import selector
from tests.reference.drafter import ReferenceDrafter
from tests.runs import PROMPT
from tests.tiny import HIDDEN, LAYERS, VOCAB, drafter_config, drafter_weights, make_tiny_drafter

WIDTH = 5
CHOSEN = ("published", "causal", "mixed", "narrow window")


def reference_shares(
    engine: d2.Engine, reply: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> np.ndarray:
    """[rounds, layers, heads], from the softmax of the float64 reference."""
    raw, target = drafter_config(**changes), engine.target
    weights = drafter_weights(d2.DrafterConfig.from_dict(raw))
    table, taps = owner().call(
        lambda: (
            np.array(target.embed(mx.arange(VOCAB))),
            np.array(
                target.forward(
                    mx.array([reply.tokens]), target.new_state(), taps=raw["dflash_config"]["target_layer_ids"]
                ).taps[0]
            ),
        )
    )
    arrays = {name: np.array(array) for name, array in weights.items()}
    reference = ReferenceDrafter(raw, arrays, table, np.zeros((VOCAB, HIDDEN)))
    rows: list[np.ndarray] = []
    softmax = selector.softmax

    def recorded(scores: np.ndarray) -> np.ndarray:
        rows.append(softmax(scores))
        return rows[-1]

    monkeypatch.setattr(selector, "softmax", recorded)
    layers, heads = raw["num_hidden_layers"], raw["num_attention_heads"]
    found = []
    for anchor in reply.round_anchors:
        rows.clear()
        reference.forward(taps[:anchor], reply.tokens[anchor], WIDTH)
        masses = np.array([row[-WIDTH:].sum() for row in rows]).reshape(layers, WIDTH, heads)
        found.append(masses.mean(axis=1))
    return np.array(found)


@pytest.mark.parametrize("name", CHOSEN)
def test_equals_the_reference(name, monkeypatch):
    drafter = owner().call(lambda: make_tiny_drafter(compiled=name != "mixed", **VARIANTS[name]))
    engine = tiny_engine("qwen3", drafter)
    reply = decode(engine, PROMPT, d2.GenerationConfig(max_tokens=8, mode="dflash2"))
    found = measure_attention(engine, [reply])
    want = reference_shares(engine, reply, VARIANTS[name], monkeypatch)
    assert found.rounds == len(reply.rounds) == len(want)
    np.testing.assert_allclose(found.share, want.mean(axis=0), rtol=0, atol=2e-5)
    assert np.min(found.share) > 0 and np.max(found.share) < 1
    means = found.to_dict()["by_layer"]
    assert means == pytest.approx([np.mean(heads) for heads in found.share])


def test_rounds_of_several_replies_count_alike():
    engine = tiny_engine("qwen3", owner().call(make_tiny_drafter))
    config = d2.GenerationConfig(max_tokens=9, mode="dflash2")
    replies = [decode(engine, prompt, config) for prompt in (PROMPT, [8, 1, 30])]
    each, both = [measure_attention(engine, [reply]) for reply in replies], measure_attention(engine, replies)
    total = sum(found.rounds for found in each)
    assert both.rounds == total
    want = sum(found.rounds / total * np.array(found.share) for found in each)
    np.testing.assert_allclose(both.share, want, atol=1e-6)


def test_only_blocks_that_rounds_began_with_count():
    engine = scripted_engine("qwen3", [2])
    reply = decode(engine, PROMPT, d2.GenerationConfig(max_tokens=13, mode="dflash2"))
    assert len(reply.rounds) == 4 < len(reply.anchors)
    assert measure_attention(engine, [reply]).rounds == 4


def test_the_drafter_is_left_as_it_was():
    drafter = owner().call(lambda: make_tiny_drafter(compiled=True))
    engine = tiny_engine("qwen3", drafter)
    config = d2.GenerationConfig(max_tokens=12, mode="dflash2")
    before = decode(engine, PROMPT, config)
    layers = [(layer, layer.self_attn) for layer in drafter.layers]
    measure_attention(engine, [before])
    assert all(type(layer.self_attn) is DrafterAttention and layer.self_attn is kept for layer, kept in layers)
    assert decode(engine, PROMPT, config).rounds == before.rounds


def test_mass_by_hand():
    # One row, keys at scores ln 2, 0, 0 and one that is hidden: masses 1/2, 1/4, 1/4.
    queries, keys = mx.array([[[[1.0]]]]), mx.array([[[[math.log(2)], [0.0], [0.0], [9.0]]]])
    mask = mx.array([[[[True, True, True, False]]]])
    for own, mass in (([1, 0, 0, 0], 0.5), ([0, 0, 1, 1], 0.25), ([1, 1, 1, 1], 1.0), ([0, 0, 0, 1], 0.0)):
        share = block_share(queries, keys, mask, mx.array([[[own]]], dtype=mx.bool_), scale=1.0)
        assert share.tolist() == [[[pytest.approx(mass)]]]
    halved = block_share(queries * 2, keys, mask, mx.array([[[[True, False, False, False]]]]), scale=0.5)
    assert halved.item() == pytest.approx(0.5)


def test_query_heads_share_keys_in_order():
    # Four query heads over two key heads: the first two look at the first one.
    queries, mask = mx.ones((1, 4, 1, 1)), mx.ones((1, 1, 1, 2), dtype=mx.bool_)
    keys = mx.array([[[[0.0], [0.0]], [[math.log(3)], [0.0]]]])
    share = block_share(queries, keys, mask, mx.array([[[[True, False]]]]), scale=1.0)
    np.testing.assert_allclose(share[0, :, 0], [0.5, 0.5, 0.75, 0.75], atol=1e-6)


def test_nothing_to_measure():
    engine = scripted_engine("qwen3", [0])
    alone = decode(engine, PROMPT, d2.GenerationConfig(max_tokens=1, mode="dflash2"))
    assert alone.rounds == () and LAYERS == 4
    with pytest.raises(d2.ConfigError, match="replies: got none with a round"):
        measure_attention(engine, [alone])
    with pytest.raises(d2.ConfigError, match="drafter: got none"):
        measure_attention(tiny_engine(), [alone])

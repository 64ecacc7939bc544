"""A part that is switched off does what the specification says its absence does (1, 11: T5)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.analysis import ablations, decode
from dflash2_mlx.analysis.ablation import rebuilt
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.model import DraftModel
from tests.checkpoint_files import WIDE, parameters
from tests.drafters.test_model import TABLES, V1, taps
from tests.engines import tiny_engine
from tests.runs import PROMPT
from tests.tiny import drafter_config, drafter_weights, make_tiny_drafter, save_drafter

LENGTH, WIDTH = 11, 5


def drafted(drafter: DraftModel) -> dict[str, Any]:
    """What it proposes after a certain context: greedily, and drawn without noise."""
    context = drafter.new_context()
    drafter.append_context(taps(LENGTH, drafter), context, LENGTH)
    anchor = mx.array([9], dtype=mx.int32)
    greedy = drafter.propose(anchor, context, WIDTH, TABLES)
    drawn = drafter.propose(anchor, context, WIDTH, TABLES, temperature=0.8, noise=mx.zeros_like)
    return {
        "tokens": greedy.tokens.tolist(),
        "candidates": greedy.candidates.tolist(),
        "unary": np.array(greedy.unary),
        "q": np.array(drawn.q),
    }


def changed(change: Any, **changes: Any) -> DraftModel:
    """A drafter of the usual weights after `change(name, array)`."""
    config = d2.DrafterConfig.from_dict(drafter_config(**changes))
    model = DraftModel(config)
    model.load_weights([(name, change(name, array)) for name, array in drafter_weights(config).items()])
    return model


def same(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine["tokens"] == theirs["tokens"] and mine["candidates"] == theirs["candidates"]
    for part in ("unary", "q"):
        np.testing.assert_allclose(mine[part], theirs[part], rtol=0, atol=2e-5)


def identity_conv(name: str, array: mx.array) -> mx.array:
    if name.endswith("base_kernel"):
        return mx.concatenate([mx.ones_like(array[:, :1]), mx.zeros_like(array[:, 1:])], axis=1)
    return mx.zeros_like(array) if "kernel_projection" in name else array


def silent_selector(name: str, array: mx.array) -> mx.array:
    return mx.zeros_like(array) if name.endswith("successor_codebook") else array


PREPARED = pytest.mark.parametrize("prepared", [False, True], ids=["plain", "prepared"])


@PREPARED
def test_convolution_off_is_an_identity_convolution(prepared):
    drafter = make_tiny_drafter(compiled=prepared)
    off = rebuilt(drafter, conv=False)
    assert off.prepared == prepared
    same(drafted(off), drafted(changed(identity_conv)))
    assert drafted(off)["tokens"] != drafted(drafter)["tokens"]


@PREPARED
def test_selector_off_takes_the_likeliest_token_of_each_row(prepared):
    drafter = make_tiny_drafter(compiled=prepared)
    found = drafted(rebuilt(drafter, selector=False))
    same(found, drafted(changed(silent_selector)))
    assert found["tokens"] == [[row[0] for row in found["candidates"][0]]]
    with_selector = drafted(drafter)
    assert found["candidates"] == with_selector["candidates"]
    assert not np.allclose(found["q"], with_selector["q"], atol=0.05)


@PREPARED
def test_both_off_is_a_dflash_drafter(prepared):
    drafter = make_tiny_drafter(compiled=prepared)
    config = d2.DrafterConfig.from_dict(drafter_config(**V1))
    plain = DraftModel(config)
    plain.load_weights([(name, array) for name, array in parameters(drafter).items() if name in parameters(plain)])
    found = rebuilt(drafter, conv=False, selector=False)
    same(drafted(found), drafted(plain))
    assert set(parameters(found)) == set(parameters(plain))


@PREPARED
def test_nothing_off_changes_nothing_and_the_loaded_drafter_stays(prepared):
    drafter = make_tiny_drafter(compiled=prepared)
    before, held = drafted(drafter), parameters(drafter)
    same(drafted(rebuilt(drafter)), before)
    for parts in ((False, True), (True, False), (False, False)):
        drafted(rebuilt(drafter, conv=parts[0], selector=parts[1]))
    after = drafted(drafter)
    assert after["tokens"] == before["tokens"]
    np.testing.assert_array_equal(after["unary"], before["unary"])
    assert all(array is held[name] for name, array in parameters(drafter).items()), "no weight was copied or moved"


def test_a_quantized_drafter(tmp_path):
    drafter = d2.load_drafter(save_drafter(tmp_path, **WIDE), draft_bits=4, draft_group_size=32)
    off = owner().call(lambda: rebuilt(drafter, conv=False, selector=False))
    assert off.layers[0].mlp.up_proj is drafter.layers[0].mlp.up_proj and off.layers[0].mlp.up_proj.bits == 4


@pytest.mark.parametrize(
    ("changes", "names"),
    [({}, ["selector off", "convolution off", "both off"]), (V1, [])],
    ids=["v2", "v1"],
)
def test_only_what_is_there_can_be_off(changes, names):
    engine = tiny_engine("qwen3", owner().call(lambda: make_tiny_drafter(**changes)))
    assert list(ablations(engine)) == names
    assert ablations(tiny_engine()) == {}


def test_replies_stay_the_targets():
    engine = tiny_engine("qwen3", owner().call(lambda: make_tiny_drafter(compiled=True)))
    config = d2.GenerationConfig(max_tokens=16, mode="dflash2")
    replies = {name: decode(each, PROMPT, config) for name, each in {"full": engine, **ablations(engine)}.items()}
    assert len({reply.tokens for reply in replies.values()}) == 1
    assert len({tuple(done.proposal for done in reply.rounds) for reply in replies.values()}) == 4

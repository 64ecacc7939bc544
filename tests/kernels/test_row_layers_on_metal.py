"""Whole replies with the products of every quantized layer run as Metal text, by the emulator where there is no Metal.

The target's 4-bit layers, a quantized drafter's and the head; few rows and few tokens: a pass of eight rows of the
embedded pair makes some eighty products, and takes a second.
"""

from __future__ import annotations

import importlib

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.chips import read_chip
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.engine import Engine
from dflash2_mlx.kernels import qmm_rows
from dflash2_mlx.kernels.dispatch import KERNELS, OPT_IN, dispatcher
from dflash2_mlx.layers.quantized import RowsEmbedding, RowsLinear, row_layers
from dflash2_mlx.targets.registry import make_target
from tests.engines import tiny_engine
from tests.runs import PROMPT, lively_model, slow_unless, target_config
from tests.tiny import make_tiny_drafter

from .test_decoder_on_metal import assert_all_ran, replies

TEXT = [31, 28, 270]  # "85 =", without the template's many rows
load_module = importlib.import_module("dflash2_mlx.engine")  # the package has a function of that name
PAIR = ("qmm_rows", "qmm_rows_mma")


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bool]]:
    """An M4's choices, and which (form, rows, compiled or stock) were made for 2 rows and more."""
    made = []
    run = qmm_rows._run

    def note(form: str, call: object, x: mx.array, packed: qmm_rows.Packed) -> mx.array:
        made.append((form, x.size // x.shape[-1]))
        return run(form, call, x, packed)

    monkeypatch.setattr(qmm_rows, "this_chip", lambda: read_chip("applegpu_g16s"))
    monkeypatch.setattr(qmm_rows, "_run", note)
    return made


def config(**changes: object) -> d2.GenerationConfig:
    return d2.GenerationConfig(**{"max_tokens": 8, "stop_token_ids": (), **changes})


def tiny(kind: str = "4bit", *, quantized: bool = True, exact: bool = False, family: str = "qwen3_5") -> Engine:
    drafter = make_tiny_drafter(vocab_size=211)
    if quantized:
        nn.quantize(drafter, group_size=32, bits=8, class_predicate=lambda path, _: path.endswith("_proj"))
    drafter.compile_for_inference()
    target = make_target(lively_model.__wrapped__(family, kind), target_config(family), exact=exact)
    return tiny_engine(family, drafter, target=target)


def test_the_embedded_pair(forms, request, monkeypatch):
    # Loading would run blocks ahead of the first reply, which says no more than the reply.
    monkeypatch.setattr(load_module, "_warm_up_target", lambda *_: None)
    monkeypatch.setattr(DraftModel, "warm_up", lambda *_: None)
    asked, few = config(max_tokens=2), config(max_tokens=2, mode="plain")
    want = replies(d2.load("mini"), TEXT, [asked])
    request.getfixturevalue("metal")
    engine = d2.load("mini", exactness="exact")
    assert engine.exactness == "exact"
    assert replies(engine, TEXT, [asked]) == want
    unused = ("qmm_rows_mma", "gated_delta_verify", "accept", *OPT_IN)  # a dense target, greedy
    assert_all_ran(tuple(name for name in KERNELS if name not in unused))
    # Blocks of 8 at the target; the drafter's 7 rows at the target's head.
    assert {form for form, _ in forms} == {"tile"} and {rows for _, rows in forms} >= {7, 8}
    assert replies(engine, TEXT, [few]) == want
    assert {form for form, _ in forms} == {"tile"} and 1 in {rows for _, rows in forms}


@pytest.mark.parametrize("family", ["qwen3_5", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_tiny_pairs_with_quantized_drafters(forms, request, family):
    sampling = d2.SamplingConfig(temperature=0.8, seed=5)
    wanted = [config(max_tokens=6), config(max_tokens=4, block_size=3, sampling=sampling)]
    want = replies(owner().call(lambda: tiny(family=family)), PROMPT, wanted)
    request.getfixturevalue("metal")
    # Both kernels: races whose winner is the matrix units, for blocks of 5.
    engine = owner().call(lambda: tiny(family=family))
    layers = [layer for _, layer in row_layers(engine.target.text_model)]
    assert len(layers) > 20 and all(isinstance(layer, RowsLinear | RowsEmbedding) for layer in layers)
    x = mx.zeros((5, 64))
    dispatcher().adopt({("qmm_rows", layer.packed().product(x).key): "matrix" for layer in layers})
    assert replies(engine, PROMPT, wanted) == want
    assert_all_ran(PAIR)
    assert {"tile", "matrix"} <= {form for form, _ in forms}


@pytest.mark.parametrize("family", [slow_unless(False, "qwen3"), "qwen3_5", "llama_sliding"])
def test_exact_passes_have_the_same_bits_in_blocks_and_one_by_one(metal, forms, family):
    """Whatever the passes, the spare room of the buffers, and when a sliding layer's buffer drops rows."""
    target = owner().call(lambda: tiny(exact=True, family=family)).target
    ids = mx.array([[*PROMPT, *(7 * number % 211 for number in range(211))]], dtype=mx.int32)
    prompt = 200  # more keys than a part of the usual kind has

    def logits(*passes: tuple[int, int], room: int, known: int) -> np.ndarray:
        """Of the last rows, by passes of (rows, rows of which are kept); the host knows every `known` rows."""
        state, at, found = target.new_state(), 0, []
        for rows, kept in ((prompt, prompt), *passes):  # a prompt's long chunk is MLX's in any case
            state.upper += room
            out = target.forward(ids[:, at : at + rows], state)
            state.upper -= room
            target.commit(state, kept if rows == prompt else mx.array([kept]))
            found.append(np.array(out.logits[0, :kept]))
            at += kept
            if at % known == 0:
                state.forget_future(at)
                state.trim()
        return np.concatenate(found[1:])

    want = logits(*[(1, 1)] * 6, room=0, known=1)
    for passes, room, known in ((((5, 2), (8, 4)), 0, 206), (((2, 1), (6, 2), (8, 3)), 4200, 203)):
        np.testing.assert_array_equal(logits(*passes, room=room, known=known), want)
    assert {form for form, _ in forms} <= {"tile", "stock"} and dispatcher().notes() == []
    tested = {state.name for state in dispatcher().states() if state.tested}
    assert tested - {"norm_rope"} >= {"qmm_rows", "few_row_attention"}
    assert ("gated_delta_verify" in tested) is (family == "qwen3_5")

"""The whole drafter against the float64 reference, in every variant a config can ask for (3.1-3.9; CK-7b)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.kernels.select_walk import neighbour_edges
from tests.reference.drafter import ReferenceDrafter
from tests.tiny import HIDDEN, VOCAB, drafter_config, drafter_weights, make_tiny_drafter

TOLERANCE = 2e-5
HEAD_ROWS = VOCAB + 5  # an engine may pad the head; those rows hold large logits here


class Tables:
    """Embedding and head, as a target lends them."""

    def __init__(self) -> None:
        keys = mx.random.split(mx.random.key(77), 2)
        self.embedding = mx.random.normal((HEAD_ROWS, HIDDEN), key=keys[0])
        self.matrix = mx.random.normal((HEAD_ROWS, HIDDEN), key=keys[1]) / 4
        self.matrix[VOCAB:] = 50.0

    def embed(self, ids: mx.array) -> mx.array:
        return self.embedding[ids]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self.matrix.T


TABLES = Tables()
FULL, SLIDING = "full_attention", "sliding_attention"
V1 = {"architectures": ["DFlashDraftModel"]}
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "causal": {"is_causal": True},
    "full": {"layer_types": [FULL, FULL]},
    "full causal": {"layer_types": [FULL, FULL], "is_causal": True},
    "mixed": {"layer_types": [SLIDING, FULL]},
    "no layer types": {"layer_types": None},
    "narrow window": {"sliding_window": 3},
    "wide window": {"sliding_window": 40},
    "multiplier": {"output_multiplier": 0.196},
    "softcap": {"final_logit_softcapping": 2.0},
    "multiplier and softcap": {"output_multiplier": 3.0, "final_logit_softcapping": 2.5},
    "embedding scale": {"input_embedding_scale": 3.5},
    "one tap": {"target_layer_ids": [3]},
    "four taps": {"target_layer_ids": [0, 1, 2, 3]},
    "three conv taps": {"conv_kernel_size": 3},
    "one conv tap": {"conv_kernel_size": 1},
    "five conv taps": {"conv_kernel_size": 5},
    "conv groups of one": {"conv_group_size": 1},
    "one conv group": {"conv_group_size": HIDDEN},
    "one layer": {"num_hidden_layers": 1, "layer_types": [SLIDING]},
    "three layers": {"num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING]},
    "one kv head": {"num_key_value_heads": 1},
    "no sharing of kv heads": {"num_key_value_heads": 4},
    "top-k 5": {"selector_top_k": 5},
    "top-k 1": {"selector_top_k": 1},
    "rope base": {"rope_parameters": {"rope_theta": 1e7}},
    "eps": {"rms_norm_eps": 0.3},
    "v1, absent causality": {**V1, "is_causal": None, "layer_types": [SLIDING, FULL]},
    "v1, stated causality": {**V1, "is_causal": False, "layer_types": [SLIDING, FULL]},
}
# One of every kind of difference, for what is slow to compile.
SOME = ["published", "mixed", "causal", "multiplier and softcap", "three conv taps", "v1, absent causality"]


def reference(**changes: Any) -> ReferenceDrafter:
    raw = drafter_config(**changes)
    weights = drafter_weights(DrafterConfig.from_dict(raw))
    return ReferenceDrafter(raw, weights, np.array(TABLES.embedding), np.array(TABLES.matrix))


def taps(rows: int, model: DraftModel) -> mx.array:
    return mx.random.normal((1, rows, HIDDEN * len(model.config.target_layer_ids)), key=mx.random.key(rows))


def check(model: DraftModel, theirs: ReferenceDrafter, rows: int, width: int, anchor: int, pieces: list[int]) -> None:
    context, hidden_rows, start = model.new_context(), taps(rows, model), 0
    for piece in pieces:
        model.append_context(hidden_rows[:, start : start + piece], context, piece)
        start += piece
    assert start == rows
    ids = mx.array([anchor], dtype=mx.int32)
    want = theirs.forward(np.array(hidden_rows[0]), anchor, width)
    hidden = model.hidden(model.block_embeddings(ids, width, TABLES), context)
    assert hidden.shape == (1, width, HIDDEN)
    np.testing.assert_allclose(hidden[0], want.hidden, rtol=0, atol=TOLERANCE)
    logits = model.scale_logits(TABLES.head(hidden[:, 1:]))
    assert logits.dtype == mx.float32
    np.testing.assert_allclose(logits[0, :, :VOCAB], want.logits, rtol=0, atol=TOLERANCE)
    proposal = model.propose(ids, context, width, TABLES)
    assert proposal.q is None
    np.testing.assert_array_equal(proposal.tokens[0], theirs.greedy_proposal(want, anchor))
    kept = np.take_along_axis(want.logits, np.array(proposal.candidates[0]), axis=-1)
    np.testing.assert_allclose(proposal.unary[0], kept, rtol=0, atol=TOLERANCE)
    assert int(proposal.candidates.max()) < VOCAB, "a padding row of the head was picked"


# Context rows, width, pieces the context comes in: below, at and beyond the window of 8.
CASES = [(1, 5, [1]), (7, 5, [3, 4]), (19, 5, [10, 1, 8]), (19, 2, [19])]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(name):
    model, theirs = make_tiny_drafter(**VARIANTS[name]), reference(**VARIANTS[name])
    for number, (rows, width, pieces) in enumerate(CASES):
        check(model, theirs, rows, width, anchor=20 + number, pieces=pieces)


@pytest.mark.parametrize("name", SOME)
def test_compiled_is_the_same(name):
    model, theirs = make_tiny_drafter(compiled=True, **VARIANTS[name]), reference(**VARIANTS[name])
    for number, (rows, width, pieces) in enumerate(CASES[2:]):
        check(model, theirs, rows, width, anchor=20 + number, pieces=pieces)


@pytest.mark.parametrize("name", ["published", "multiplier and softcap", "top-k 5"])
@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_sampled_proposals(name, temperature):
    model, theirs = make_tiny_drafter(**VARIANTS[name]), reference(**VARIANTS[name])
    rows, anchor = 11, 30
    context, hidden_rows = model.new_context(), taps(rows, model)
    model.append_context(hidden_rows, context, rows)
    gumbels = np.random.default_rng(5).gumbel(size=(4, VOCAB))
    proposal = model.propose(
        mx.array([anchor]),
        context,
        5,
        TABLES,
        temperature=temperature,
        noise=lambda ids: mx.take_along_axis(mx.array(gumbels, dtype=mx.float32)[None], ids, axis=-1),
    )
    want = theirs.propose(theirs.forward(np.array(hidden_rows[0]), anchor, 5), anchor, temperature, gumbels=gumbels)
    np.testing.assert_array_equal(proposal.candidates[0], want.candidates)
    np.testing.assert_array_equal(proposal.tokens[0], want.tokens)
    np.testing.assert_allclose(proposal.q[0], want.q, rtol=0, atol=1e-4)
    np.testing.assert_allclose(proposal.q.sum(axis=-1), 1.0, atol=1e-6)


def test_a_proposal_leaves_no_trace():
    # Block rows are written past the context and must be as if never seen.
    model = make_tiny_drafter()
    one, two = (model.new_context() for _ in range(2))
    rows = taps(9, model)
    for context in (one, two):
        model.append_context(rows[:, :5], context, 5)
    first = model.propose(mx.array([3]), one, 5, TABLES).tokens
    mx.eval(first, model.propose(mx.array([8]), one, 5, TABLES).tokens)
    np.testing.assert_array_equal(model.propose(mx.array([3]), one, 5, TABLES).tokens, first)
    for context in (one, two):
        model.append_context(rows[:, 5:], context, 4)
    block = model.block_embeddings(mx.array([3]), 5, TABLES)
    np.testing.assert_array_equal(model.hidden(block, one), model.hidden(block, two))


def test_t5_identity_gives_the_version_1_drafter():
    config = DrafterConfig.from_dict(drafter_config())
    weights = drafter_weights(config)
    for name, array in weights.items():
        if name.endswith("base_kernel"):
            weights[name] = mx.zeros_like(array).at[:, 0].add(1.0)
        elif name.endswith(("kernel_projection.weight", "successor_codebook")):
            weights[name] = mx.zeros_like(array)
    second = DraftModel(config)
    second.load_weights(list(weights.items()))
    first = make_tiny_drafter(**V1)
    first.load_weights([(n, w) for n, w in weights.items() if "conv" not in n and "selector" not in n])
    outcomes = []
    for model in (first, second):
        context = model.new_context()
        model.append_context(taps(11, model), context, 11)
        hidden = model.hidden(model.block_embeddings(mx.array([9]), 5, TABLES), context)
        logits = TABLES.head(hidden[:, 1:])[..., :VOCAB]
        tokens = model.propose(mx.array([9]), context, 5, TABLES).tokens
        np.testing.assert_array_equal(tokens, mx.argmax(logits, axis=-1))
        outcomes.append(hidden)
    np.testing.assert_array_equal(*outcomes)


def test_bfloat16_drafter_keeps_scores_in_float32():
    config = DrafterConfig.from_dict(drafter_config(final_logit_softcapping=5.0))
    model = DraftModel(config)
    model.load_weights([(name, array.astype(mx.bfloat16)) for name, array in drafter_weights(config).items()])
    context = model.new_context()
    model.append_context(taps(11, model), context, 11)
    proposal = model.propose(mx.array([9]), context, 5, TABLES, temperature=1.0, noise=mx.zeros_like)
    assert proposal.unary.dtype == proposal.q.dtype == mx.float32
    assert model.hidden(model.block_embeddings(mx.array([9]), 5, TABLES), context).dtype == mx.bfloat16


def test_an_anchor_beyond_the_codebook_stays_in_bounds():
    # The target may have more tokens than the drafter's vocabulary; MLX would read past the table.
    model = make_tiny_drafter(vocab_size=50)
    hidden = mx.random.normal((1, 4, HIDDEN), key=mx.random.key(3))
    candidates = mx.broadcast_to(mx.arange(6, dtype=mx.int32), (1, 4, 6))
    module = model.candidate_selector
    books = (module.predecessor_codebook, module.successor_codebook)
    edges = [neighbour_edges(candidates, module.gate(hidden), mx.array([anchor]), *books) for anchor in (49, 50, 210)]
    np.testing.assert_array_equal(edges[1], edges[0])
    np.testing.assert_array_equal(edges[2], edges[0])

"""metal/select_walk.metal, fed by metal/top_candidates.metal, against the scalar walk and the twins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.select_walk import edge_scores, select_walk, select_walk_call
from dflash2_mlx.kernels.top_candidates import top_candidates, top_candidates_call

from .test_select_walk import SHAPES, T2, Inputs, random_inputs

# No candidate near the block's edge is left out: three blocks of ids.
MANY_BLOCKS = (2, 3, 20011, 20, 16)


@dataclass
class Result:
    """What the two kernels return, as NumPy arrays: tokens [B, N]; candidates, unary, q [B, N, K]."""

    tokens: np.ndarray
    candidates: np.ndarray
    unary: np.ndarray
    q: np.ndarray


def walk_arguments(
    inputs: Inputs,
    lists: list[mx.array],
    candidates: mx.array,
    temperature: float,
    dtype: mx.Dtype = mx.float32,
    multiplier: float = 1.0,
    cap: float = 0.0,
) -> list[mx.array]:
    batch, positions, _ = inputs.logits.shape
    settings = mx.array([temperature, multiplier, cap], dtype=mx.float32)
    noise = settings
    if temperature > 0:
        noise = mx.take_along_axis(mx.array(inputs.gumbels, dtype=mx.float32), candidates, axis=-1)
    tables = [mx.array(a, dtype=mx.float32).astype(dtype) for a in (inputs.gates, inputs.predecessor, inputs.successor)]
    lists = [array.reshape(batch, positions, *array.shape[1:]) for array in lists]
    return [*lists, *tables, mx.array(inputs.anchors), settings, noise]


def run(on_metal, inputs: Inputs, k: int, temperature: float = 0.0, *, rules=(), **settings) -> Result:
    """Both kernels, as in a draft pass. `rules`: keyword arguments of `on_metal`."""
    rules = dict(rules)
    logits = mx.array(inputs.logits, dtype=mx.float32)
    flat = logits.reshape(-1, logits.shape[-1])
    lists = on_metal(top_candidates_call(flat.shape, k, flat.shape[1]), [flat], **rules)
    candidates, _ = top_candidates(logits, k)
    arguments = walk_arguments(inputs, lists, candidates, temperature, **settings)
    call = select_walk_call(arguments[0].shape, inputs.gates.shape[-1], temperature > 0)
    return Result(*map(np.array, on_metal(call, arguments, **rules)))


def check(got: Result, inputs: Inputs, k: int, temperature: float = 0.0) -> None:
    """Against the scalar walk, sequence by sequence."""
    for row in range(len(inputs.logits)):
        want = inputs.theirs(row, k, temperature)
        np.testing.assert_array_equal(got.candidates[row], want.candidates)
        np.testing.assert_array_equal(got.tokens[row], want.tokens)
        logits = np.take_along_axis(inputs.logits[row], want.candidates, axis=-1)
        np.testing.assert_allclose(got.unary[row], logits, rtol=1e-6, atol=1e-6)
        if temperature:
            np.testing.assert_allclose(got.q[row], want.q, rtol=2e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(got.q[row], want.candidates == want.tokens[:, None])


@pytest.mark.parametrize("shape", [*SHAPES, MANY_BLOCKS])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.7])
def test_equals_the_scalar_walk(on_metal, shape, temperature):
    batch, positions, vocab, rank, k = shape
    inputs = random_inputs(batch, positions, vocab, rank, seed=positions)
    check(run(on_metal, inputs, k, temperature), inputs, k, temperature)


@pytest.mark.parametrize("positions", range(1, 17))
def test_every_number_of_positions(on_metal, positions):
    inputs = random_inputs(2, positions, 50, 40, seed=positions)
    for temperature in (0.0, 0.8):
        check(run(on_metal, inputs, 16, temperature, rules={"seed": positions}), inputs, 16, temperature)


def test_more_positions_than_memory_was_first_reserved_for(on_metal):
    inputs = random_inputs(1, 19, 30, 8, seed=0)
    check(run(on_metal, inputs, 16), inputs, 16)


def test_more_candidates_than_simdgroups(on_metal):
    inputs = random_inputs(1, 4, 60, 33, seed=1)
    for k in (17, 32):
        for temperature in (0.0, 1.0):
            check(run(on_metal, inputs, k, temperature), inputs, k, temperature)


@pytest.mark.parametrize("seed", range(12))
def test_equal_scores_go_to_the_candidate_listed_first(on_metal, seed):
    # Whole numbers everywhere: exact in float32, and full of ties.
    inputs = random_inputs(2, 7, 30, 3, seed, whole=True)
    check(run(on_metal, inputs, 5, rules={"seed": seed}), inputs, 5)


def test_equal_noisy_scores_go_to_the_candidate_listed_first(on_metal):
    inputs = random_inputs(2, 7, 30, 3, 4, whole=True)
    inputs.gumbels = np.round(inputs.gumbels)
    check(run(on_metal, inputs, 8, 1.0), inputs, 8, 1.0)


def test_equal_logits_and_scores_go_to_the_lower_id(on_metal):
    inputs = random_inputs(1, 3, 9, 2, 0)
    inputs.logits[:] = 0.5
    inputs.successor[:] = 0
    assert run(on_metal, inputs, 4).tokens.tolist() == [[0, 0, 0]]


def test_equal_logits_of_several_blocks_go_to_the_lower_ids(on_metal):
    inputs = random_inputs(1, 3, 20011, 4, 2, whole=True)
    inputs.logits[0, 1] = 0
    inputs.logits[0, 2] = np.minimum(inputs.logits[0, 2], 4)  # the largest one in every block
    check(run(on_metal, inputs, 16), inputs, 16)


def test_t2(on_metal):
    greedy = run(on_metal, T2, 3)
    assert greedy.candidates.tolist() == [[[0, 1, 4], [1, 2, 3]]]
    assert greedy.tokens.tolist() == [[4, 3]]
    for temperature, first in ((1.0, [0.039113, 0.175290, 0.785597]), (0.5, [0.002356, 0.047314, 0.950330])):
        np.testing.assert_allclose(run(on_metal, T2, 3, temperature).q[0, 0], first, atol=5e-7)


def test_q_is_that_of_the_token_visited_not_of_the_best(on_metal):
    inputs = random_inputs(1, 4, 12, 5, 3)
    inputs.gumbels[:] = 1000.0 * ((np.arange(12) * 7) % 12)
    got = run(on_metal, inputs, 4, 1.0)
    check(got, inputs, 4, 1.0)
    assert got.tokens[0].tolist() != inputs.theirs(0, 4).tokens.tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e3])
def test_extreme_temperatures(on_metal, temperature):
    inputs = random_inputs(2, 7, 40, 20, seed=5)
    got = run(on_metal, inputs, 16, temperature)
    check(got, inputs, 16, temperature)
    np.testing.assert_allclose(got.q.sum(axis=-1), 1, rtol=1e-6)


def test_an_anchor_beyond_the_codebook_counts_as_its_last_row(on_metal):
    inputs = random_inputs(2, 5, 30, 20, seed=6)
    got = run(on_metal, replace(inputs, anchors=np.array([30, 500], dtype=np.int32)), 5)
    check(got, replace(inputs, anchors=np.array([29, 29], dtype=np.int32)), 5)


@pytest.mark.parametrize("cap", [0.0, 3.0])
def test_logits_are_multiplied_and_capped_before_they_are_scored(on_metal, cap):
    inputs = random_inputs(2, 6, 40, 20, seed=7)
    got = run(on_metal, inputs, 6, 0.9, multiplier=0.25, cap=cap)
    scaled = inputs.logits * 0.25
    check(got, replace(inputs, logits=cap * np.tanh(scaled / cap) if cap else scaled), 6, 0.9)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_narrow_codebooks_are_computed_in_float32(on_metal, dtype, temperature):
    inputs = random_inputs(2, 7, 200, 256, seed=8)
    got = run(on_metal, inputs, 16, temperature, dtype=dtype)
    narrow = {name: getattr(inputs, name) for name in ("gates", "predecessor", "successor")}
    narrow = {name: np.array(mx.array(a).astype(dtype).astype(mx.float32)) for name, a in narrow.items()}
    check(got, replace(inputs, **narrow), 16, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_equals_the_twins(on_metal, temperature):
    inputs = random_inputs(3, 7, 300, 40, seed=9)
    got = run(on_metal, inputs, 16, temperature)
    candidates, unary = top_candidates(mx.array(inputs.logits, dtype=mx.float32), 16)
    gates, predecessor, successor = (
        mx.array(a, dtype=mx.float32) for a in (inputs.gates, inputs.predecessor, inputs.successor)
    )
    first = mx.broadcast_to(mx.array(inputs.anchors)[:, None, None], (3, 1, 16))
    left = mx.concatenate([first, candidates[:, :-1]], axis=1)
    edges = edge_scores(predecessor[left], gates, successor[candidates])
    noise = mx.take_along_axis(mx.array(inputs.gumbels, dtype=mx.float32), candidates, axis=-1)
    want = select_walk(candidates, unary, edges, temperature=temperature, noise=noise if temperature else None)
    np.testing.assert_array_equal(got.candidates, candidates)
    np.testing.assert_array_equal(got.unary, unary)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    if temperature:
        np.testing.assert_allclose(got.q, want.q, rtol=2e-5, atol=1e-6)


def test_lists_that_are_merged_already(on_metal):
    # As a caller does whose noise depends on the candidates.
    inputs = random_inputs(2, 5, 20011, 20, seed=10)
    candidates, unary = top_candidates(mx.array(inputs.logits, dtype=mx.float32), 16)
    lists = [array.reshape(10, 1, 16) for array in (unary, candidates)]
    arguments = walk_arguments(inputs, lists, candidates, 1.2)
    got = on_metal(select_walk_call(arguments[0].shape, 20, True), arguments)
    check(Result(*map(np.array, got)), inputs, 16, 1.2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(2, 3, 30, 20, 5), (1, 2, 9000, 33, 16)])
def test_when_products_are_fused(on_metal, shape, temperature):
    batch, positions, vocab, rank, k = shape
    inputs = random_inputs(batch, positions, vocab, rank, seed=positions)
    check(run(on_metal, inputs, k, temperature, rules={"fused": True}), inputs, k, temperature)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_rule_of_memory_is_broken(on_metal, temperature, sanitizer):
    inputs = random_inputs(2, 4, 40, 20, seed=11)
    for k in (5, 16):
        got = run(on_metal, inputs, k, temperature, rules={"sanitizer": sanitizer})
        check(got, inputs, k, temperature)


@pytest.mark.parametrize("sampled", [False, True])
def test_address_spaces(on_metal, sampled):
    # One position with one candidate: all small inputs are `constant`; then a usual shape.
    for batch, positions, vocab, rank, k in ((1, 1, 2, 3, 1), (2, 7, 40, 20, 16)):
        inputs = random_inputs(batch, positions, vocab, rank, seed=12)
        lists = [mx.zeros((batch * positions, 1, k)), mx.zeros((batch * positions, 1, k), dtype=mx.int32)]
        candidates = lists[1].reshape(batch, positions, k)
        arguments = walk_arguments(inputs, lists, candidates, float(sampled))
        on_metal.check_address_spaces(select_walk_call(arguments[0].shape, rank, sampled), arguments)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_threads(on_metal, seed):
    inputs = random_inputs(2, 15, 40000, 256, seed=seed)
    for temperature in (0.0, 0.6):
        rules = {"seed": seed}
        check(run(on_metal, inputs, 16, temperature, rules=rules), inputs, 16, temperature)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_rule_of_memory_is_broken_at_the_usual_shape(on_metal, sanitizer):
    inputs = random_inputs(1, 7, 20011, 256, seed=13)
    for temperature in (0.0, 1.0):
        got = run(on_metal, inputs, 16, temperature, rules={"sanitizer": sanitizer})
        check(got, inputs, 16, temperature)

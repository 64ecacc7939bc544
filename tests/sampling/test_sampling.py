"""Logits to probabilities against the float64 reference, in the one order of filters (CK-13, CK-14)."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx import SamplingConfig
from dflash2_mlx.sampling.acceptance import Proposal
from dflash2_mlx.sampling.logits import TokenHistory, bias_vector, log_probabilities, process_logits, token_log_probs
from dflash2_mlx.sampling.sampler import TokenChooser, gather_log_probs
from tests.reference import sampling as reference

V = 40
ROWS = 100
PENALTIES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 1.2},
    {"presence_penalty": -1.0},
    {"frequency_penalty": 0.6},
    {"frequency_penalty": -2.0},
    {"logit_bias": {0: 5.0, 39: -100.0, 7: 0.25}},
    {"repetition_penalty": 1.5, "presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": {3: -2.0, 4: 2.0}},
]
FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": V},
    {"top_k": 1000},
    {"top_p": 0.05},
    {"top_p": 0.7},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 0.5},
    {"min_p": 1.0},
    {"top_k": 7, "top_p": 0.8},
    {"top_k": 7, "min_p": 0.2},
    {"top_p": 0.9, "min_p": 0.1},
    {"top_k": 9, "top_p": 0.85, "min_p": 0.05},
]
TEMPERATURES = [0.3, 1.0, 2.0]


def logits(*shape: int, seed: int = 0) -> mx.array:
    return 3 * mx.random.normal(shape, key=mx.random.key(seed))


def probabilities(rows: mx.array, **settings: Any) -> np.ndarray:
    return np.exp(np.array(log_probabilities(rows, SamplingConfig(**settings)), dtype=np.float64))


# Bias and penalties.


@pytest.mark.parametrize("settings", PENALTIES)
def test_penalties_of_a_block_see_the_proposal_up_to_their_row(settings):
    rng = np.random.default_rng(4)
    prompt, generated = rng.integers(0, V, 8).tolist(), rng.integers(0, V, 30).tolist()
    proposal = [*generated[:2], *rng.integers(0, V, 4).tolist(), generated[0]]
    config = SamplingConfig(**settings)
    chooser = TokenChooser(config, V, seed=1, prompt=prompt)
    chooser.record(mx.array([generated]), mx.array([len(generated)]))
    rows = logits(1, len(proposal) + 1, V)
    offered = Proposal(mx.array([proposal]), mx.zeros((1, 7, 2), dtype=mx.int32), mx.zeros((1, 7, 2)), None)
    _, processed = chooser.choose(rows, mx.array([40]), offered)
    assert processed.dtype == mx.float32
    for row in range(len(proposal) + 1):
        want = reference.penalise(np.array(rows[0, row]), prompt, [*generated, *proposal[:row]], **settings)
        np.testing.assert_allclose(processed[0, row], want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("settings", PENALTIES)
def test_penalties_token_by_token(settings):
    prompt, rng = [5, 6, 6, 7], np.random.default_rng(9)
    chooser = TokenChooser(SamplingConfig(**settings), V, seed=1, prompt=prompt)
    generated: list[int] = []
    for step in range(12):
        rows = logits(1, 1, V, seed=step)
        _, processed = chooser.choose(rows, mx.array([3 + step]), None)
        want = reference.penalise(np.array(rows[0, 0]), prompt, generated, **settings)
        np.testing.assert_allclose(processed[0, 0], want, rtol=0, atol=2e-5)
        generated.append(int(rng.integers(0, 9)))
        chooser.record(mx.array([[generated[-1], 30, 31]]), mx.array([1]))  # only the first counts


def test_repetition_penalty_pushes_down_on_both_sides_of_zero():
    rows = mx.array([[[2.0, -2.0, 2.0, -2.0, 0.0]]])
    seen = mx.array([[True, True, False, False, True]])
    config = SamplingConfig(repetition_penalty=2.0)
    got = process_logits(rows, config, in_prompt=seen, counts=mx.zeros((1, 1, 5), dtype=mx.int32))
    assert got.tolist() == [[[1.0, -4.0, 2.0, -2.0, 0.0]]]


def test_presence_and_frequency_look_at_the_reply_only():
    chooser = TokenChooser(SamplingConfig(presence_penalty=1.0, frequency_penalty=0.5), 4, seed=0, prompt=[0, 0, 1])
    chooser.record(mx.array([[1, 2, 2]]), mx.array([3]))
    _, processed = chooser.choose(mx.zeros((1, 1, 4)), mx.array([5]), None)
    assert processed.tolist() == [[[0.0, -1.5, -2.0, 0.0]]]


def test_prompt_tokens_the_head_does_not_know_are_left_out():
    # They would be written past the end of the array.
    chooser = TokenChooser(SamplingConfig(repetition_penalty=2.0), 4, seed=0, prompt=[1, 4, 900])
    assert chooser.history.in_prompt.tolist() == [[False, True, False, False]]
    assert TokenChooser(SamplingConfig(repetition_penalty=2.0), 4, seed=0, prompt=[9]).history.in_prompt.sum() == 0


def test_history_counts_only_what_was_kept():
    history = TokenHistory.empty(2, 6)
    history.add(mx.array([[1, 1, 5], [2, 3, 4]]), mx.array([2, 0]))
    history.add(mx.array([[1, 5, 5], [2, 2, 2]]), mx.array([3, 1]))
    assert history.counts.tolist() == [[0, 3, 0, 0, 0, 2], [0, 0, 1, 0, 0, 0]]
    rows = history.rows(mx.array([[5, 0], [2, 2]]))
    assert rows.shape == (2, 3, 6)
    assert rows[0].tolist() == [[0, 3, 0, 0, 0, 2], [0, 3, 0, 0, 0, 3], [1, 3, 0, 0, 0, 3]]
    assert rows[1, 2].tolist() == [0, 0, 3, 0, 0, 0]


def test_bias_vector():
    assert bias_vector(SamplingConfig(), 5) is None
    assert bias_vector(SamplingConfig(logit_bias={}), 5) is None
    assert bias_vector(SamplingConfig(logit_bias={1: 2, 4: -0.5}), 5).tolist() == [0, 2, 0, 0, -0.5]


def test_nothing_set_changes_nothing():
    rows = logits(2, 3, V)
    np.testing.assert_array_equal(process_logits(rows, SamplingConfig()), rows)


# Temperature and filters.


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("filters", FILTERS)
def test_law_and_kept_tokens_of_a_hundred_rows(filters, temperature):
    rows = logits(ROWS, V, seed=8)
    got = probabilities(rows, temperature=temperature, **filters)
    for row in range(ROWS):
        want = reference.law(np.array(rows[row]), temperature=temperature, **filters)
        np.testing.assert_array_equal(got[row] > 0, want > 0, err_msg=f"kept tokens of row {row}")
        np.testing.assert_allclose(got[row], want, rtol=2e-4, atol=1e-7)
    np.testing.assert_allclose(got.sum(axis=-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("filters", FILTERS)
def test_equal_logits_leave_the_lower_ids(filters):
    rows = mx.round(logits(20, V, seed=3) / 2)
    got = probabilities(rows, temperature=1.0, **filters)
    for row in range(20):
        want = reference.law(np.array(rows[row]), temperature=1.0, **filters)
        np.testing.assert_array_equal(got[row] > 0, want > 0)


@pytest.mark.parametrize("filters", FILTERS)
def test_forbidden_tokens_stay_forbidden(filters):
    rows = mx.where(mx.arange(V) % 4 == 0, logits(20, V, seed=5), -mx.inf)
    got = probabilities(rows, temperature=0.8, **filters)
    assert not got[:, np.arange(V) % 4 != 0].any()
    assert np.isfinite(got).all()
    for row in range(20):
        np.testing.assert_allclose(got[row], reference.law(np.array(rows[row]), temperature=0.8, **filters), atol=1e-5)


@pytest.mark.parametrize("filters", FILTERS)
def test_a_row_of_a_block_is_that_row_alone(filters):
    # Verify and plain decoding hand in different numbers of rows: the law must not notice, to the last bit.
    rows = logits(2, 8, V, seed=6)
    config = SamplingConfig(temperature=0.7, **filters)
    block = log_probabilities(rows, config)
    for sequence, row in itertools.product(range(2), range(8)):
        np.testing.assert_array_equal(block[sequence, row], log_probabilities(rows[sequence, row], config))


def test_temperature_comes_before_the_cuts():
    rows = mx.log(mx.array([[0.5, 0.3, 0.2]]))
    # p ~ x^2: 0.658, 0.237, 0.105. Cut before the temperature, top-p 0.6 would keep two and min-p 0.3 all three.
    np.testing.assert_array_equal(probabilities(rows, temperature=0.5, top_p=0.6) > 0, [[True, False, False]])
    np.testing.assert_array_equal(probabilities(rows, temperature=0.5, min_p=0.3) > 0, [[True, True, False]])


def test_top_k_comes_before_top_p():
    rows = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]]))
    # Of the two best, the first has 0.571 of the mass: enough for 0.5. Of all four, 0.4 is not.
    np.testing.assert_array_equal(probabilities(rows, temperature=1.0, top_k=2, top_p=0.5) > 0, [[True] + [False] * 3])
    np.testing.assert_array_equal(probabilities(rows, temperature=1.0, top_p=0.5) > 0, [[True, True, False, False]])


def test_min_p_measures_against_the_best_token():
    rows = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    np.testing.assert_array_equal(probabilities(rows, temperature=1.0, min_p=0.25) > 0, [[True, True, True, False]])
    np.testing.assert_array_equal(probabilities(rows, temperature=1.0, min_p=0.35) > 0, [[True, True, False, False]])


def test_the_best_token_is_never_cut():
    rows = mx.array([[50.0, 0.0, -50.0], [0.0, 0.0, 0.0]])
    for filters in ({"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1, "top_p": 1e-9, "min_p": 1.0}):
        assert (probabilities(rows, temperature=1e-4, **filters)[:, 0] > 0).all()


# Invariants of the chooser (CK-13).


def choices(rows: mx.array, seed: int = 0, **settings: Any) -> list[int]:
    chooser = TokenChooser(SamplingConfig(**settings), rows.shape[-1], seed, [])
    start = 7 * mx.arange(rows.shape[0], dtype=mx.int32)
    chosen, _ = chooser.choose(rows[:, None], start, None, shared=chooser.shared_noise(start, 1))
    return chosen.tokens[:, 0].tolist()


def test_three_ways_to_be_greedy():
    rows = mx.concatenate([logits(ROWS, V, seed=1), mx.round(logits(ROWS, V, seed=2))])  # ties as well
    best = np.array(rows).argmax(axis=-1).tolist()  # the lowest id among equals
    assert choices(rows) == best
    assert choices(rows, temperature=1.0, top_k=1) == best
    assert choices(rows, temperature=0.99e-5) == best
    assert choices(rows[:ROWS], temperature=1e-4) == best[:ROWS]
    assert choices(rows, temperature=5.0, min_p=1.0)[:ROWS] == best[:ROWS]
    assert choices(rows, temperature=5.0, top_p=1e-6) == best


def test_the_same_seed_draws_the_same_and_another_does_not():
    rows = logits(ROWS, V, seed=1)
    first = choices(rows, seed=3, temperature=1.0)
    assert choices(rows, seed=3, temperature=1.0) == first
    others = [choices(rows, seed=seed, temperature=1.0) for seed in (0, 4, 2**32 + 3, 2**64 - 1)]
    assert all(sum(a != b for a, b in zip(first, other, strict=True)) > 10 for other in others)
    assert choices(rows, seed=3) == choices(rows, seed=4)  # greedy has no seed


# Reported log-probabilities.


def test_reported_log_probabilities_are_those_before_temperature_and_cuts():
    rows = logits(1, 4, V, seed=2)
    chooser = TokenChooser(SamplingConfig(temperature=0.3, top_k=2, logit_bias={4: 3.0}), V, 0, [])
    _, processed = chooser.choose(rows, mx.array([0]), None, shared=chooser.shared_noise(mx.array([0]), 4))
    tokens = mx.array([[3, 4, 0, 39]])
    own, ids, values = gather_log_probs(processed, tokens, 5)
    for row in range(4):
        want = np.log(reference.softmax(reference.penalise(np.array(rows[0, row]), [], [], logit_bias={4: 3.0})))
        np.testing.assert_allclose(own[0, row], want[tokens[0, row].item()], atol=1e-5)
        assert ids[0, row].tolist() == reference.by_rank(want)[:5]
        np.testing.assert_allclose(values[0, row], want[np.array(ids[0, row])], atol=1e-5)
    own, ids, values = gather_log_probs(processed, tokens, 0)
    assert own.shape == (1, 4) and ids.shape == values.shape == (1, 4, 0)


def test_log_probabilities_of_forbidden_tokens():
    rows = mx.array([[1.0, -mx.inf, 1.0]])
    np.testing.assert_allclose(token_log_probs(rows), [[-np.log(2), -np.inf, -np.log(2)]], atol=1e-6)


def test_more_alternatives_than_tokens():
    own, ids, values = gather_log_probs(logits(1, 2, 6), mx.array([[0, 1]]), 20)
    assert own.shape == (1, 2) and ids.shape == values.shape == (1, 2, 6)

"""Check T2 of the specification, and the tie and draw rules."""

import numpy as np
import pytest

from tests.reference import selector

PREDECESSOR = np.array([[1, 0], [0, 1], [1, 1], [2, 0], [0, 2], [1, -1]], dtype=float)
SUCCESSOR = np.array([[0, 1], [1, 0], [1, -1], [0, 2], [2, 1], [1, 1]], dtype=float)
GATES = np.array([[1, 0.5], [0.5, 1]])
LOGITS = np.array([[2, 1.5, 0, -1, 1, -2], [0.5, 3, 2.5, 2, -1, 0]])
ANCHOR = 3


def greedy_walk():
    return selector.walk(LOGITS, GATES, PREDECESSOR, SUCCESSOR, ANCHOR, top_k=3)


def test_greedy_walk_gives_the_numbers_of_t2():
    walk = greedy_walk()
    np.testing.assert_array_equal(walk.candidates, [[0, 1, 4], [1, 2, 3]])
    np.testing.assert_allclose(walk.scores, [[2, 3.5, 5], [3, 0.5, 6]])
    np.testing.assert_array_equal(walk.tokens, [4, 3])
    assert walk.q is None


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.039113, 0.175290, 0.785597]), (0.5, [0.002356, 0.047314, 0.950330])],
)
def test_first_row_of_q(temperature, expected):
    walk = selector.walk(LOGITS, GATES, PREDECESSOR, SUCCESSOR, ANCHOR, 3, temperature, uniforms=np.array([0.9, 0.5]))
    np.testing.assert_allclose(walk.q[0], expected, atol=5e-7)


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        (0, [3.5, 3, 2]),
        (1, [3, 1.5, 4]),
        (2, [3.5, 2, 4]),
        (3, [4, 3.5, 2]),
        (4, [3, 0.5, 6]),
        (5, [3.5, 4, 0]),
    ],
)
def test_second_row_after_each_predecessor(previous, expected):
    scores = selector.pair_scores(LOGITS[1], np.array([1, 2, 3]), GATES[1], PREDECESSOR, SUCCESSOR, previous)
    np.testing.assert_allclose(scores, expected)


def test_zero_successor_codebook_leaves_the_largest_logit():
    walk = selector.walk(LOGITS, GATES, PREDECESSOR, np.zeros((6, 2)), ANCHOR, 3)
    np.testing.assert_array_equal(walk.tokens, [0, 1])


def test_ties_go_to_the_lower_id():
    np.testing.assert_array_equal(selector.top_candidates(np.array([1.0, 3, 2, 3, 2]), 3), [1, 3, 2])
    flat = selector.walk(np.zeros((1, 6)), GATES[:1], PREDECESSOR, np.zeros((6, 2)), ANCHOR, 3)
    np.testing.assert_array_equal(flat.tokens, [0])


def test_uniform_draws_follow_the_cumulative_mass():
    q = np.array([0.25, 0.5, 0.25])
    assert [selector.inverse_cdf(q, u) for u in (0.0, 0.249, 0.25, 0.749, 0.75, 0.999)] == [0, 0, 1, 1, 2, 2]


def test_gumbel_draws_have_the_law_q():
    draws = np.random.default_rng(7).gumbel(size=(4000, 1, 6))
    counts = np.zeros(6)
    for gumbels in draws:
        walk = selector.walk(LOGITS[:1], GATES[:1], PREDECESSOR, SUCCESSOR, ANCHOR, 3, temperature=1.0, gumbels=gumbels)
        counts[walk.tokens[0]] += 1
    np.testing.assert_allclose(counts[[0, 1, 4]] / 4000, walk.q[0], atol=0.025)


def test_a_sampled_walk_needs_exactly_one_source_of_noise():
    with pytest.raises(ValueError, match="either uniforms or gumbels"):
        selector.walk(LOGITS, GATES, PREDECESSOR, SUCCESSOR, ANCHOR, 3, temperature=1.0)

"""The order of the filters and their tie rules, on rows worked by hand."""

import numpy as np
import pytest

from tests.reference import sampling

LOGITS = np.log([0.4, 0.1, 0.2, 0.2, 0.1])


def law(**options):
    return sampling.law(LOGITS, **({"temperature": 1.0} | options))


def test_no_filter_is_softmax():
    np.testing.assert_allclose(law(), [0.4, 0.1, 0.2, 0.2, 0.1])


def test_temperature_sharpens():
    weights = np.array([16, 1, 4, 4, 1])
    np.testing.assert_allclose(law(temperature=0.5), weights / weights.sum())


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_tiny_temperature_takes_the_lowest_id_among_the_largest(temperature):
    np.testing.assert_array_equal(sampling.law(np.array([1.0, 2, 2]), temperature=temperature), [0, 1, 0])


def test_top_k_keeps_exactly_k():
    np.testing.assert_allclose(law(top_k=2), np.array([4, 0, 2, 0, 0]) / 6)
    np.testing.assert_allclose(law(top_k=4), np.array([4, 1, 2, 2, 0]) / 9)
    np.testing.assert_allclose(law(top_k=9), law())


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.39, [0]), (0.41, [0, 2]), (0.61, [0, 2, 3]), (0.81, [0, 1, 2, 3]), (0.91, range(5))]
)
def test_top_p_counts_the_mass_before(top_p, kept):
    np.testing.assert_array_equal(np.nonzero(law(top_p=top_p))[0], list(kept))


def test_min_p_is_relative_to_the_largest():
    np.testing.assert_array_equal(np.nonzero(law(min_p=0.45))[0], [0, 2, 3])
    np.testing.assert_array_equal(np.nonzero(law(min_p=0.55))[0], [0])


def test_temperature_comes_before_top_p():
    # At temperature 0.5 the first id holds 16/26 of the mass, at 1 only 0.4.
    np.testing.assert_array_equal(np.nonzero(law(top_p=0.6, temperature=0.5))[0], [0])


def test_top_k_comes_before_top_p():
    # After top-k the first id holds 4/6 of the mass, so the nucleus is it alone.
    np.testing.assert_array_equal(np.nonzero(law(top_k=2, top_p=0.6))[0], [0])


def test_penalties():
    logits = np.array([2.0, -2.0, 1.0, 3.0])
    result = sampling.penalise(
        logits,
        prompt=[0, 1],
        generated=[3, 3],
        logit_bias={2: 5.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    np.testing.assert_allclose(result, [1.0, -4.0, 6.0, 0.5])
    np.testing.assert_array_equal(logits, [2.0, -2.0, 1.0, 3.0])


def test_a_banned_token_has_no_mass():
    biased = sampling.penalise(LOGITS, [], [], logit_bias={0: -np.inf})
    np.testing.assert_allclose(sampling.law(biased, temperature=1.0), np.array([0, 1, 2, 2, 1]) / 6)

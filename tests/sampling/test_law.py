"""The sampled output law equals plain sampling's, whatever the drafter (4.5; CK-12, T3, T8).

Seeds are fixed, so a test passes or fails for good. `UNLIKELY` is what a right implementation falls below once
in ten thousand seeds; wrong ones land many orders of magnitude lower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dflash2_mlx import SamplingConfig
from tests import distributions as law
from tests.distributions import DRAFTERS, PROMPT, TARGET, converse, p_value, plain_law
from tests.reference.acceptance import coupled_acceptance, total_acceptance
from tests.reference.sampling import law as one_law

UNLIKELY = 1e-4
IMPOSSIBLE = 1e-9
ROWS = 8_000
TEMPERATURES = [0.5, 1.0, 1.5]
FILTERS = {
    "none": {},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.15},
    "all three": {"top_k": 4, "top_p": 0.9, "min_p": 0.05},
}
PENALTIES = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -1.0},
    "repetition": {"repetition_penalty": 1.6},
    "bias": {"logit_bias": {0: 2.0, 3: -3.0}},
    "all, with filters": {
        "presence_penalty": -0.7,
        "frequency_penalty": 1.1,
        "repetition_penalty": 1.3,
        "logit_bias": {1: 1.0},
        "top_k": 5,
        "top_p": 0.95,
    },
}


def sampling(temperature: float, mode: str = "rejection", **settings: Any) -> SamplingConfig:
    return SamplingConfig(temperature=temperature, lossless_mode=mode, **settings)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_law_of_rejection_sampling(drafter, temperature):
    config = sampling(temperature)
    outcome = converse(config, DRAFTERS[drafter], rows=ROWS)
    assert p_value(outcome.tokens, plain_law(config)) > UNLIKELY
    assert 0 < outcome.accepted < outcome.drafted


@pytest.mark.parametrize("filters", list(FILTERS)[1:])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_law_with_filters(filters, temperature):
    config = sampling(temperature, **FILTERS[filters])
    outcome = converse(config, DRAFTERS["good, 4 of 6 candidates"], rows=ROWS)
    assert p_value(outcome.tokens, plain_law(config)) > UNLIKELY
    assert outcome.accepted > 0


@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("drafter", ["good", "adversarial"])
def test_law_with_penalties(penalties, drafter):
    config = sampling(0.8, **PENALTIES[penalties])
    outcome = converse(config, DRAFTERS[drafter], rows=ROWS)
    assert p_value(outcome.tokens, plain_law(config)) > UNLIKELY


@pytest.mark.parametrize("width", [2, 3, 6])
def test_law_at_every_width(width):
    config = sampling(0.9, top_k=4)
    outcome = converse(config, DRAFTERS["good"], rows=ROWS, width=width)
    assert p_value(outcome.tokens, plain_law(config)) > UNLIKELY


@pytest.mark.parametrize("settings", [{}, FILTERS["all three"], PENALTIES["all, with filters"]])
@pytest.mark.parametrize("drafter", ["good", "adversarial"])
def test_law_of_coupled_sampling(drafter, settings):
    config = sampling(0.7, "coupled", **settings)
    outcome = converse(config, DRAFTERS[drafter], rows=ROWS)
    assert p_value(outcome.tokens, plain_law(config)) > UNLIKELY


def test_coupled_text_is_the_same_whatever_the_drafter_and_width():
    config = sampling(1.0, "coupled", top_p=0.9, frequency_penalty=0.5)
    texts = [converse(config, DRAFTERS[name], rows=500, width=width).tokens for name in DRAFTERS for width in (2, 4)]
    for text in texts[1:]:
        np.testing.assert_array_equal(text, texts[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_law_with_two_hundred_thousand_runs(drafter, temperature, filters, seed):
    config = sampling(temperature, **FILTERS[filters])
    outcome = converse(config, DRAFTERS[drafter], rows=200_000, seed=seed)
    assert p_value(outcome.tokens, plain_law(config)) > UNLIKELY / 10


# The test itself: the faults it is there for must show.


FAULTS = [law.q_at_another_temperature, law.residual_from_draft_noise, law.p_without_q]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_wrong_verifiers_are_noticed(fault, temperature):
    config = sampling(temperature)
    outcome = converse(config, DRAFTERS["good, 4 of 6 candidates"], rows=ROWS, verify=fault)
    assert p_value(outcome.tokens, plain_law(config)) < IMPOSSIBLE


@pytest.mark.parametrize(
    "other", [{"temperature": 0.9}, {"temperature": 0.8, "top_p": 0.97}, {"temperature": 0.8, "logit_bias": {2: 0.2}}]
)
def test_the_law_of_another_setting_is_noticed(other):
    outcome = converse(sampling(0.8), DRAFTERS["good"], rows=ROWS)
    assert p_value(outcome.tokens, plain_law(SamplingConfig(**other))) < IMPOSSIBLE


# How much is accepted.


def expected_share(rule: Callable[[np.ndarray, np.ndarray], float], temperature: float, **settings: Any) -> float:
    """Chance that the first draft is kept, over the law of the token before it."""
    config = SamplingConfig(temperature=temperature, **settings)
    share = 0.0
    for token, mass in enumerate(law.next_law(config, ())):
        q = one_law(TARGET[PROMPT[-1], token], temperature=temperature)
        share += float(mass) * rule(law.next_law(config, (token,)), q)
    return share


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_drafter_that_is_the_target_is_always_accepted(temperature, mode):
    assert converse(sampling(temperature, mode), DRAFTERS["exact"], rows=2000).first_kept > 0.999


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.6}, {"presence_penalty": 2.0}])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("mode", "rule"), [("rejection", total_acceptance), ("coupled", coupled_acceptance)])
def test_acceptance_is_what_theory_says(mode, rule, temperature, settings):
    outcome = converse(sampling(temperature, mode, **settings), DRAFTERS["exact"], rows=ROWS)
    share = expected_share(rule, temperature, **settings)
    assert 0.2 < share < 1
    assert abs(outcome.first_kept - share) < 4 * (share * (1 - share) / ROWS) ** 0.5


def test_acceptance_falls_smoothly_with_temperature():
    # q is not cut, p is: the hotter, the more of q lies where p is zero.
    shares = [
        converse(sampling(temperature, top_k=2), DRAFTERS["exact"], rows=ROWS).first_kept
        for temperature in (0.2, 0.5, 1.0, 1.5, 3.0)
    ]
    drops = [earlier - later for earlier, later in itertools.pairwise(shares)]
    assert all(0 < drop < 0.35 for drop in drops)
    assert shares[0] > 0.9 and shares[-1] > 0.3

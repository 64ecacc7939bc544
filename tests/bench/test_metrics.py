"""The formulas, against cases worked out by hand."""

from __future__ import annotations

import math
import random

import pytest

from dflash2_mlx.bench.metrics import (
    Round,
    Spread,
    acceptance_length,
    acceptance_rate,
    conditional_acceptance,
    mean_over_requests,
    spread,
    time_per_token,
    variation,
)
from dflash2_mlx.decode.stats import expected_length

# Four rounds of width 4: 3, 0, 1 and 3 drafts accepted; the last is cut after two tokens by the limit.
BY_HAND = [Round(3, 3, 4), Round(0, 3, 1), Round(1, 3, 2), Round(3, 3, 2)]


def test_acceptance_length_counts_what_was_emitted() -> None:
    assert acceptance_length(BY_HAND) == (4 + 1 + 2 + 2) / 4
    assert acceptance_length([]) is None
    assert acceptance_length([Round(0, 0, 1)] * 3) is None  # plain decoding has none


def test_the_mean_over_requests_is_not_weighted_by_length() -> None:
    requests = [[Round(3, 3, 4)], [Round(0, 3, 1)] * 9]
    assert mean_over_requests(map(acceptance_length, requests)) == 2.5
    assert acceptance_length([cycle for rounds in requests for cycle in rounds]) == 1.3
    assert mean_over_requests([None, 2.0, None]) == 2.0
    assert mean_over_requests([None]) is None


def test_conditional_acceptance_by_hand() -> None:
    # draft 1: 3 of 4 rounds; draft 2: 2 of the 3 that got there; draft 3: 2 of 2
    assert conditional_acceptance(BY_HAND) == [3 / 4, 2 / 3, 2 / 2]
    assert conditional_acceptance([Round(0, 2, 1)]) == [0.0, None]
    assert conditional_acceptance([]) == []


def test_a_round_that_drafted_less_says_nothing_about_later_drafts() -> None:
    mixed = [Round(1, 1, 2), Round(1, 3, 2), Round(2, 3, 3)]
    assert conditional_acceptance(mixed) == [1.0, 1 / 2, 0.0]


def test_acceptance_rate_leaves_out_what_was_cut() -> None:
    assert acceptance_rate(BY_HAND) == (3 + 0 + 1 + 2) / 12
    assert acceptance_rate([Round(0, 0, 1)]) is None


def test_expected_length_is_the_mean_of_uncut_rounds() -> None:
    draw = random.Random(0)
    accepted = [draw.randrange(6) for _ in range(200)]
    rounds = [Round(a, 5, a + 1) for a in accepted]
    assert expected_length(conditional_acceptance(rounds)) == pytest.approx(acceptance_length(rounds), abs=1e-12)


def test_the_first_token_has_no_time() -> None:
    assert time_per_token(11, 2.0) == 0.2
    assert time_per_token(1, 2.0) is None
    assert time_per_token(5, 0.0) is None


def test_spread_and_variation() -> None:
    assert spread([4.0]) == Spread(4.0, 4.0, 4.0)
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert variation([10.0]) is None
    assert math.isclose(variation([8.0, 10.0, 13.0]) or 0.0, 0.5)

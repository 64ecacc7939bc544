"""Costs of passes and the width that pays."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import pytest

from dflash2_mlx.decode.costs import PassCosts, best_gain, expected_tokens, gains, measure_costs
from tests.runs import lively_target
from tests.tiny import make_tiny_drafter


@pytest.mark.parametrize(
    ("acceptance", "width", "tokens"),
    [
        ([0.5, 0.5, 0.5], 4, 1 + 0.5 + 0.25 + 0.125),
        ([1.0, 0.0, 1.0], 4, 2.0),
        ([0.8, None, None], 4, 1 + 0.8 + 0.64 + 0.512),  # nobody got there: as before
        ([None, None], 3, 1.0),
        ([], 5, 1.0),
        ([0.5], 3, 1 + 0.5 + 0.25),
        ([0.9, 0.9], 1, 1.0),
    ],
)
def test_expected_tokens(acceptance, width, tokens):
    assert expected_tokens(acceptance, width) == pytest.approx(tokens)


def test_gains_weigh_tokens_against_both_passes():
    costs = PassCosts(verify={1: 10.0, 2: 11.0, 3: 12.0, 4: 40.0}, draft={2: 1.0, 3: 2.0, 4: 3.0})
    found = gains(costs, [0.8, 0.5, 0.5])
    assert [(gain.width, gain.tokens) for gain in found] == [(1, 1.0), (2, 1.8), (3, 2.2), (4, pytest.approx(2.4))]
    assert [gain.speedup for gain in found] == pytest.approx([1.0, 18 / 12, 22 / 14, 24 / 43])
    assert best_gain(found).width == 3


def test_drafting_that_does_not_pay_is_not_recommended():
    costs = PassCosts(verify={1: 10.0, 2: 20.0, 3: 30.0}, draft={2: 0.1, 3: 0.1})
    assert best_gain(gains(costs, [0.9, 0.9])).width == 1
    free = PassCosts(verify={1: 10.0, 2: 10.0, 3: 10.0}, draft={2: 0.0, 3: 0.0})
    assert best_gain(gains(free, [0.0, 0.0])).width == 1  # of equals the narrowest


class Watched:
    """A target that counts the rows of its passes and the states they ran on."""

    def __init__(self, family: str):
        self.inner = lively_target(family)
        self.rows: Counter[int] = Counter()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def forward(self, ids: mx.array, state: object, **options: object) -> object:
        self.rows[ids.shape[1]] += 1
        return self.inner.forward(ids, state, **options)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "muse_glimmer"])
def test_every_row_count_and_width_is_measured(family):
    target, drafter = Watched(family), make_tiny_drafter(compiled=True)
    costs = measure_costs(target, drafter, range(1, 8))
    assert set(costs.verify) == set(range(1, 8)) and all(seconds > 0 for seconds in costs.verify.values())
    assert set(costs.draft) == set(range(2, min(7, drafter.config.block_size) + 1))
    assert all(seconds > 0 for seconds in costs.draft.values())
    assert all(target.rows[count] >= 4 for count in range(1, 8))  # a first look, and one in each turn


def test_without_a_drafter_only_the_target_is_measured():
    costs = measure_costs(lively_target("qwen3"), None, [1, 3])
    assert set(costs.verify) == {1, 3} and costs.draft == {}
    assert [gain.width for gain in gains(costs, [])] == [1]

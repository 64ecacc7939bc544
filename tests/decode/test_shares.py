"""Recall, conditional acceptance and the length they multiply to, by hand (6.1)."""

from __future__ import annotations

import numpy as np
import pytest

from dflash2_mlx.decode.stats import conditional_shares, expected_length, leading, reached_positions

RIGHT = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=bool)
ALL = np.ones_like(RIGHT)


def test_shares_by_hand():
    # Position 1: three of four. Position 2: of those three, two. Position 3: of those two, one; the block that is
    # right at 2 and 3 but wrong at 1 counts for neither.
    assert conditional_shares(RIGHT, ALL) == [3 / 4, 2 / 3, 1 / 2]
    assert expected_length([3 / 4, 2 / 3, 1 / 2]) == 1 + 3 / 4 + 2 / 4 + 1 / 4
    assert leading(RIGHT).tolist() == [2, 1, 0, 3]


def test_a_block_counts_only_where_it_was_asked():
    asked = ALL.copy()
    asked[3, 2] = False
    assert conditional_shares(RIGHT, asked) == [3 / 4, 2 / 3, 0.0]
    asked[0, 2] = False
    assert conditional_shares(RIGHT, asked) == [3 / 4, 2 / 3, None]
    assert conditional_shares(np.zeros((2, 2), dtype=bool), np.ones((2, 2), dtype=bool)) == [0.0, None]
    assert conditional_shares(np.zeros((0, 0), dtype=bool), np.zeros((0, 0), dtype=bool)) == []


def test_where_nobody_got_nothing_is_added():
    assert expected_length([]) == 1.0
    assert expected_length([0.5, 0.0, None]) == 1.5
    assert expected_length([0.5, None, 1.0]) == 1.5


@pytest.mark.parametrize(
    ("shares", "length"),
    [
        ([85.4, 80.3, 79.4, 78.3, 77.5, 75.9, 72.9], 4.27),
        ([99.5, 97.3, 94.8, 92.6, 90.8, 89.4, 87.8], 6.80),
    ],
)
def test_the_published_recalls_multiply_to_the_published_lengths(shares, length):
    assert expected_length([share / 100 for share in shares]) == pytest.approx(length, abs=5e-3)


@pytest.mark.parametrize("seed", range(20))
def test_identity_the_shares_multiply_to_the_mean(seed):
    rng = np.random.default_rng(seed)
    right = rng.random((int(rng.integers(1, 40)), int(rng.integers(1, 9)))) < rng.random()
    shares = conditional_shares(right, np.ones_like(right))
    assert expected_length(shares) == pytest.approx(1 + leading(right).mean(), abs=1e-12)


def test_rounds_become_rows():
    right, asked = reached_positions([2, 0, 3, 1], [3, 3, 3, 1])
    assert right.tolist() == [[True, True, False], [False] * 3, [True] * 3, [True, False, False]]
    assert asked.tolist() == [[True] * 3] * 3 + [[True, False, False]]
    # One round of width 2 drafted a single token: it is not among those that could have accepted two.
    assert conditional_shares(right, asked) == [3 / 4, 2 / 2, 1 / 2]
    assert conditional_shares(*reached_positions([], [])) == []

"""Anchors and blocks: what is asked of which row (7.1)."""

from __future__ import annotations

import numpy as np
import pytest

from dflash2_mlx.training import block_batch, sample_anchors


def test_anchors_are_supervised_and_followed_by_a_supervised_token():
    supervised = np.array([0, 1, 1, 0, 1, 1, 1, 0, 1], dtype=bool)
    found = sample_anchors(supervised, 100, np.random.default_rng(0))
    assert found.tolist() == [1, 4, 5] and found.dtype == np.int32


def test_anchors_are_drawn_without_repetition_and_in_order():
    supervised = np.ones(50, dtype=bool)
    draws = [sample_anchors(supervised, 10, np.random.default_rng(seed)).tolist() for seed in range(30)]
    for draw in draws:
        assert len(draw) == 10 and draw == sorted(set(draw)) and draw[0] >= 0 and draw[-1] <= 48
    assert {place for draw in draws for place in draw} == set(range(49))


@pytest.mark.parametrize("supervised", [[0, 0, 0, 0], [0, 1, 0, 1], [1]])
def test_a_sequence_without_anything_to_learn_has_no_anchor(supervised):
    assert sample_anchors(np.array(supervised, dtype=bool), 5, np.random.default_rng(0)).size == 0


def test_blocks_know_labels_predecessors_and_where_they_end():
    tokens = np.array([10, 11, 12, 13, 14, 15])
    supervised = np.array([0, 1, 1, 0, 1, 1], dtype=bool)
    blocks = block_batch(tokens, supervised, np.array([1, 4]), 4)
    assert blocks.tokens.tolist() == [11, 14]
    assert blocks.supervised.tolist() == [[True, False, True], [True, False, False]]
    assert blocks.labels.tolist() == [[12, 0, 14], [15, 0, 0]]
    assert blocks.previous.tolist() == [[11, 12, 13], [14, 15, 15]]

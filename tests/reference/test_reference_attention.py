"""Attention of a few rows: cases by hand."""

import numpy as np

from tests.reference.attention import attend, seen_rows


def test_one_visible_key_is_its_value():
    values = np.arange(6.0).reshape(1, 3, 2)
    seen = np.array([[False, True, False]])
    np.testing.assert_array_equal(attend(np.ones((2, 1, 2)), np.ones((1, 3, 2)), values, seen), [[[2, 3]], [[2, 3]]])


def test_weights_by_hand():
    # Scores 0 and ln 3 after the division by sqrt(4): weights 1/4 and 3/4.
    queries = np.full((1, 1, 4), 2 * np.log(3) / 4)
    keys = np.stack([np.zeros(4), np.ones(4)])[None]
    values = np.array([[[4.0, 0, 0, 0], [8.0, 4, 0, 0]]])
    got = attend(queries, keys, values, np.ones((1, 2), dtype=bool))
    np.testing.assert_allclose(got[0, 0], [7, 3, 0, 0])


def test_heads_share_key_value_heads_in_order():
    values = np.array([[[1.0]], [[2.0]]])
    got = attend(np.zeros((4, 1, 1)), np.zeros((2, 1, 1)), values, np.ones((1, 1), dtype=bool))
    np.testing.assert_array_equal(got.ravel(), [1, 1, 2, 2])


def test_rows_past_the_pass_are_hidden():
    # Rows 5 and 6; the buffer holds stale rows 7 and 8.
    seen = seen_rows(5, 2, range(3, 9), is_causal=False, window=None)
    np.testing.assert_array_equal(seen, [[1, 1, 1, 1, 0, 0]] * 2)
    seen = seen_rows(5, 2, range(3, 9), is_causal=True, window=2)
    np.testing.assert_array_equal(seen, [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]])


def test_the_sink_is_seen_from_behind_the_window():
    seen = seen_rows(20, 1, [0, 1, 2, 17, 18, 19, 20], is_causal=False, window=3, sink=2)
    np.testing.assert_array_equal(seen, [[1, 1, 0, 0, 1, 1, 1]])

"""Check T4 of the specification, and the other mask kinds."""

import numpy as np
import pytest

from tests.reference import masks


def seen(is_causal, window, block=(5, 6, 7), context=range(5)):
    keys = list(context) + list(block)
    mask = masks.visibility(block, keys, is_causal=is_causal, window=window)
    return [[keys[i] for i in np.nonzero(row)[0]] for row in mask]


def test_sliding_non_causal_is_t4():
    assert seen(False, 4) == [[2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7], [4, 5, 6, 7]]


def test_sliding_causal_also_hides_later_block_rows():
    assert seen(True, 4) == [[2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]


def test_full_layers():
    assert seen(False, None) == [list(range(8))] * 3
    assert seen(True, None) == [list(range(6)), list(range(7)), list(range(8))]


def test_a_block_wider_than_the_window_also_shrinks_inside():
    assert seen(False, 2) == [[4, 5, 6], [5, 6, 7], [6, 7]]


@pytest.mark.parametrize("anchor", [3, 7, 8, 9, 30])
def test_row_j_sees_window_minus_one_minus_j_context_rows(anchor):
    window = 8
    rows = seen(False, window, block=range(anchor, anchor + 4), context=range(anchor))
    counts = [sum(key < anchor for key in row) for row in rows]
    assert counts == [min(anchor, window - 1 - j) for j in range(4)]


@pytest.mark.parametrize(
    ("is_causal", "layer_type", "expected"),
    [
        (None, "sliding_attention", True),
        (None, "full_attention", False),
        (False, "sliding_attention", False),
        (True, "full_attention", True),
    ],
)
def test_causality_of_a_layer(is_causal, layer_type, expected):
    assert masks.layer_is_causal(is_causal, layer_type) is expected

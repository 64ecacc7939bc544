"""Check T1 of the specification, worked by hand there."""

import numpy as np

from tests.reference import conv

GROUP_SIZE = 2
BASE = np.array(
    [
        [[1, 1, 1, 1], [0.5, 0, -0.5, 1]],
        [[1, 2, 1, 1], [0, 1, 0, -1]],
    ]
)
PROJECTION = np.eye(4)[[0, 1, 2, 3, 3, 0, 1, 2]]
X = np.array([[1, 2, 0, -1], [0, 1, 1, 2], [2, 0, -1, 1]], dtype=float)
Y = np.array([[1, 0, 1, 0], [2, 1, 0, -1], [0, 1, 1, 1]], dtype=float)


def test_prepare_and_finish_give_the_numbers_of_t1():
    prepared, after = conv.prepare(X, BASE, PROJECTION, GROUP_SIZE)
    np.testing.assert_array_equal(prepared, [[2, 4, 0, -3], [1.5, 3, 2, 1], [6, -1, -0.5, 5]])
    finished = conv.finish(Y, after, BASE, GROUP_SIZE)
    np.testing.assert_array_equal(finished, [[0, 0, 2, 0], [7, 4, 1, -1], [0, 4, 3, 5]])


def test_a_row_reads_no_row_after_it():
    whole, _ = conv.prepare(X, BASE, PROJECTION, GROUP_SIZE)
    first, _ = conv.prepare(X[:2], BASE, PROJECTION, GROUP_SIZE)
    np.testing.assert_array_equal(whole[:2], first)


def test_identity_coefficients_change_nothing():
    identity = np.zeros((2, 2, 4))
    identity[:, 0] = 1
    prepared, after = conv.prepare(X, identity, np.zeros((8, 4)), GROUP_SIZE)
    np.testing.assert_array_equal(prepared, X)
    np.testing.assert_array_equal(conv.finish(Y, after, identity, GROUP_SIZE), Y)


def test_three_taps_reach_two_rows_back():
    base = np.zeros((2, 3, 4))
    base[0, 2] = 1
    prepared, _ = conv.prepare(X, base, np.zeros((12, 4)), GROUP_SIZE)
    np.testing.assert_array_equal(prepared, [[0] * 4, [0] * 4, X[0]])

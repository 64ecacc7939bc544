"""`top_candidates`: exactly the k best, equal logits to the lower id, padding never (3.9, D-21; CK-7b)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_mlx.kernels.top_candidates import top_candidates
from tests.reference.selector import top_candidates as reference

# Around every border between sorting all of a row and sorting its chunks.
SIZES = [5, 16, 17, 127, 128, 129, 1024, 4095, 4096, 4097, 20011]
COUNTS = [1, 5, 16]


def check(logits: mx.array, k: int, vocab_size: int | None = None) -> None:
    ids, values = top_candidates(logits, k, vocab_size=vocab_size)
    assert ids.dtype == mx.int32 and values.dtype == mx.float32
    assert ids.shape == values.shape == (*logits.shape[:-1], k)
    rows = np.array(logits.astype(mx.float32)).reshape(-1, logits.shape[-1])
    for row, got, value in zip(rows, np.array(ids).reshape(-1, k), np.array(values).reshape(-1, k), strict=True):
        want = reference(row[:vocab_size], k)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(value, row[want])


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", COUNTS)
def test_random_rows(size, k):
    if k <= size:
        check(normal(2, 3, size, seed=size), k)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", COUNTS)
def test_many_ties(size, k):
    if k <= size:
        check(mx.round(normal(3, size, seed=size)), k)
        check(mx.zeros((1, size)), k)


@pytest.mark.parametrize("size", SIZES[-3:])
def test_bfloat16_ties(size):
    logits = (4 * normal(2, size, seed=7)).astype(mx.bfloat16)
    assert len(np.unique(np.array(logits[0].astype(mx.float32)))) < size  # the format does make ties
    check(logits, 16)


@pytest.mark.parametrize("size", SIZES[-3:])
def test_best_ones_side_by_side_and_far_apart(size):
    for ids in ([*range(size - 16, size)], [*range(16)], [*range(0, size, size // 15)][:16], [size - 1, 0]):
        logits = normal(1, size).at[:, mx.array(ids)].add(100.0)
        check(logits, 16)
        check(mx.round(logits), 16)


@pytest.mark.parametrize("size", [17, 4097])
def test_infinite_and_signed_zero_logits(size):
    check(mx.where(mx.arange(size) % 3 == 0, normal(2, size), -mx.inf), 5)
    check(mx.where(mx.arange(size) > 2, -mx.inf, normal(1, size)), 5)  # fewer finite ones than asked for
    check(mx.full((1, size), -mx.inf), 5)
    check(mx.where(mx.arange(size) % 2 == 0, -0.0, 0.0)[None], 5)
    check(-mx.abs(normal(1, size)), 5)


@pytest.mark.parametrize(("size", "vocab"), [(20, 11), (4200, 4097), (20011, 19000), (4096, 4096)])
@pytest.mark.parametrize("padding", [1000.0, mx.inf, mx.nan])
def test_padding_rows_of_the_head_are_never_picked(size, vocab, padding):
    logits = mx.where(mx.arange(size) < vocab, normal(2, size), padding)
    check(logits, 5, vocab_size=vocab)


def test_without_a_vocabulary_size_every_row_counts():
    check(normal(1, 40), 7, vocab_size=40)
    check(normal(1, 40), 7, vocab_size=99)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=6, max_size=400), st.integers(1, 6))
def test_any_integers(values, k):
    check(mx.array([values], dtype=mx.float32), k)


@pytest.mark.parametrize("size", [40, 4097])
def test_compiled(size):
    logits = mx.round(3 * normal(2, size))
    ids, values = mx.compile(lambda x: top_candidates(x, 6, vocab_size=39))(logits)
    want = top_candidates(logits, 6, vocab_size=39)
    np.testing.assert_array_equal(ids, want[0])
    np.testing.assert_array_equal(values, want[1])

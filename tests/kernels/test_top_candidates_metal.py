"""metal/top_candidates.metal: the lists of each block against the sorted reference."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.top_candidates import TOP_EACH, TOP_THREADS, top_candidates_call
from dflash2_mlx.kernels.top_candidates import top_candidates as twin
from tests.reference.selector import top_candidates as reference
from tests.runs import thinned

BLOCK = TOP_THREADS * TOP_EACH
# Around the borders of a lane's turn, a SIMD-group's part and a block.
SIZES = [5, 31, 33, 1023, 1025, BLOCK - 1, BLOCK, BLOCK + 1, 20011]


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def check(on_metal, logits: mx.array, k: int, vocab_size: int | None = None, **settings) -> None:
    """The lists of every block to the bit, and together the twin's answer."""
    size = logits.shape[-1]
    vocab = min(vocab_size or size, size)
    values, ids = map(np.array, on_metal(top_candidates_call(logits.shape, k, vocab), [logits], **settings))
    rows = np.array(logits.astype(mx.float32))
    for row, (block_values, block_ids) in enumerate(zip(values, ids, strict=True)):
        for block in range(ids.shape[1]):
            start = block * BLOCK
            part = rows[row, start : min(start + BLOCK, vocab)]
            want = reference(part, min(k, len(part)))
            missing = k - len(want)
            np.testing.assert_array_equal(block_ids[block], [*(want + start), *[-1] * missing])
            np.testing.assert_array_equal(block_values[block], [*part[want], *[-np.inf] * missing])
    check_merged(values, ids, twin(logits, k, vocab_size=vocab))


def check_merged(values: np.ndarray, ids: np.ndarray, want: tuple[mx.array, mx.array]) -> None:
    for row in range(len(ids)):
        entries = sorted((-v, i) for v, i in zip(values[row].ravel(), ids[row].ravel(), strict=True) if i >= 0)
        best = entries[: want[0].shape[-1]]
        np.testing.assert_array_equal([i for _, i in best], want[0][row])
        np.testing.assert_array_equal([-v for v, _ in best], want[1][row])


@pytest.mark.parametrize(("size", "k"), thinned(SIZES, [1, 5, 16]))
def test_random_rows_and_ties(on_metal, size, k):
    k = min(k, size)
    check(on_metal, normal(2, size, seed=size), k)
    check(on_metal, mx.round(normal(2, size)), k)
    check(on_metal, mx.zeros((1, size)), k)


def test_as_many_candidates_as_there_can_be(on_metal):
    check(on_metal, mx.round(4 * normal(2, 9000)), 32)
    check(on_metal, normal(1, 32), 32)


def test_bfloat16_ties(on_metal):
    logits = (4 * normal(3, 20011, seed=7)).astype(mx.bfloat16)
    assert len(np.unique(np.array(logits[0].astype(mx.float32)))) < 20011  # the format does make ties
    check(on_metal, logits, 16)


def test_best_ones_side_by_side_and_far_apart(on_metal):
    size = 9000
    for ids in ([*range(size - 16, size)], [*range(16)], [*range(0, size, size // 15)][:16], [size - 1, 0]):
        logits = normal(1, size).at[:, mx.array(ids)].add(100.0)
        check(on_metal, logits, 16)
    one_lane = normal(1, size).at[:, mx.array([*range(7, 16 * 32, 32)])].add(100.0)
    check(on_metal, one_lane, 16)


def test_infinite_and_signed_zero_logits(on_metal):
    size = 1100
    check(on_metal, mx.where(mx.arange(size) % 3 == 0, normal(2, size), -mx.inf), 5)
    check(on_metal, mx.where(mx.arange(size) > 2, -mx.inf, normal(1, size)), 5)  # fewer finite ones than asked for
    check(on_metal, mx.full((1, size), -mx.inf), 5)
    check(on_metal, mx.where(mx.arange(size) % 2 == 0, -0.0, 0.0)[None], 5)
    check(on_metal, -mx.abs(normal(1, size)), 5)
    check(on_metal, normal(1, size).at[:, 700].add(mx.inf), 5)


@pytest.mark.parametrize("padding", [1000.0, mx.inf, mx.nan])
def test_padding_rows_of_the_head_are_never_picked(on_metal, padding):
    for size, vocab in ((40, 11), (BLOCK + 9, BLOCK + 1), (BLOCK + 9, BLOCK)):
        logits = mx.where(mx.arange(size) < vocab, normal(2, size), padding)
        check(on_metal, logits, 5, vocab_size=vocab)


def test_a_second_pass_merges_the_lists(on_metal):
    # Lists are ordered, so the position in them breaks ties as the id does; -1 entries come last of all.
    for logits in (mx.round(3 * normal(3, 20011)), mx.where(mx.arange(BLOCK + 3) > 2, -mx.inf, normal(2, BLOCK + 3))):
        lists = on_metal(top_candidates_call(logits.shape, 16, logits.shape[1]), [logits])
        values, ids = (array.reshape(len(logits), -1) for array in lists)
        merged, at = on_metal(top_candidates_call(values.shape, 16, values.shape[1]), [values])
        want = twin(logits, 16)
        np.testing.assert_array_equal(mx.take_along_axis(ids, at[:, 0], axis=-1), want[0])
        np.testing.assert_array_equal(merged[:, 0], want[1])


def test_fewer_ids_than_candidates_are_refused():
    with pytest.raises(ValueError, match=r"candidates: got 6, expected 1\.\.5"):
        top_candidates_call((1, 9), 6, 5)
    with pytest.raises(ValueError, match=r"candidates: got 33, expected 1\.\.32"):
        top_candidates_call((1, 99), 33, 99)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_rule_of_memory_is_broken(on_metal, sanitizer):
    check(on_metal, mx.round(9 * normal(2, 1030)).astype(mx.bfloat16), 16, vocab_size=1027, sanitizer=sanitizer)
    check(on_metal, normal(1, 3), 3, sanitizer=sanitizer)


def test_address_spaces(on_metal):
    for logits in (normal(1, 7), normal(3, 20011).astype(mx.bfloat16)):
        on_metal.check_address_spaces(top_candidates_call(logits.shape, 4, logits.shape[-1]), [logits])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_vocabulary_of_a_published_model(on_metal, seed):
    logits = (3 * normal(7, 248320, seed=seed)).astype(mx.bfloat16)
    check(on_metal, logits, 16, vocab_size=248077, seed=seed)

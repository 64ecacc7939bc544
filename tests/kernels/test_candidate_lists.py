"""Lists of the best of each block of ids, and their merging: the same candidates as from the whole vocabulary."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.kernels.top_candidates import CandidateLists, candidate_lists, top_candidates


def lists_of_blocks(logits: np.ndarray, k: int, block: int) -> CandidateLists:
    """What stage 1 returns, spelled out; -1 beside -inf where a block has fewer than k ids."""
    batch, positions, size = logits.shape
    blocks = -(-size // block)
    values = np.full((batch, positions, blocks, k), -np.inf, dtype=np.float32)
    ids = np.full(values.shape, -1, dtype=np.int32)
    for b, n in np.ndindex(batch, positions):
        for number in range(blocks):
            own = range(number * block, min(size, (number + 1) * block))
            best = sorted(own, key=lambda i: (-logits[b, n, i], i))[:k]
            values[b, n, number, : len(best)] = logits[b, n, best]
            ids[b, n, number, : len(best)] = best
    return CandidateLists(mx.array(values), mx.array(ids))


def check(logits: np.ndarray, lists: CandidateLists, k: int) -> None:
    merged = lists.merged()
    ids, values = top_candidates(mx.array(logits), k)
    assert merged.ids.shape == merged.values.shape == (*logits.shape[:2], 1, k)
    np.testing.assert_array_equal(merged.ids[:, :, 0], ids)
    np.testing.assert_array_equal(merged.values[:, :, 0], values)


@pytest.mark.parametrize(("size", "k", "block"), [(40, 4, 16), (33, 5, 8), (50, 16, 20), (12, 3, 4), (9, 9, 4)])
@pytest.mark.parametrize("kinds", [2, 5, 1000])
def test_merging_gives_the_candidates_of_the_whole(size, k, block, kinds):
    rng = np.random.default_rng(size + kinds)
    logits = rng.integers(-kinds, kinds, size=(2, 3, size)).astype(np.float32) / 4  # ties within and across blocks
    check(logits, lists_of_blocks(logits, k, block), k)


def test_a_real_id_of_minus_infinity_comes_before_no_id():
    logits = np.full((1, 1, 10), -np.inf, dtype=np.float32)
    logits[0, 0, 3] = 1.0
    check(logits, lists_of_blocks(logits, 6, 4), 6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("size", "vocab"), [(9000, 9000), (9000, 8200), (300, 211), (40, None)])
def test_kernel_and_twin_leave_padding_out(metal, size, vocab, dtype):
    logits = mx.random.normal((1, 2, size), key=mx.random.key(size)).astype(dtype)
    if vocab is not None and vocab < size:
        logits[:, :, vocab:] = 50.0
    merged = candidate_lists(logits, 16, vocab_size=vocab).merged()
    ids, values = top_candidates(logits, 16, vocab_size=vocab)
    np.testing.assert_array_equal(merged.ids[:, :, 0], ids)
    np.testing.assert_array_equal(merged.values[:, :, 0], values)
    (state,) = (state for state in dispatcher().states() if state.name == "top_candidates")
    assert (state.runs, state.tested) == ("metal", True)

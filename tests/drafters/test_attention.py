"""Who sees whom in the drafter (3.6; T4), and positions that are never rebased (3.4)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.drafters.dflash2.attention import DrafterAttention, block_mask
from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from tests.reference.drafter import rms_norm, rope
from tests.reference.masks import visibility
from tests.tiny import drafter_config


def mask(start: int, length: int, *, base: int = 0, capacity: int = 24, window: int | None, causal: bool) -> np.ndarray:
    positions = mx.arange(base, base + capacity, dtype=mx.int32)
    got = block_mask(positions, mx.array([start], dtype=mx.int32), length, window=window, causal=causal)
    assert got.shape == (1, 1, length, capacity) and got.dtype == mx.bool_
    return np.array(got[0, 0])


def test_t4():
    seen = mask(5, 3, window=4, causal=False)
    assert [np.flatnonzero(row).tolist() for row in seen] == [
        [2, 3, 4, 5, 6, 7],
        [3, 4, 5, 6, 7],
        [4, 5, 6, 7],
    ]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2, 4, 8, 100])
@pytest.mark.parametrize(
    ("start", "length", "base"), [(0, 5, 0), (5, 3, 0), (7, 8, 0), (19, 5, 0), (1003, 5, 990), (9, 1, 3)]
)
def test_equals_the_rule_spelled_out(start, length, base, window, causal):
    got = mask(start, length, base=base, window=window, causal=causal)
    block = range(start, start + length)
    want = np.zeros_like(got)
    for column, key in enumerate(range(base, base + 24)):
        if key < start + length:  # beyond the block the buffer holds rows of rejected tokens
            want[:, column] = visibility(block, [key], is_causal=causal, window=window)[:, 0]
    np.testing.assert_array_equal(got, want)


def test_every_row_of_a_published_layer_sees_window_minus_one_context_rows():
    seen = mask(3000, 8, capacity=3100, window=2048, causal=False)
    assert seen[:, :3000].sum(axis=1).tolist() == [2047 - row for row in range(8)]
    assert seen[:, 3000:3008].all() and not seen[:, 3008:].any()


def test_sequences_of_a_batch_have_their_own_start():
    positions, starts = mx.arange(30, dtype=mx.int32), mx.array([0, 9, 25], dtype=mx.int32)
    together = block_mask(positions, starts, 5, window=6, causal=False)
    for row, start in enumerate([0, 9, 25]):
        np.testing.assert_array_equal(together[row, 0], mask(start, 5, capacity=30, window=6, causal=False))


@pytest.mark.parametrize("start", [0, 3, 5000, 250_000])
def test_keys_are_turned_by_their_absolute_position(start):
    config = DrafterConfig.from_dict(drafter_config(head_dim=16, rope_parameters={"rope_theta": 1e6}))
    module = DrafterAttention(config)
    module.k_norm.weight = mx.random.uniform(0.5, 1.5, (16,), key=mx.random.key(1))
    x = mx.random.normal((1, 3, 64), key=mx.random.key(2))
    _, keys, values = module.project(x, mx.array([start], dtype=mx.int32))
    rows = np.array(x[0], dtype=np.float64)
    want = (rows @ np.array(module.k_proj.weight, dtype=np.float64).T).reshape(3, 2, 16)
    want = rope(rms_norm(want, np.array(module.k_norm.weight), 1e-5), range(start, start + 3), 1e6)
    # A float32 angle near position p is off by about p / 2**24.
    np.testing.assert_allclose(np.array(keys[0]).swapaxes(0, 1), want, rtol=0, atol=2e-5 + start * 2e-7)
    np.testing.assert_allclose(values[0].swapaxes(0, 1).reshape(3, -1), module.v_proj(x)[0], rtol=1e-6)

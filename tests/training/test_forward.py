"""Many blocks in one pass are the blocks that decoding computes one by one (7.1)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx.training import block_hidden, forward
from tests.drafters.test_model import TABLES, VARIANTS, taps
from tests.tiny import make_tiny_drafter
from tests.training import one_by_one

LENGTH, WIDTH = 21, 5
ANCHORS = [0, 1, 6, 7, 13, 20]


@pytest.mark.parametrize("name", VARIANTS)
def test_equals_decoding_block_by_block(name):
    drafter = make_tiny_drafter(**VARIANTS[name])
    rows = taps(LENGTH, drafter)
    tokens = mx.array([30 + anchor for anchor in ANCHORS])
    together = block_hidden(drafter, rows, drafter.block_embeddings(tokens, WIDTH, TABLES), np.array(ANCHORS))
    for number, anchor in enumerate(ANCHORS):
        context = drafter.new_context()
        if anchor:
            drafter.append_context(rows[:, :anchor], context, anchor)
        alone = drafter.hidden(drafter.block_embeddings(tokens[number : number + 1], WIDTH, TABLES), context)
        np.testing.assert_allclose(together[number], alone[0], rtol=0, atol=2e-5)


def test_a_block_knows_nothing_at_or_after_its_anchor_and_nothing_of_other_blocks():
    drafter = make_tiny_drafter(layer_types=["full_attention"] * 2)
    rows, anchors = taps(LENGTH, drafter), np.array([8, 12])
    block = drafter.block_embeddings(mx.array([5, 9]), WIDTH, TABLES)
    before = block_hidden(drafter, rows, block, anchors)
    late = mx.where(mx.arange(LENGTH)[None, :, None] >= 8, 9.0, rows)
    other = mx.concatenate([block[:1], block[1:] + 3.0])
    np.testing.assert_array_equal(block_hidden(drafter, late, block, anchors)[0], before[0])
    np.testing.assert_array_equal(block_hidden(drafter, rows, other, anchors)[0], before[0])
    assert not np.allclose(block_hidden(drafter, late, block, anchors)[1], before[1])


@pytest.mark.parametrize("name", VARIANTS)
def test_several_sequences_are_each_as_if_alone(name, monkeypatch):
    monkeypatch.setattr(forward, "_GROUP", 2)  # so that the last sequence needs two groups
    drafter = make_tiny_drafter(**VARIANTS[name])
    lengths, anchors = [21, 6, 4, 17], [[0, 13], [2], [0], [1, 4, 15]]
    each = [taps(length, drafter) + number for number, length in enumerate(lengths)]
    counts = [len(places) for places in anchors]
    blocks = drafter.block_embeddings(mx.arange(sum(counts)) + 40, WIDTH, TABLES)
    padded = mx.concatenate(
        [mx.pad(rows, [(0, 0), (0, 21 - rows.shape[1]), (0, 0)], constant_values=9) for rows in each]
    )
    together = block_hidden(drafter, padded, blocks, np.concatenate(anchors), counts)
    alone = [
        one_by_one.block_hidden(drafter, rows, part, mx.array(places, dtype=mx.int32))
        for rows, part, places in zip(each, mx.split(blocks, np.cumsum(counts)[:-1].tolist()), anchors, strict=True)
    ]
    np.testing.assert_allclose(together, mx.concatenate(alone), rtol=0, atol=2e-5)


def test_a_block_knows_nothing_of_other_sequences():
    drafter = make_tiny_drafter()
    rows, anchors = mx.concatenate([taps(LENGTH, drafter), taps(LENGTH, drafter) + 1]), np.array([8, 12, 3])
    block = drafter.block_embeddings(mx.array([5, 9, 4]), WIDTH, TABLES)
    before = block_hidden(drafter, rows, block, anchors, [1, 2])
    other = mx.concatenate([rows[:1] + 5.0, rows[1:]])
    after = block_hidden(drafter, other, block, anchors, [1, 2])
    np.testing.assert_array_equal(after[1:], before[1:])
    assert not np.allclose(after[0], before[0])


def test_gradients_leak_nothing_from_the_future_nor_from_other_blocks():
    """What a block's loss says of a context row or of another block's row: exactly nothing, unless it sees it."""
    drafter = make_tiny_drafter(layer_types=["full_attention"] * 2)
    rows = mx.concatenate([taps(LENGTH, drafter), taps(LENGTH, drafter) + 1])
    block = drafter.block_embeddings(mx.array([5, 9, 4]), WIDTH, TABLES)

    for number, anchor in enumerate((8, 12)):

        def loss(rows, block, number=number):
            return (block_hidden(drafter, rows, block, np.array([8, 12, 6]), [2, 1])[number] ** 3).sum()

        by_rows, by_block = mx.grad(loss, argnums=(0, 1))(rows, block)
        assert mx.all(mx.any(by_rows[0] != 0, axis=-1) == (mx.arange(LENGTH) < anchor)).item()
        assert not mx.any(by_rows[1]).item()
        assert mx.any(by_block != 0, axis=(1, 2)).tolist() == [number == 0, number == 1, False]


def test_every_parameter_of_the_pass_learns():
    drafter = make_tiny_drafter()
    rows = taps(LENGTH, drafter)
    block = drafter.block_embeddings(mx.array([5, 9]), WIDTH, TABLES)

    def loss(model):
        return (block_hidden(model, rows, block, np.array([8, 12])) ** 3).sum()

    _, gradients = nn.value_and_grad(drafter, loss)(drafter)
    unused = {
        name
        for name, gradient in nn.utils.tree_flatten(gradients)
        if not mx.any(gradient != 0).item() and not name.startswith("candidate_selector")
    }
    assert unused == set()

"""Many blocks in one pass are the blocks that decoding computes one by one (7.1)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx.training import block_hidden
from tests.drafter.test_model import TABLES, VARIANTS, taps
from tests.tiny import make_tiny_drafter

LENGTH, WIDTH = 21, 5
ANCHORS = [0, 1, 6, 7, 13, 20]


@pytest.mark.parametrize("name", VARIANTS)
def test_equals_decoding_block_by_block(name):
    drafter = make_tiny_drafter(**VARIANTS[name])
    rows = taps(LENGTH, drafter)
    tokens = mx.array([30 + anchor for anchor in ANCHORS])
    together = block_hidden(
        drafter, rows, drafter.block_embeddings(tokens, WIDTH, TABLES), mx.array(ANCHORS, dtype=mx.int32)
    )
    for number, anchor in enumerate(ANCHORS):
        context = drafter.new_context()
        if anchor:
            drafter.append_context(rows[:, :anchor], context, anchor)
        alone = drafter.hidden(drafter.block_embeddings(tokens[number : number + 1], WIDTH, TABLES), context)
        np.testing.assert_allclose(together[number], alone[0], rtol=0, atol=2e-5)


def test_a_block_knows_nothing_at_or_after_its_anchor_and_nothing_of_other_blocks():
    drafter = make_tiny_drafter(layer_types=["full_attention"] * 2)
    rows, anchors = taps(LENGTH, drafter), mx.array([8, 12], dtype=mx.int32)
    block = drafter.block_embeddings(mx.array([5, 9]), WIDTH, TABLES)
    before = block_hidden(drafter, rows, block, anchors)
    late = mx.where(mx.arange(LENGTH)[None, :, None] >= 8, 9.0, rows)
    other = mx.concatenate([block[:1], block[1:] + 3.0])
    np.testing.assert_array_equal(block_hidden(drafter, late, block, anchors)[0], before[0])
    np.testing.assert_array_equal(block_hidden(drafter, rows, other, anchors)[0], before[0])
    assert not np.allclose(block_hidden(drafter, late, block, anchors)[1], before[1])


def test_every_parameter_of_the_pass_learns():
    drafter = make_tiny_drafter()
    rows = taps(LENGTH, drafter)
    block = drafter.block_embeddings(mx.array([5, 9]), WIDTH, TABLES)

    def loss(model):
        return (block_hidden(model, rows, block, mx.array([8, 12], dtype=mx.int32)) ** 3).sum()

    _, gradients = nn.value_and_grad(drafter, loss)(drafter)
    unused = {
        name
        for name, gradient in nn.utils.tree_flatten(gradients)
        if not mx.any(gradient != 0).item() and not name.startswith("candidate_selector")
    }
    assert unused == set()

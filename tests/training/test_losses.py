"""Losses and counts against the float64 rows of the reference (7.2)."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx.training import BlockBatch, block_losses, pack, position_weights
from tests.reference import training as reference
from tests.tiny import HIDDEN, VOCAB, make_tiny_drafter

BLOCKS, ROWS = 6, 4


def rows(seed: int = 0):
    """Hidden rows, logits and what is asked, of blocks of one sequence: all rows, asking or not."""
    rng = np.random.default_rng(seed)
    hidden = mx.array(rng.normal(size=(BLOCKS, ROWS, HIDDEN)).astype(np.float32))
    logits = rng.normal(size=(BLOCKS, ROWS, VOCAB + 5)).astype(np.float32) * 2
    logits[..., VOCAB:] = 40.0  # padding of the head, which must not count
    labels = rng.integers(0, VOCAB, size=(BLOCKS, ROWS)).astype(np.int32)
    # Half of the labels are likely ones, or no label would be a candidate.
    likely = np.argsort(-logits[..., :VOCAB], axis=-1)[..., :3]
    picks = np.take_along_axis(likely, rng.integers(0, 3, size=(BLOCKS, ROWS, 1)), axis=-1)[..., 0]
    labels = np.where(rng.random((BLOCKS, ROWS)) < 0.6, picks, labels).astype(np.int32)
    supervised = rng.random((BLOCKS, ROWS)) < 0.8
    previous = rng.integers(0, VOCAB, size=(BLOCKS, ROWS)).astype(np.int32)
    return hidden, mx.array(logits), labels, supervised, previous


def asking(*sequences):
    """The arguments of `block_losses`: rows that ask for something, and their pack."""
    batches = [
        BlockBatch(np.arange(BLOCKS), np.zeros(BLOCKS, dtype=np.int32), labels, supervised, previous)
        for _, _, labels, supervised, previous in sequences
    ]
    asked = [mx.array(np.flatnonzero(batch.supervised)) for batch in batches]
    hidden, logits = (
        mx.concatenate([arrays[i].reshape(BLOCKS * ROWS, -1)[at] for arrays, at in zip(sequences, asked, strict=True)])
        for i in (0, 1)
    )
    return hidden, logits, pack(batches)


def wanted(drafter, hidden, logits, labels, supervised, previous):
    scaled = np.array(drafter.scale_logits(logits), dtype=np.float64)[..., :VOCAB]
    module = drafter.candidate_selector
    wide = [
        np.array(array, dtype=np.float64)
        for array in (module.gate(hidden), module.predecessor_codebook, module.successor_codebook)
    ]
    return reference.block_losses(
        scaled, *wide, labels, supervised, previous, k=drafter.config.selector_top_k, gamma=(ROWS + 1) / 2
    )


def check(drafter, seed: int) -> None:
    got = block_losses(drafter, *asking(rows(seed)))
    want = wanted(drafter, *rows(seed))
    for name, value in want.items():
        assert vars(got)[name].item() == pytest.approx(value, rel=2e-5), name
    assert got.total.item() == pytest.approx(want["base"] + want["selector"], rel=2e-5)
    assert 0 < want["first"] < want["recalled"] < want["asked"] and want["selected"] > 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("changes", [{}, {"selector_top_k": 3}, {"output_multiplier": 0.3}])
def test_equals_the_reference(changes, seed):
    check(make_tiny_drafter(**changes), seed)


def test_several_sequences_are_each_a_mean_of_its_own():
    drafter = make_tiny_drafter()
    few = rows(1)
    few[3][2:] = False  # a sequence with a third of the rows weighs as much as the others
    sequences = [rows(0), few, rows(2)]
    got = block_losses(drafter, *asking(*sequences))
    want = [wanted(drafter, *sequence) for sequence in sequences]
    for name in want[0]:
        assert vars(got)[name].item() == pytest.approx(sum(each[name] for each in want), rel=2e-5), name


def test_a_drafter_without_selector_has_the_base_loss_only():
    second, first = make_tiny_drafter(), make_tiny_drafter(architectures=["DFlashDraftModel"])
    parts = [block_losses(model, *asking(rows())) for model in (first, second)]
    assert parts[0].base.item() == parts[1].base.item()
    assert parts[0].selector.item() == 0 and parts[0].selected.item() == parts[0].first.item()


def test_a_sequence_without_any_label_among_the_candidates_has_no_selector_loss():
    drafter = make_tiny_drafter()
    hidden, logits, _, supervised, previous = rows()
    worst = np.array(logits)[..., :VOCAB].argmin(axis=-1).astype(np.int32)
    parts = block_losses(drafter, *asking((hidden, logits, worst, supervised, previous)))
    assert parts.recalled.item() == parts.selector.item() == 0 and parts.base.item() > 0


@pytest.mark.parametrize(("block_size", "gamma"), [(16, 7.0), (10, 5.0), (8, 4.0), (5, 2.5)])
def test_weights_fall_by_the_published_decay(block_size, gamma):
    weights = position_weights(block_size).tolist()
    assert weights == pytest.approx([math.exp(-k / gamma) for k in range(block_size - 1)])


def test_the_selector_and_what_feeds_it_learn():
    drafter = make_tiny_drafter()
    given = asking(rows())

    def loss(model):
        return block_losses(model, *given).total

    _, gradients = nn.value_and_grad(drafter, loss)(drafter)
    learning = {name for name, value in nn.utils.tree_flatten(gradients) if mx.any(value != 0).item()}
    assert learning == {
        "candidate_selector.predecessor_codebook",
        "candidate_selector.successor_codebook",
        "candidate_selector.hidden_projection.weight",
    }

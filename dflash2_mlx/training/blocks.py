"""Which blocks of a sequence are trained on, and what each of their rows should predict.

Owns: the choice of anchors, a block's tokens, labels and supervision, and how blocks of several sequences stand in one
pass. Host-side, NumPy: it is data preparation.

Reference: docs/dflash2.md 7.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BlockBatch:
    """Blocks of one sequence.

    Shapes:
        anchors:    [A] int32, position of row 0 of each block
        tokens:     [A] int32, the token there
        labels:     [A, B - 1] int32, what rows 1.. should predict; 0 where nothing is asked
        supervised: [A, B - 1] bool, whether a label counts
        previous:   [A, B - 1] int32, the true token before each label
    """

    anchors: np.ndarray
    tokens: np.ndarray
    labels: np.ndarray
    supervised: np.ndarray
    previous: np.ndarray


def sample_anchors(supervised: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw up to `count` anchors, in order, without repetition.

    An anchor is a supervised token whose successor is supervised too, so that every block asks for something.

    Shapes:
        supervised: [S] bool, tokens of the sequence that the drafter should learn -> [at most count] int32
    """
    possible = np.flatnonzero(supervised[:-1] & supervised[1:])
    chosen = possible if len(possible) <= count else rng.choice(possible, size=count, replace=False)
    return np.sort(chosen).astype(np.int32)


def block_batch(tokens: np.ndarray, supervised: np.ndarray, anchors: np.ndarray, block_size: int) -> BlockBatch:
    """Cut blocks out of a sequence.

    Rows beyond the end of the sequence, and rows whose token is not supervised, ask for nothing.

    Shapes:
        tokens: [S] int, supervised: [S] bool, anchors: [A] int
    """
    at = anchors[:, None] + np.arange(1, block_size)
    inside = at < len(tokens)
    place = np.minimum(at, len(tokens) - 1)
    asked = inside & supervised[place]
    return BlockBatch(
        anchors=anchors.astype(np.int32),
        tokens=tokens[anchors].astype(np.int32),
        labels=np.where(asked, tokens[place], 0).astype(np.int32),
        supervised=asked,
        previous=tokens[np.minimum(at - 1, len(tokens) - 1)].astype(np.int32),
    )


@dataclass(frozen=True)
class Pack:
    """Blocks of several sequences in one pass, and the rows that ask for something.

    Shapes:
        counts:    blocks of each sequence
        anchors, tokens: [A] int32, the blocks' first rows; the first sequence's come first
        rows:      [R] int32, where the asking rows are among the A * B rows of all blocks
        places:    [R] int32, their row in the block, 1..B - 1
        sequences: [R] int32, whose rows they are
        labels, previous: [R] int32
    """

    counts: tuple[int, ...]
    anchors: np.ndarray
    tokens: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    sequences: np.ndarray
    labels: np.ndarray
    previous: np.ndarray


def pack(batches: Sequence[BlockBatch]) -> Pack:
    """Put the blocks of several sequences side by side."""
    supervised = np.concatenate([batch.supervised for batch in batches])
    counts = tuple(len(batch.anchors) for batch in batches)
    blocks, places = np.nonzero(supervised)
    block_size = supervised.shape[1] + 1
    return Pack(
        counts=counts,
        anchors=np.concatenate([batch.anchors for batch in batches]),
        tokens=np.concatenate([batch.tokens for batch in batches]),
        rows=(blocks * block_size + places + 1).astype(np.int32),
        places=(places + 1).astype(np.int32),
        sequences=np.repeat(np.arange(len(counts), dtype=np.int32), counts)[blocks],
        labels=np.concatenate([batch.labels for batch in batches])[supervised],
        previous=np.concatenate([batch.previous for batch in batches])[supervised],
    )

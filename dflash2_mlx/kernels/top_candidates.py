"""The k best ids of each row, ordered by (logit descending, id ascending).

Owns: the candidate order everything else relies on. A plain `argpartition` leaves ties open, and bfloat16
logits tie often at the k-th place, so each (logit, id) pair becomes one 64-bit integer key: no ties, one
answer on every back-end. Also the first stage alone, which metal/top_candidates.metal can do: lists of the best
of each block of ids, for `select_walk` to merge.

Reference: docs/dflash2.md 3.9, 8.21.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from .call import KernelCall
from .dispatch import KernelMismatch, dispatcher, race_key

NAME = "top_candidates"


@dataclass(frozen=True)
class CandidateLists:
    """The best logits of blocks of ids, each list in candidate order.

    Shapes:
        values: [B, N, blocks, K] float32, -inf where a block has fewer than K ids
        ids:    [B, N, blocks, K] int32, -1 there
    """

    values: mx.array
    ids: mx.array

    def merged(self) -> CandidateLists:
        """One list for each position."""
        batch, positions, blocks, k = self.ids.shape
        if blocks == 1:
            return self
        values = self.values.reshape(batch, positions, blocks * k)
        ids = self.ids.reshape(values.shape)
        # An id of -1 stands beside -inf; as the largest unsigned number it also loses every tie.
        best = _largest(values, ids.astype(mx.uint32), k)
        found = mx.argmax(best[..., None] == ids[..., None, :], axis=-1)
        kept = mx.take_along_axis(values, found, axis=-1)
        return CandidateLists(kept[:, :, None], best[:, :, None])


def candidate_lists(logits: mx.array, k: int, *, vocab_size: int | None = None) -> CandidateLists:
    """The k best of each block of ids, from which the k best of all can be merged.

    Shapes:
        logits: [B, N, V] any floating dtype
    Args:
        k, vocab_size: as in `top_candidates`.
    """
    batch, positions, size = logits.shape
    vocab = size if vocab_size is None else min(vocab_size, size)
    kernels = dispatcher()
    if k <= MAX_CANDIDATES and kernels.chooses_metal(NAME, key_of(logits, k)):
        inputs = (logits.reshape(-1, size),)
        call = top_candidates_call((batch * positions, size), k, vocab)
        if kernels.passes(call, inputs, lambda: _self_test(call, inputs, k, vocab)):
            values, ids = kernels.run(call, inputs)
            blocks = (batch, positions, -1, k)
            return CandidateLists(values.reshape(blocks), ids.reshape(blocks))
    return twin_lists(logits, k, vocab)


def key_of(logits: mx.array, k: int) -> str:
    """Name of this shape in races."""
    return race_key(logits.shape[1:], logits.dtype, f"top {k}")


def twin_lists(logits: mx.array, k: int, vocab: int) -> CandidateLists:
    """The twin: one list, of all ids below `vocab`."""
    ids, values = top_candidates(logits, k, vocab_size=vocab)
    return CandidateLists(values[:, :, None], ids[:, :, None])


def _self_test(call: KernelCall, inputs: Sequence[mx.array], k: int, vocab: int) -> None:
    logits = mx.random.normal(inputs[0].shape, key=mx.random.key(0))
    # Few different values, so that ties at the border are certain.
    logits = (mx.round(logits * 4) / 4).astype(inputs[0].dtype)
    values, ids = dispatcher().run(call, (logits,))
    got = CandidateLists(values[None], ids[None]).merged()
    want, _ = top_candidates(logits, k, vocab_size=vocab)
    if not mx.array_equal(got.ids[0, :, 0], want).item():
        raise KernelMismatch(f"{NAME}: other candidates than the twin's")


def top_candidates(logits: mx.array, k: int, *, vocab_size: int | None = None) -> tuple[mx.array, mx.array]:
    """Pick the k largest logits of each row; equal logits go to the lower id.

    Shapes:
        logits: [..., V] any floating dtype
    Args:
        k: candidates per row, at most `vocab_size`.
        vocab_size: rows of the head at and beyond this id are padding and never picked; None = V.
    Returns:
        ids [..., k] int32 and values [..., k] float32, both in candidate order.
    """
    values = logits.astype(mx.float32)
    if vocab_size is not None and vocab_size < values.shape[-1]:
        values = values[..., :vocab_size]
    size = values.shape[-1]
    chunk = _chunk_size(size, k)
    if size <= 2 * k * chunk:
        ids = _largest(values, mx.arange(size, dtype=mx.uint32), k)
        return ids, mx.take_along_axis(values, ids, axis=-1)
    # The k best ids lie in the k chunks with the best maxima (equal maxima: the lower chunk), so only maxima
    # and k chunks are sorted, never the vocabulary.
    pad = -size % chunk
    if pad:
        filler = mx.full((*values.shape[:-1], pad), -mx.inf)
        values = mx.concatenate([values, filler], axis=-1)
    chunks = values.reshape(*values.shape[:-1], -1, chunk)
    best = _largest(chunks.max(axis=-1), mx.arange(chunks.shape[-2], dtype=mx.uint32), k)
    kept = mx.take_along_axis(chunks, best[..., None], axis=-2)
    kept_ids = best[..., None].astype(mx.uint32) * chunk + mx.arange(chunk, dtype=mx.uint32)
    flat = (*values.shape[:-1], k * chunk)
    ids = _largest(kept.reshape(flat), kept_ids.reshape(flat), k)
    return ids, mx.take_along_axis(values, ids, axis=-1)


def _chunk_size(size: int, k: int) -> int:
    """About sqrt(V / k), so that both sorts are equally short."""
    return max(8, 1 << round(math.log2(max(size / k, 1)) / 2))


def _largest(values: mx.array, ids: mx.array, k: int) -> mx.array:
    """Ids of the k largest values of each row, in candidate order, through 64-bit keys.

    A key grows with the value and, among equals, with a falling id.
    """
    bits = mx.where(values == 0, 0.0, values).view(mx.uint32)  # -0.0 and 0.0 are equal
    # IEEE floats order like integers once negatives are flipped and positives get the top bit.
    ordered = mx.where(bits >> 31, ~bits, bits | 0x80000000)
    keys = (ordered.astype(mx.uint64) << 32) | (0xFFFFFFFF - ids).astype(mx.uint64)
    if k < keys.shape[-1]:
        keys = mx.partition(keys, keys.shape[-1] - k, axis=-1)[..., -k:]
    keys = mx.sort(keys, axis=-1)[..., ::-1]
    return (0xFFFFFFFF - (keys & 0xFFFFFFFF)).astype(mx.int32)


MAX_CANDIDATES = 32  # a SIMD-group's width: one lane for each candidate


TOP_THREADS = 256


TOP_EACH = 32  # logits of one thread


@cache
def top_candidates_call(shape: tuple[int, int], k: int, vocab_size: int) -> KernelCall:
    """The k best logits of each block of ids; `select_walk` merges the blocks of a row.

    Shapes:
        logits [rows, V] -> values [rows, blocks, k] float32, ids [rows, blocks, k] int32
    Args:
        vocab_size: ids at and beyond it are padding, at most V.
    """
    rows, size = shape
    vocab = min(vocab_size, size)
    check_candidates(k, vocab)
    block = TOP_THREADS * TOP_EACH
    blocks = -(-vocab // block)
    lists = (rows, blocks, k)
    return KernelCall(
        name="top_candidates",
        inputs=("logits",),
        outputs=("values", "ids"),
        template=(("K", k), ("VOCAB", vocab), ("EACH", TOP_EACH)),
        grid=(TOP_THREADS * blocks, rows, 1),
        threadgroup=(TOP_THREADS, 1, 1),
        output_shapes=(lists, lists),
        output_dtypes=(mx.float32, mx.int32),
    )


def check_candidates(k: int, available: int) -> None:
    """Raise ValueError where a SIMD-group has no lane for each of k, or there are fewer."""
    if not 1 <= k <= min(MAX_CANDIDATES, available):
        raise ValueError(f"candidates: got {k}, expected 1..{min(MAX_CANDIDATES, available)}")

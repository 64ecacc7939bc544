"""The k best ids of each row, ordered by (logit descending, id ascending).

Owns: the candidate order everything else relies on. A plain `argpartition` leaves ties open, and bfloat16
logits tie often at the k-th place, so each (logit, id) pair becomes one 64-bit integer key: no ties, one
answer on every back-end. Only the pure-MLX form exists so far.

Reference: DFlash 2 specification 3.9 and decision D-21.
"""

from __future__ import annotations

import math

import mlx.core as mx


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

"""The k best ids of each row, ordered by (logit descending, id ascending).

Owns: the candidate order everything else relies on. A plain `argpartition` leaves ties open, and bfloat16
logits tie often at the k-th place, so each (logit, id) pair becomes one 64-bit integer key: no ties, one
answer on every back-end. Only the pure-MLX form exists so far.

Reference: DFlash 2 specification 3.9 and decision D-21.
"""

from __future__ import annotations

import mlx.core as mx

_CHUNK = 128


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
    # The k best ids lie in the k chunks with the best maxima: sort chunk maxima and k chunks, not the vocabulary.
    if size <= 2 * k * _CHUNK:
        top = _largest(_keys(values, mx.arange(size, dtype=mx.uint32)), k)
    else:
        keys = _keys(values, mx.arange(size, dtype=mx.uint32))
        pad = -size % _CHUNK
        if pad:
            keys = mx.concatenate([keys, mx.zeros((*keys.shape[:-1], pad), dtype=keys.dtype)], axis=-1)
        chunks = keys.reshape(*keys.shape[:-1], -1, _CHUNK)
        maxima = chunks.max(axis=-1)
        best = mx.argpartition(maxima, maxima.shape[-1] - k, axis=-1)[..., -k:]
        kept = mx.take_along_axis(chunks, best[..., None], axis=-2)
        top = _largest(kept.reshape(*kept.shape[:-2], -1), k)
    ids = (0xFFFFFFFF - (top & 0xFFFFFFFF)).astype(mx.int32)
    return ids, mx.take_along_axis(values, ids, axis=-1)


def _keys(values: mx.array, ids: mx.array) -> mx.array:
    """64-bit keys that grow with the logit and, among equals, with a falling id."""
    bits = mx.where(values == 0, 0.0, values).view(mx.uint32)  # -0.0 and 0.0 are equal logits
    # IEEE floats order like integers once negatives are flipped and positives get the top bit.
    ordered = mx.where(bits >> 31, ~bits, bits | 0x80000000)
    return (ordered.astype(mx.uint64) << 32) | (0xFFFFFFFF - ids).astype(mx.uint64)


def _largest(keys: mx.array, k: int) -> mx.array:
    """The k largest keys of each row, descending."""
    if k < keys.shape[-1]:
        keys = mx.partition(keys, keys.shape[-1] - k, axis=-1)[..., -k:]
    return mx.sort(keys, axis=-1)[..., ::-1]

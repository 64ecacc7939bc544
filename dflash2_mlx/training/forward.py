"""The drafter's pass over many blocks of several sequences at once.

Owns: the visibility of training: a block sees its own sequence's context strictly before its anchor and its own rows,
nothing of other blocks. Everything else is the drafter's own modules, so that training and decoding cannot drift apart.

Projections, convolution, norms and MLP take all blocks as one batch. Attention goes sequence by sequence, and in each
through groups of neighbouring blocks: every group looks at exactly the rows it may see, so that scores of rows nobody
sees are not computed, and sequences of different lengths need no padding.

Reference: docs/dflash2.md 3.2, 7.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..drafters.dflash2.config import DrafterConfig
from ..drafters.dflash2.model import DraftModel

_GROUP = 32  # blocks that share a range of context: small ranges are short, few groups are quick


@dataclass(frozen=True)
class _Group:
    """Neighbouring blocks first..last - 1 of a sequence; begin..end - 1 are the context rows that any of them sees."""

    sequence: int
    first: int
    last: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Hidden:
    """What a group's rows do not see, as -inf among zeros, to be added to scores.

    Shapes: across [A, B or 1, S] float32, of the context; inside [B, B] float32, of the block, or None
    """

    across: mx.array
    inside: mx.array | None


def block_hidden(
    drafter: DraftModel,
    taps: mx.array,
    embeddings: mx.array,
    anchors: np.ndarray,
    counts: Sequence[int] | None = None,
) -> mx.array:
    """Hidden rows of all blocks, as decoding computes them block by block.

    Shapes:
        taps:       [N, S, T*D], the target's hidden states of N sequences; what lies past a sequence's end is not read
        embeddings: [A, B, D] input rows: anchor, then mask rows; the blocks of the first sequence come first
        anchors:    [A] int32, position of row 0 in its sequence, rising within a sequence
    Args:
        counts: blocks of each sequence; all belong to the one sequence when left out.
    Returns:
        [A, B, D], final norm applied
    """
    blocks, rows, _ = embeddings.shape
    config = drafter.config
    groups = _groups(config, anchors, [blocks] if counts is None else counts)
    context = drafter.context_rows(taps, mx.zeros((taps.shape[0],), dtype=mx.int32))
    kinds = list(zip(config.layer_types, config.causal, strict=True))
    masks = {kind: [_hidden(config, kind, anchors, rows, group) for group in groups] for kind in set(kinds)}
    starts = mx.array(anchors, dtype=mx.int32)
    hidden = embeddings.astype(drafter.dtype)
    normed = drafter.layers[0].input_layernorm(hidden)
    for layer, next_norm, kind, (keys, values) in zip(
        drafter.layers, drafter.next_norms(), kinds, context, strict=True
    ):
        mixed, delta = layer.attention_conv.prepare(normed)
        queries, own_keys, own_values = layer.self_attn.project(mixed, starts)
        queries = queries * config.head_dim**-0.5
        parts = [
            _attend(
                queries[group.first : group.last],
                own_keys[group.first : group.last],
                own_values[group.first : group.last],
                keys[group.sequence, :, group.begin : group.end],
                values[group.sequence, :, group.begin : group.end],
                mask,
            )
            for group, mask in zip(groups, masks[kind], strict=True)
        ]
        out = layer.self_attn.o_proj(mx.concatenate(parts))
        hidden, normed = layer.attention_conv.finish(out, delta, hidden, layer.post_attention_layernorm)
        mixed, delta = layer.mlp_conv.prepare(normed)
        hidden, normed = layer.mlp_conv.finish(layer.mlp(mixed), delta, hidden, next_norm)
    return normed


def _groups(config: DrafterConfig, anchors: np.ndarray, counts: Sequence[int]) -> list[_Group]:
    found = []
    place = 0
    full = "full_attention" in config.layer_types
    for sequence, count in enumerate(counts):
        for first in range(place, place + count, _GROUP):
            last = min(first + _GROUP, place + count)
            lowest, end = int(anchors[first]), int(anchors[last - 1])
            begin = 0 if full or config.sliding_window is None else max(0, lowest - config.sliding_window + 1)
            found.append(_Group(sequence, first, last, begin, end))
        place += count
    return found


def _attend(
    queries: mx.array, own_keys: mx.array, own_values: mx.array, keys: mx.array, values: mx.array, hidden: _Hidden
) -> mx.array:
    """Attention of one group: over the context it shares, and each block over its own rows.

    Shapes:
        queries: [A, H, B, Dh], scaled; own_keys, own_values: [A, Hkv, B, Dh]; keys, values: [Hkv, S, Dh]
    Returns:
        [A, B, H * Dh]
    """
    blocks, heads, rows, dim = queries.shape
    kv_heads, length, _ = keys.shape
    shared = heads // kv_heads
    # Query heads that share keys stand beside each other, so each product takes them as more rows.
    inside = queries.reshape(blocks, kv_heads, shared * rows, dim) @ own_keys.swapaxes(-1, -2)
    inside = inside.astype(mx.float32).reshape(blocks, heads, rows, rows)
    if hidden.inside is not None:
        inside = inside + hidden.inside
    across = queries.transpose(1, 0, 2, 3).reshape(kv_heads, shared * blocks * rows, dim) @ keys.swapaxes(-1, -2)
    across = across.astype(mx.float32).reshape(heads, blocks, rows, length) + hidden.across
    # One softmax over both parts, without putting them side by side, which would copy every score several times.
    highest = _blocks_first(mx.max(across, axis=-1, keepdims=True)) if length else -mx.inf
    highest = mx.stop_gradient(mx.maximum(highest, mx.max(inside, axis=-1, keepdims=True)))
    inside = mx.exp(inside - highest)
    across = mx.exp(across - highest.transpose(1, 0, 2, 3))
    total = inside.sum(axis=-1, keepdims=True) + _blocks_first(across.sum(axis=-1, keepdims=True))
    own = inside.astype(values.dtype).reshape(blocks, kv_heads, shared * rows, rows) @ own_values
    seen = across.astype(values.dtype).reshape(kv_heads, shared * blocks * rows, length) @ values
    out = own.reshape(blocks, heads, rows, dim) + _blocks_first(seen.reshape(heads, blocks, rows, dim))
    return (out / total).astype(values.dtype).transpose(0, 2, 1, 3).reshape(blocks, rows, heads * dim)


def _blocks_first(heads: mx.array) -> mx.array:
    """[H, A, ...] -> [A, H, ...]."""
    return heads.swapaxes(0, 1)


def _hidden(config: DrafterConfig, kind: tuple[str, bool], anchors: np.ndarray, rows: int, group: _Group) -> _Hidden:
    window = config.sliding_window if kind[0] == "sliding_attention" else None
    starts = anchors[group.first : group.last, None, None]
    within = np.arange(rows)
    context = np.arange(group.begin, group.end)
    distance = within[:, None] - within[None]
    sees_context = context < starts
    sees_block = np.ones((rows, rows), dtype=bool)
    if window is not None and group.end + rows - group.begin > window:
        sees_context = sees_context & (starts + within[:, None] - context < window)
        sees_block = np.abs(distance) < window
    if kind[1]:
        sees_block = sees_block & (distance >= 0)
    return _Hidden(_minus_infinity(sees_context), None if sees_block.all() else _minus_infinity(sees_block))


def _minus_infinity(sees: np.ndarray) -> mx.array:
    return mx.array(np.where(sees, np.float32(0), np.float32(-np.inf)))

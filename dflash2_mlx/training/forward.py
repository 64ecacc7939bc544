"""The drafter's pass over many blocks of one sequence at once.

Owns: the visibility of training: a block sees the context strictly before its anchor and its own rows, nothing of
other blocks. Everything else is the drafter's own modules, so that training and decoding cannot drift apart.

Reference: DFlash 2 specification 3.2, 7.1.
"""

from __future__ import annotations

import mlx.core as mx

from ..config import DrafterConfig
from ..drafter.model import DraftModel


def block_hidden(drafter: DraftModel, taps: mx.array, embeddings: mx.array, anchors: mx.array) -> mx.array:
    """Hidden rows of all blocks, as decoding computes them block by block.

    Shapes:
        taps:       [1, S, T*D], the target's hidden states of the whole sequence
        embeddings: [A, B, D] input rows: anchor, then mask rows
        anchors:    [A] int32
    Returns:
        [A, B, D], final norm applied
    """
    blocks, rows, _ = embeddings.shape
    length = taps.shape[1]
    context = drafter.context_rows(taps, mx.zeros((1,), dtype=mx.int32))
    masks = {kind: _mask(drafter.config, kind, anchors, rows, length) for kind in set(_kinds(drafter.config))}
    hidden = embeddings.astype(drafter.dtype)
    normed = drafter.layers[0].input_layernorm(hidden)
    for layer, next_norm, kind, (keys, values) in zip(
        drafter.layers, drafter.next_norms(), _kinds(drafter.config), context, strict=True
    ):
        mixed, delta = layer.attention_conv.prepare(normed)
        queries, own_keys, own_values = (_one_sequence(heads) for heads in layer.self_attn.project(mixed, anchors))
        out = mx.fast.scaled_dot_product_attention(
            queries,
            mx.concatenate([keys, own_keys], axis=2),
            mx.concatenate([values, own_values], axis=2),
            scale=drafter.config.head_dim**-0.5,
            mask=masks[kind],
        )
        out = layer.self_attn.o_proj(out.transpose(0, 2, 1, 3).reshape(blocks, rows, -1))
        hidden, normed = layer.attention_conv.finish(out, delta, hidden, layer.post_attention_layernorm)
        mixed, delta = layer.mlp_conv.prepare(normed)
        hidden, normed = layer.mlp_conv.finish(layer.mlp(mixed), delta, hidden, next_norm)
    return normed


def _kinds(config: DrafterConfig) -> list[tuple[str, bool]]:
    return list(zip(config.layer_types, config.causal, strict=True))


def _one_sequence(heads: mx.array) -> mx.array:
    """Rows of all blocks side by side: [A, H, B, Dh] -> [1, H, A*B, Dh]."""
    blocks, count, rows, dim = heads.shape
    return heads.transpose(1, 0, 2, 3).reshape(1, count, blocks * rows, dim)


def _mask(config: DrafterConfig, kind: tuple[str, bool], anchors: mx.array, rows: int, length: int) -> mx.array:
    """Who sees whom: [1, 1, A*B, S + A*B] bool."""
    window = config.sliding_window if kind[0] == "sliding_attention" else None
    blocks = anchors.shape[0]
    within = mx.arange(rows, dtype=mx.int32)
    positions = (anchors[:, None] + within).reshape(-1, 1)
    starts = mx.repeat(anchors, rows)[:, None]
    context = mx.arange(length, dtype=mx.int32)[None]
    sees_context = context < starts
    numbers = mx.repeat(mx.arange(blocks, dtype=mx.int32), rows)
    places = mx.tile(within, blocks)
    distance = places[:, None] - places[None]
    sees_block = numbers[:, None] == numbers[None]
    if window is not None:
        sees_context = sees_context & (positions - context < window)
        sees_block = sees_block & (mx.abs(distance) < window)
    if kind[1]:
        sees_block = sees_block & (distance >= 0)
    return mx.concatenate([sees_context, sees_block], axis=1)[None, None]

"""Training written straightforwardly: one sequence at a time, one long attention, every row through the head.

What packed passes are compared with, by tests (numbers) and by `benchmarks/bench_train.py` (time). Of the library it
uses the drafter's modules, the candidate search and the position weights.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.kernels.top_candidates import top_candidates
from dflash2_mlx.targets.base import Target
from dflash2_mlx.training import BlockBatch, Document, position_weights


def block_hidden(drafter: DraftModel, taps: mx.array, embeddings: mx.array, anchors: mx.array) -> mx.array:
    """Shapes: taps [1, S, T*D]; embeddings [A, B, D]; anchors [A] -> [A, B, D]."""
    blocks, rows, _ = embeddings.shape
    context = drafter.context_rows(taps, mx.zeros((1,), dtype=mx.int32))
    kinds = list(zip(drafter.config.layer_types, drafter.config.causal, strict=True))
    hidden = embeddings.astype(drafter.dtype)
    normed = drafter.layers[0].input_layernorm(hidden)
    for layer, next_norm, kind, (keys, values) in zip(
        drafter.layers, drafter.next_norms(), kinds, context, strict=True
    ):
        mixed, delta = layer.attention_conv.prepare(normed)
        queries, own_keys, own_values = (_one_sequence(heads) for heads in layer.self_attn.project(mixed, anchors))
        out = mx.fast.scaled_dot_product_attention(
            queries,
            mx.concatenate([keys, own_keys], axis=2),
            mx.concatenate([values, own_values], axis=2),
            scale=drafter.config.head_dim**-0.5,
            mask=_mask(drafter, kind, anchors, rows, taps.shape[1]),
        )
        out = layer.self_attn.o_proj(out.transpose(0, 2, 1, 3).reshape(blocks, rows, -1))
        hidden, normed = layer.attention_conv.finish(out, delta, hidden, layer.post_attention_layernorm)
        mixed, delta = layer.mlp_conv.prepare(normed)
        hidden, normed = layer.mlp_conv.finish(layer.mlp(mixed), delta, hidden, next_norm)
    return normed


def _one_sequence(heads: mx.array) -> mx.array:
    """[A, H, B, Dh] -> [1, H, A*B, Dh]."""
    blocks, count, rows, dim = heads.shape
    return heads.transpose(1, 0, 2, 3).reshape(1, count, blocks * rows, dim)


def _mask(drafter: DraftModel, kind: tuple[str, bool], anchors: mx.array, rows: int, length: int) -> mx.array:
    """Who sees whom: [1, 1, A*B, S + A*B] bool."""
    blocks = anchors.shape[0]
    within = mx.arange(rows, dtype=mx.int32)
    positions = (anchors[:, None] + within).reshape(-1, 1)
    context = mx.arange(length, dtype=mx.int32)[None]
    sees_context = context < mx.repeat(anchors, rows)[:, None]
    numbers = mx.repeat(mx.arange(blocks, dtype=mx.int32), rows)
    places = mx.tile(within, blocks)
    distance = places[:, None] - places[None]
    sees_block = numbers[:, None] == numbers[None]
    if kind[0] == "sliding_attention":
        sees_context = sees_context & (positions - context < drafter.config.sliding_window)
        sees_block = sees_block & (mx.abs(distance) < drafter.config.sliding_window)
    if kind[1]:
        sees_block = sees_block & (distance >= 0)
    return mx.concatenate([sees_context, sees_block], axis=1)[None, None]


def losses(drafter: DraftModel, target: Target, taps: mx.array, blocks: BlockBatch) -> list[mx.array]:
    """Base, selector, and counts of one sequence, in the order of `LossParts`."""
    config = drafter.config
    embeddings = drafter.block_embeddings(mx.array(blocks.tokens), config.block_size, target)
    hidden = block_hidden(drafter, taps, embeddings, mx.array(blocks.anchors))[:, 1:]
    logits = drafter.scale_logits(target.head(hidden))[..., : config.vocab_size]
    labels, asked, previous = (mx.array(each) for each in (blocks.labels, blocks.supervised, blocks.previous))
    weights = mx.array(position_weights(config.block_size)) * asked
    base = (weights * _cross_entropy(logits, labels)).sum() / weights.sum()
    ids, _ = top_candidates(mx.stop_gradient(logits), config.selector_top_k)
    is_label = ids == labels[..., None]
    recalled = is_label.any(axis=-1) & asked
    first = (ids[..., 0] == labels) & asked
    selector, selected = mx.zeros(()), first
    if config.selector_rank is not None:
        module = drafter.candidate_selector
        gated = module.predecessor_codebook[previous] * module.gate(hidden)
        edges = (gated[..., None, :] * module.successor_codebook[ids]).sum(axis=-1)
        scores = mx.take_along_axis(logits, ids, axis=-1) + edges
        place = mx.argmax(is_label, axis=-1)
        kept = weights * recalled
        selector = (kept * _cross_entropy(scores, place)).sum() / mx.maximum(kept.sum(), 1e-9)
        selected = (mx.argmax(scores, axis=-1) == place) & recalled
    return [base, selector, *(part.astype(mx.float32).sum() for part in (asked, first, recalled, selected))]


def _cross_entropy(logits: mx.array, labels: mx.array) -> mx.array:
    return mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def gradients(
    drafter: DraftModel, target: Target, drawn: list[tuple[Document, BlockBatch]]
) -> tuple[list[float], dict[str, Any]]:
    """Sums over the sequences of a step: `LossParts`, and the gradients of the losses."""

    def loss(taps: mx.array, blocks: BlockBatch) -> tuple[mx.array, list[mx.array]]:
        parts = losses(drafter, target, taps, blocks)
        return parts[0] + parts[1], parts

    sums, total = [0.0] * 6, None
    for document, blocks in drawn:
        ids = mx.array(document.tokens[None], dtype=mx.int32)
        out = target.forward(ids, target.new_state(1), taps=drafter.config.target_layer_ids, last_only=True)
        mx.eval(out.taps)
        (_, parts), found = nn.value_and_grad(drafter, loss)(out.taps, blocks)
        total = found if total is None else tree_map(mx.add, total, found)
        mx.eval(total, parts)
        sums = [value + part.item() for value, part in zip(sums, parts, strict=True)]
    return sums, total

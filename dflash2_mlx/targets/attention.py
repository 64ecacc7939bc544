"""mlx-lm's attention layers, run from their own parts so that our kernel can do the attention.

Owns: for each layer class of mlx-lm it knows, how its projections, norms and rotation make queries, keys and values,
and how its residual stream goes. A class it does not know is run by mlx-lm as ever. Nothing of mlx-lm is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, ministral3, muse_glimmer, qwen2, qwen3, qwen3_5, qwen3_moe, qwen3_next

from ..kernels.few_row_attention import Sight, few_row_attention
from .state import AttentionCache


@dataclass(frozen=True)
class AttentionShape:
    """Query heads, K/V heads and their size."""

    heads: int
    kv_heads: int
    dim: int


@dataclass(frozen=True)
class _Heads:
    """Shapes: queries [B, H, L, Dh]; keys, values [B, Hkv, L, Dh]; gate [B, L, H * Dh] before its sigmoid, or None."""

    queries: mx.array
    keys: mx.array
    values: mx.array
    gate: mx.array | None = None


def attention_shape(layer: nn.Module) -> AttentionShape | None:
    """The shape of a layer that `run_attention_layer` can run, else None."""
    if "self_attn" not in layer or type(layer) not in _LAYERS or type(layer.self_attn) not in _PROJECTIONS:
        return None
    module = layer.self_attn
    if not isinstance(module.k_proj, nn.Linear | nn.QuantizedLinear):  # an adapter around one says no sizes
        return None
    if isinstance(module, qwen3_next.Qwen3NextAttention):
        heads, kv_heads = module.num_attention_heads, module.num_key_value_heads
    else:
        heads, kv_heads = module.n_heads, module.n_kv_heads
    dim = module.k_proj.weight.shape[0] // kv_heads
    return AttentionShape(heads, kv_heads, dim) if abs(module.scale * dim**0.5 - 1) < 1e-6 else None


def run_attention_layer(layer: nn.Module, hidden: mx.array, cache: AttentionCache, sight: Sight) -> mx.array:
    """One layer of a pass of few rows: [B, L, D] -> [B, L, D]; only where `attention_shape` has a shape for it."""
    return _LAYERS[type(layer)](layer, hidden, cache, sight)


def _attend(module: nn.Module, x: mx.array, cache: AttentionCache, sight: Sight) -> mx.array:
    mine = _PROJECTIONS[type(module)](module, x, cache.offset)
    keys, values = cache.update_and_fetch(mine.keys, mine.values)
    out = few_row_attention(mine.queries, keys, values, sight)
    out = out.transpose(0, 2, 1, 3).reshape(*x.shape[:-1], -1)
    if mine.gate is not None:
        out = out * mx.sigmoid(mine.gate)
    return module.o_proj(out)


# How a layer's residual stream goes.


def _pre_norms(layer: nn.Module, hidden: mx.array, cache: AttentionCache, sight: Sight) -> mx.array:
    hidden = hidden + _attend(layer.self_attn, layer.input_layernorm(hidden), cache, sight)
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def _norms_on_both_sides(layer: nn.Module, hidden: mx.array, cache: AttentionCache, sight: Sight) -> mx.array:
    out = _attend(layer.self_attn, layer.input_layernorm(hidden), cache, sight)
    hidden = hidden + layer.post_attention_layernorm(out)
    out = layer.mlp(layer.pre_feedforward_layernorm(hidden))
    return hidden + layer.post_feedforward_layernorm(out)


# How queries, keys and values come about.


def _split(rows: mx.array, heads: int) -> mx.array:
    """[B, L, H * Dh] -> [B, L, H, Dh]."""
    return rows.reshape(*rows.shape[:2], heads, -1)


def _plain(module: Any, x: mx.array, offset: mx.array) -> _Heads:
    queries = _split(module.q_proj(x), module.n_heads).transpose(0, 2, 1, 3)
    keys = _split(module.k_proj(x), module.n_kv_heads).transpose(0, 2, 1, 3)
    values = _split(module.v_proj(x), module.n_kv_heads).transpose(0, 2, 1, 3)
    return _Heads(module.rope(queries, offset=offset), module.rope(keys, offset=offset), values)


def _scaled_by_position(module: Any, x: mx.array, offset: mx.array) -> _Heads:
    mine = _plain(module, x, offset)
    rows, most = mx.arange(x.shape[1]), module.original_max_position_embeddings
    scale = 1 + module.scaling_beta * mx.log(1 + mx.floor((rows + offset[:, None]) / most))
    return _Heads(mine.queries * scale[:, None, :, None].astype(x.dtype), mine.keys, mine.values)


def _normed(module: Any, x: mx.array, offset: mx.array) -> _Heads:
    queries = module.q_norm(_split(module.q_proj(x), module.n_heads)).transpose(0, 2, 1, 3)
    keys = module.k_norm(_split(module.k_proj(x), module.n_kv_heads)).transpose(0, 2, 1, 3)
    values = _split(module.v_proj(x), module.n_kv_heads).transpose(0, 2, 1, 3)
    return _Heads(module.rope(queries, offset=offset), module.rope(keys, offset=offset), values)


def _gated(module: Any, x: mx.array, offset: mx.array) -> _Heads:
    queries, gate = mx.split(_split(module.q_proj(x), module.num_attention_heads), 2, axis=-1)
    queries = module.q_norm(queries).transpose(0, 2, 1, 3)
    keys = module.k_norm(_split(module.k_proj(x), module.num_key_value_heads)).transpose(0, 2, 1, 3)
    values = _split(module.v_proj(x), module.num_key_value_heads).transpose(0, 2, 1, 3)
    gate = gate.reshape(*x.shape[:2], -1)
    return _Heads(module.rope(queries, offset=offset), module.rope(keys, offset=offset), values, gate)


def _glimmer(module: Any, x: mx.array, offset: mx.array) -> _Heads:
    queries = mx.fast.rms_norm(_split(module.q_proj(x), module.n_heads), None, module.eps) * module.qk_scale_factor
    keys = mx.fast.rms_norm(_split(module.k_proj(x), module.n_kv_heads), None, module.eps)
    queries, keys = queries.transpose(0, 2, 1, 3), keys.transpose(0, 2, 1, 3)
    values = _split(module.v_proj(x), module.n_kv_heads).transpose(0, 2, 1, 3)
    if module.use_rope:
        queries, keys = module.rope(queries, offset=offset), module.rope(keys, offset=offset)
    return _Heads(queries, keys, values, module.gate_proj(x))


_PROJECTIONS: dict[type, Callable[[Any, mx.array, mx.array], _Heads]] = {
    llama.Attention: _plain,
    qwen2.Attention: _plain,
    ministral3.Attention: _scaled_by_position,
    qwen3.Attention: _normed,
    qwen3_moe.Attention: _normed,
    qwen3_next.Qwen3NextAttention: _gated,
    muse_glimmer.Attention: _glimmer,
}
_LAYERS: dict[type, Callable[[nn.Module, mx.array, AttentionCache, Sight], mx.array]] = {
    llama.TransformerBlock: _pre_norms,
    qwen2.TransformerBlock: _pre_norms,
    ministral3.TransformerBlock: _pre_norms,
    qwen3.TransformerBlock: _pre_norms,
    qwen3_moe.Qwen3MoeDecoderLayer: _pre_norms,
    qwen3_5.DecoderLayer: _pre_norms,
    muse_glimmer.DecoderLayer: _norms_on_both_sides,
}

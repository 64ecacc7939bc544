"""Whole drafter forward, recomputed from scratch every time (docs/dflash2.md 3).

Taps.  The tap of target layer t is the residual stream after layer t.  The
taps of one token are concatenated in the order of ``target_layer_ids`` and
reduced once::

    c = RMSNorm_hidden_norm(fc @ concat(taps))

Block input.  Row 0 is the embedding of the anchor, every other row that of the
mask token, all times ``input_embedding_scale``.  Context token s stands at
position s, row i at P + i, with P the position of the anchor; nothing is
rebased to the window.

One layer, with h the block rows::

    x        = RMSNorm_in(h)
    x, after = attention_conv.prepare(x)              (version 2 only)
    q        = RoPE(RMSNorm_q(heads(q_proj x)))
    k, v     = RoPE(RMSNorm_k(heads(k_proj [c ; x]))), heads(v_proj [c ; x])
    o        = softmax(q k / sqrt(Dh) + mask) v       (grouped query heads)
    h        = h + attention_conv.finish(o_proj o, after)
    x        = RMSNorm_post(h)
    x, after = mlp_conv.prepare(x)
    h        = h + mlp_conv.finish(down(silu(gate x) * up x), after)

Context rows skip the input norm, both convolutions and the MLP.  Afterwards::

    z = RMSNorm_norm(h)
    u = head @ z * output_multiplier
    u = cap * tanh(u / cap)            if final_logit_softcapping is above 0

RMSNorm is ``x / sqrt(mean(x^2) + eps) * w``.  RoPE turns the pair
(d, d + Dh/2) by position * theta ** (-2 d / Dh).

A version 1 checkpoint (``DFlashDraftModel``) has neither convolution nor
selector: its proposal is the largest logit of each row.

Shape letters: S context tokens, L block rows, N = L - 1, T taps, D hidden,
H / Hkv heads, Dh head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference import conv, masks, selector

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class DraftOutput:
    """hidden [L, D] after the final norm (all rows), logits [N, V] of rows 1.."""

    hidden: np.ndarray
    logits: np.ndarray


def setting(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Look a drafter key up: nested first, then top level, then the default."""
    nested = config.get("dflash_config") or {}
    if name in nested:
        return nested[name]
    return config.get(name, default)


def is_version_2(config: Mapping[str, Any]) -> bool:
    """Only the architecture string tells version 2 from version 1."""
    return "DFlash2DraftModel" in config.get("architectures", ())


def rope_theta(config: Mapping[str, Any]) -> float:
    """Rotary base: the nested value when present, else the top-level one."""
    nested = config.get("rope_parameters") or {}
    return float(nested.get("rope_theta", config.get("rope_theta")))


def default_target_layer_ids(target_layers: int, draft_layers: int) -> list[int]:
    """Taps of a version 1 file without a list (docs/dflash2.md 2.6)."""
    if draft_layers == 1:
        return [target_layers // 2]
    span = target_layers - 4
    return [round(1 + i * span / (draft_layers - 1)) for i in range(draft_layers)]


def tap_layers(
    stream: np.ndarray,
    layers: Sequence[Callable[[np.ndarray], np.ndarray]],
    target_layer_ids: Sequence[int],
) -> np.ndarray:
    """Run a target's layers and concatenate the residual stream after some.

    Each callable maps the stream to what the layer *adds* to it.

    Shapes:
        stream: [S, D]
    Returns:
        [S, T * D]
    """
    after = []
    for layer in layers:
        stream = stream + layer(stream)
        after.append(stream)
    return np.concatenate([after[layer_id] for layer_id in target_layer_ids], axis=-1)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Plain RMSNorm over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x: np.ndarray, positions: Sequence[int], theta: float) -> np.ndarray:
    """Rotate every head of every row by its absolute position.

    Shapes:
        x: [L, H, Dh]; positions: [L]
    """
    head_dim = x.shape[-1]
    half = head_dim // 2
    result = np.zeros_like(x)
    for row, position in enumerate(positions):
        for d in range(half):
            angle = float(position) * theta ** (-2.0 * d / head_dim)
            low, high = x[row, :, d], x[row, :, d + half]
            result[row, :, d] = low * np.cos(angle) - high * np.sin(angle)
            result[row, :, d + half] = high * np.cos(angle) + low * np.sin(angle)
    return result


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


class ReferenceDrafter:
    """A drafter checkpoint with the tables borrowed from its target.

    Shapes:
        weights:   published names, any float dtype
        embedding: [rows, D]   raw rows of the target's table
        head:      [V, D]
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Weights,
        embedding: np.ndarray,
        head: np.ndarray,
    ) -> None:
        self.config = config
        self.weights = {name: np.asarray(w, dtype=np.float64) for name, w in weights.items()}
        self.embedding = np.asarray(embedding, dtype=np.float64)
        self.head = np.asarray(head, dtype=np.float64)
        self.eps = float(config["rms_norm_eps"])
        self.theta = rope_theta(config)
        self.version_2 = is_version_2(config)

    def context_features(self, target_hidden: np.ndarray) -> np.ndarray:
        """Reduce taps [S, T * D] to the features [S, D] all layers share."""
        reduced = np.asarray(target_hidden, dtype=np.float64) @ self.weights["fc.weight"].T
        return rms_norm(reduced, self.weights["hidden_norm.weight"], self.eps)

    def context_keys_values(
        self, layer: int, features: np.ndarray, positions: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [S, Hkv, Dh] of the context rows for one layer."""
        return self._keys_values(f"layers.{layer}.self_attn", features, positions)

    def block_input(self, anchor: int, width: int) -> np.ndarray:
        """Embedding rows [L, D]: the anchor, then mask tokens."""
        mask_id = int(setting(self.config, "mask_token_id"))
        scale = float(setting(self.config, "input_embedding_scale", 1.0))
        ids = [anchor] + [mask_id] * (width - 1)
        return self.embedding[ids] * scale

    def forward(
        self,
        target_hidden: np.ndarray,
        anchor: int,
        width: int,
        context_start: int = 0,
    ) -> DraftOutput:
        """Run a block behind its whole context.

        Shapes:
            target_hidden: [S, T * D]  context tokens context_start ... P - 1
        """
        features = self.context_features(target_hidden)
        context = list(range(context_start, context_start + len(features)))
        anchor_position = context_start + len(features)
        block = list(range(anchor_position, anchor_position + width))
        h = self.block_input(anchor, width)
        for layer in range(int(self.config["num_hidden_layers"])):
            h = self._layer(layer, h, features, context, block)
        hidden = rms_norm(h, self.weights["norm.weight"], self.eps)
        return DraftOutput(hidden=hidden, logits=self.logits(hidden[1:]))

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Head, then multiplier, then softcap."""
        vocab = int(self.config["vocab_size"])
        logits = hidden @ self.head[:vocab].T
        logits = logits * float(setting(self.config, "output_multiplier", 1.0))
        cap = setting(self.config, "final_logit_softcapping")
        if cap is not None and cap > 0:
            logits = float(cap) * np.tanh(logits / float(cap))
        return logits

    def propose(
        self,
        output: DraftOutput,
        anchor: int,
        temperature: float = 0.0,
        uniforms: np.ndarray | None = None,
        gumbels: np.ndarray | None = None,
    ) -> selector.Walk:
        """Walk the candidates of a version 2 drafter."""
        gate_weight = self.weights["candidate_selector.hidden_projection.weight"]
        return selector.walk(
            output.logits,
            output.hidden[1:] @ gate_weight.T,
            self.weights["candidate_selector.predecessor_codebook"],
            self.weights["candidate_selector.successor_codebook"],
            anchor,
            int(setting(self.config, "selector_top_k")),
            temperature,
            uniforms,
            gumbels,
        )

    def greedy_proposal(self, output: DraftOutput, anchor: int) -> np.ndarray:
        """Greedy tokens [N] of either version."""
        if self.version_2:
            return self.propose(output, anchor).tokens
        return np.array([selector.first_largest(row) for row in output.logits])

    def _layer(
        self,
        layer: int,
        h: np.ndarray,
        features: np.ndarray,
        context: list[int],
        block: list[int],
    ) -> np.ndarray:
        name = f"layers.{layer}"
        x = rms_norm(h, self.weights[f"{name}.input_layernorm.weight"], self.eps)
        x, after = self._prepare(f"{name}.attention_conv", x)
        y = self._attention(layer, x, features, context, block)
        h = h + self._finish(f"{name}.attention_conv", y, after)
        x = rms_norm(h, self.weights[f"{name}.post_attention_layernorm.weight"], self.eps)
        x, after = self._prepare(f"{name}.mlp_conv", x)
        gate = x @ self.weights[f"{name}.mlp.gate_proj.weight"].T
        up = x @ self.weights[f"{name}.mlp.up_proj.weight"].T
        y = (silu(gate) * up) @ self.weights[f"{name}.mlp.down_proj.weight"].T
        return h + self._finish(f"{name}.mlp_conv", y, after)

    def _prepare(self, name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        if not self.version_2:
            return x, None
        return conv.prepare(
            x,
            self.weights[f"{name}.base_kernel"],
            self.weights[f"{name}.kernel_projection.weight"],
            int(setting(self.config, "conv_group_size")),
        )

    def _finish(self, name: str, y: np.ndarray, after: np.ndarray | None) -> np.ndarray:
        if after is None:
            return y
        group_size = int(setting(self.config, "conv_group_size"))
        return conv.finish(y, after, self.weights[f"{name}.base_kernel"], group_size)

    def _keys_values(self, name: str, rows: np.ndarray, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        head_dim = int(self.config["head_dim"])
        shape = (len(rows), int(self.config["num_key_value_heads"]), head_dim)
        keys = (rows @ self.weights[f"{name}.k_proj.weight"].T).reshape(shape)
        keys = rms_norm(keys, self.weights[f"{name}.k_norm.weight"], self.eps)
        values = (rows @ self.weights[f"{name}.v_proj.weight"].T).reshape(shape)
        return rope(keys, positions, self.theta), values

    def _attention(
        self,
        layer: int,
        x: np.ndarray,
        features: np.ndarray,
        context: list[int],
        block: list[int],
    ) -> np.ndarray:
        name = f"layers.{layer}.self_attn"
        heads = int(self.config["num_attention_heads"])
        head_dim = int(self.config["head_dim"])
        queries = (x @ self.weights[f"{name}.q_proj.weight"].T).reshape(len(x), heads, head_dim)
        queries = rms_norm(queries, self.weights[f"{name}.q_norm.weight"], self.eps)
        queries = rope(queries, block, self.theta)
        context_keys, context_values = self.context_keys_values(layer, features, context)
        block_keys, block_values = self._keys_values(name, x, block)
        keys = np.concatenate([context_keys, block_keys])
        values = np.concatenate([context_values, block_values])
        mask = self._mask(layer, block, context + block)
        share = heads // int(self.config["num_key_value_heads"])
        output = np.zeros((len(x), heads, head_dim))
        for row in range(len(x)):
            for head in range(heads):
                scores = keys[:, head // share] @ queries[row, head] / np.sqrt(head_dim)
                weights = selector.softmax(np.where(mask[row], scores, -np.inf))
                output[row, head] = weights @ values[:, head // share]
        return output.reshape(len(x), -1) @ self.weights[f"{name}.o_proj.weight"].T

    def _mask(self, layer: int, queries: list[int], keys: list[int]) -> np.ndarray:
        layer_types = self.config.get("layer_types") or ()
        layer_type = layer_types[layer] if layer_types else "full_attention"
        sliding = layer_type == "sliding_attention"
        return masks.visibility(
            queries,
            keys,
            is_causal=masks.layer_is_causal(self.config.get("is_causal"), layer_type),
            window=int(self.config["sliding_window"]) if sliding else None,
        )

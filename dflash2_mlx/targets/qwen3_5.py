"""Qwen3.5 / 3.6 / 3.8 targets, dense and mixture of experts: gated delta and full attention in turn."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..layers.gated_delta import gated_delta_pass
from .layer_loop import FULL, RECURRENT, LayerLoopTarget, Seen
from .state import TargetState


class Qwen3_5Target(LayerLoopTarget):
    """A hybrid: its recurrent layers are replayed on commit, its attention layers cut back."""

    def __init__(self, text_model: Any, *, family: str, context_length: int | None, quantization: str | None):
        super().__init__(
            text_model,
            family=family,
            kinds=[RECURRENT if layer.is_linear else FULL for layer in text_model.model.layers],
            window=None,
            context_length=context_length,
            quantization=quantization,
        )

    def run_layer(
        self, layer: nn.Module, kind: str, index: int, hidden: mx.array, seen: Seen | None, state: TargetState
    ) -> mx.array:
        if kind == FULL:
            return super().run_layer(layer, kind, index, hidden, seen, state)
        normed, before = layer.input_layernorm(hidden), state.recurrent[index]
        mixed, tape = gated_delta_pass(layer.linear_attn, normed, before, exact=self.exact)
        state.passes[-1].tapes.append(tape)
        hidden = hidden + mixed
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

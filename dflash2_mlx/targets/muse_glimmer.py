"""Muse Glimmer targets: three sliding layers with RoPE, then one full layer without positions."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from .layer_loop import FULL, SLIDING, LayerLoopTarget


class MuseGlimmerTarget(LayerLoopTarget):
    """Differs from the dense shape by a weightless norm after the embedding and capped logits."""

    def __init__(self, text_model: Any, *, family: str, context_length: int | None, quantization: str | None):
        args = text_model.args
        super().__init__(
            text_model,
            family=family,
            kinds=[SLIDING if t == "sliding_attention" else FULL for t in args.layer_types],
            window=args.sliding_window,
            context_length=context_length,
            quantization=quantization,
        )
        self.multiplier = args.output_multiplier
        self.softcap = args.final_logit_softcapping

    def embed_input(self, ids: mx.array) -> mx.array:
        return mx.fast.rms_norm(self.body.embed_tokens(ids), None, self.body.embed_eps)

    def finish_logits(self, logits: mx.array) -> mx.array:
        logits = logits * self.multiplier
        return mx.tanh(logits / self.softcap) * self.softcap

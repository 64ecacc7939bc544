"""Targets of the dense shape: attention layers with one K/V cache each, and their mixture-of-experts kin.

Serves mlx-lm's llama (Llama, SmolLM2, Mistral), ministral3, qwen2, qwen3 and qwen3_moe modules and the text
towers built from them; a Llama-shaped model may mix full and sliding layers.
"""

from __future__ import annotations

from typing import Any

from .layer_loop import FULL, SLIDING, LayerLoopTarget


class DenseTarget(LayerLoopTarget):
    """One residual stream, attention in every layer."""

    def __init__(self, text_model: Any, *, family: str, context_length: int | None, quantization: str | None):
        args = text_model.args
        kinds = [FULL] * len(text_model.model.layers)
        window = None
        if "layer_types" in vars(args):
            window = args.sliding_window
            kinds = [SLIDING if t == "sliding_attention" else FULL for t in args.layer_types]
        super().__init__(
            text_model,
            family=family,
            kinds=kinds,
            window=window,
            context_length=context_length,
            quantization=quantization,
        )

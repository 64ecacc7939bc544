"""Which model families have a target adapter.

Owns: the table from `model_type` to adapter, and the refusal of everything else before weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.nn as nn

from ..errors import ConfigError, UnsupportedModelError
from ..layers.quantized import check_exactness, use_row_kernels
from .base import Target
from .dense import DenseTarget
from .muse_glimmer import MuseGlimmerTarget
from .qwen3_5 import Qwen3_5Target

Adapter = Callable[..., Target]

# model_type of config.json (top level or text_config) -> (name for users, adapter)
FAMILIES: dict[str, tuple[str, Adapter]] = {
    "llama": ("Llama", DenseTarget),
    "mistral": ("Mistral", DenseTarget),
    "ministral3": ("Ministral 3", DenseTarget),
    "mistral3": ("Mistral 3", DenseTarget),
    "qwen2": ("Qwen2", DenseTarget),
    "qwen3": ("Qwen3", DenseTarget),
    "qwen3_moe": ("Qwen3-MoE", DenseTarget),
    "qwen3_vl": ("Qwen3-VL (text)", DenseTarget),
    "qwen3_vl_moe": ("Qwen3-VL-MoE (text)", DenseTarget),
    "qwen3_5": ("Qwen3.5", Qwen3_5Target),
    "qwen3_5_moe": ("Qwen3.5-MoE", Qwen3_5Target),
    "muse_glimmer": ("Muse Glimmer", MuseGlimmerTarget),
}


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text tower's part of a target config: `text_config` merged over the top level."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def family_of(config: Mapping[str, Any]) -> str:
    """The `model_type` that decides the adapter.

    Raises:
        UnsupportedModelError: with the list of supported families.
    """
    kind = config.get("model_type")
    supported = ", ".join(FAMILIES)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UnsupportedModelError(f"model_type: got {kind!r}, expected one of {supported}")
    inner = text_config(config).get("model_type")
    if kind == "mistral3" and inner == "mistral4":
        raise UnsupportedModelError(f"text_config.model_type: got {inner!r}, expected one of {supported}")
    return kind


def make_target(model: nn.Module, config: Mapping[str, Any], *, exact: bool = False) -> Target:
    """Wrap a model that mlx-lm loaded.

    Args:
        model: mlx-lm's model object, weights loaded. Where a kernel can run, its quantized linear layers become
            `RowsLinear`.
        config: its whole config.json.
        exact: a row of a linear layer gets the same bits alone and in a block.
    Raises:
        SettingError: `exact`, and some product of this model cannot be.
    """
    name, adapter = FAMILIES[family_of(config)]
    text = text_config(config)
    # Multimodal classes hold their text tower as `language_model`.
    text_model = model.language_model if "language_model" in model else model
    if exact:
        check_exactness(text_model, tied="lm_head" not in text_model)
    use_row_kernels(text_model, exact=exact)
    context = text.get("max_position_embeddings")
    return adapter(
        text_model,
        family=name,
        context_length=int(context) if context else None,
        quantization=describe_quantization(config),
    )


def file_quantization(config: Mapping[str, Any]) -> Any:
    """What a config says of packed weights in MLX's form; None where it says nothing.

    It stands under `quantization`, or under `quantization_config` alone; there a `quant_method` tells that it is
    another library's form, which mlx-lm converts itself.
    """
    other = config.get("quantization_config")
    ours = isinstance(other, Mapping) and "quant_method" not in other
    return config.get("quantization") or (other if ours else None)


def describe_quantization(config: Mapping[str, Any]) -> str | None:
    """For people: "4-bit group 64", or None for unquantized weights.

    Raises:
        ConfigError: `quantization` does not say which.
    """
    quantization = file_quantization(config)
    if not quantization:
        return None
    try:
        return f"{quantization['bits']}-bit group {quantization['group_size']}"
    except (KeyError, TypeError) as error:
        raise ConfigError(f"quantization: got {quantization!r}, expected bits and group_size") from error

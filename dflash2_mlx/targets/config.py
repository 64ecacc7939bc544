"""What a target's `config.json` may say.

Owns: the refusal of numbers no model can have, and of settings that change the computation and that mlx-lm's modules
do not follow. What those modules read themselves is theirs to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..values import check_integer, check_number, refusal
from .registry import family_of, text_config

_NEEDED = ("hidden_size", "num_hidden_layers", "vocab_size")
_COUNTS = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings")
_ACTIVATIONS = (None, "silu", "swish")
_NEVER_SLIDE = ("qwen2", "qwen3", "qwen3_moe")


def check_target(config: Mapping[str, Any]) -> None:
    """Refuse a target config that mlx-lm would run as something else, or as nothing.

    Raises:
        ConfigError: naming the key, what it holds and what is expected.
        UnsupportedModelError: the family.
    """
    family = family_of(config)
    text = text_config(config)
    for key in (*_NEEDED, *_COUNTS):
        value = text.get(key)
        if value is None and key not in _NEEDED:
            continue
        check_integer(f"target {key}", value, 1)
    check_number("target rms_norm_eps", text.get("rms_norm_eps", 0.0), least=0.0)
    for where in ("", "rope_parameters", "rope_scaling"):
        nested = text if not where else text.get(where) or {}
        if isinstance(nested, Mapping) and nested.get("rope_theta") is not None:
            check_number(f"target {f'{where}.rope_theta'.lstrip('.')}", nested["rope_theta"], above=0.0)
    if text.get("hidden_act") not in _ACTIVATIONS:
        raise refusal("target hidden_act", text["hidden_act"], "silu, which is what mlx-lm's module computes")
    if family in _NEVER_SLIDE and text.get("use_sliding_window"):
        expected = f"false: mlx-lm's {family} does not slide"
        raise refusal("target use_sliding_window", text["use_sliding_window"], expected)

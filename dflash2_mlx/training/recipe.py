"""A drafter's config for a target that has none yet.

Owns: defaults for layers, taps, block size and window, from the target's `config.json`; the result is a config in the
published layout like any other.

Reference: DFlash 2 specification 2.1-2.3, 2.6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import DrafterConfig
from ..errors import ConfigError
from ..load import Engine
from ..targets.registry import text_config
from ..weights import expected_shapes

_DEEP = 16  # layers from which a target is not small


@dataclass(frozen=True)
class DrafterShape:
    """What may be chosen; None takes the default for the target."""

    layers: int | None = None
    block_size: int = 8
    taps: tuple[int, ...] | None = None
    window: int = 2048
    conv: bool = True
    selector: bool = True
    selector_rank: int | None = None

    def config(self, target_config: Mapping[str, Any], mask_token_id: int) -> dict[str, Any]:
        """The drafter's `config.json` for this target.

        Raises:
            ConfigError: a choice that the target does not allow, or a target config without what is needed.
        """
        text = text_config(target_config)
        depth, hidden = _number(text, "num_hidden_layers"), _number(text, "hidden_size")
        heads = _number(text, "num_attention_heads")
        layers = self.layers or (2 if depth < _DEEP else 5)
        taps = self.taps or default_taps(depth, min(5, max(1, depth - 1)))
        if max(taps) >= depth or min(taps) < 0:
            raise ConfigError(f"taps: got {list(taps)}, expected layers of the target in 0..{depth - 1}")
        if not 2 <= self.block_size <= 64:
            raise ConfigError(f"block_size: got {self.block_size}, expected an integer in 2..64")
        group = next(size for size in (16, 8, 4, 2, 1) if hidden % size == 0)
        nested: dict[str, Any] = {
            "block_size": self.block_size,
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(taps),
        }
        if self.conv:
            nested |= {"conv_kernel_size": 2, "conv_group_size": group}
        if self.selector:
            nested |= {"selector_rank": self.selector_rank or max(16, min(256, hidden // 8)), "selector_top_k": 16}
        if self.conv != self.selector:
            raise ConfigError("conv, selector: got one without the other, expected both (DFlash 2) or neither (DFlash)")
        return {
            "architectures": ["DFlash2DraftModel" if self.conv else "DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": text.get("num_key_value_heads") or heads,
            "head_dim": text.get("head_dim") or hidden // heads,
            "intermediate_size": _intermediate(text, hidden),
            "vocab_size": _number(text, "vocab_size"),
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "is_causal": False,
            "layer_types": ["sliding_attention"] * layers,
            "sliding_window": self.window,
            "max_position_embeddings": text.get("max_position_embeddings") or 32768,
            "num_target_layers": depth,
            "rope_parameters": {"rope_theta": _rope_theta(text), "rope_type": "default"},
            "tie_word_embeddings": False,
            "dflash_config": nested,
        }


def parameter_count(raw: Mapping[str, Any]) -> int:
    """Numbers in a drafter of this config."""
    shapes = expected_shapes(DrafterConfig.from_dict(raw)).values()
    return sum(math.prod(shape) for shape in shapes)


def config_for(engine: Engine, shape: DrafterShape) -> dict[str, Any]:
    """The config of a drafter for a loaded target."""
    return shape.config(engine.target_config, mask_token(engine))


def mask_token(engine: Engine) -> int:
    """The token that fills the rows of a block: one that no text holds, if there is one.

    A row of the embedding that the tokenizer does not use; else its padding or unknown token; else the last one.
    """
    rows = engine.target.spec.embedding_rows
    used = len(engine.tokenizer)
    if used < rows:
        return used
    for candidate in (engine.tokenizer.pad_token_id, engine.tokenizer.unk_token_id):
        if candidate is not None and candidate not in engine.stop_token_ids:
            return int(candidate)
    return rows - 1


def default_taps(depth: int, count: int) -> tuple[int, ...]:
    """Layers of a target of `depth` whose outputs the drafter reads: spread evenly, the top few left out."""
    first, last = (1, depth - 3) if depth >= 8 else (0, max(0, depth - 2))
    if count == 1:
        return ((first + last) // 2,)
    return tuple(sorted({round(first + i * (last - first) / (count - 1)) for i in range(count)}))


def _number(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"target {key}: got {value!r}, expected an integer >= 1")
    return value


def _intermediate(text: Mapping[str, Any], hidden: int) -> int:
    """The target's own, unless it is a mixture of small experts."""
    stated = text.get("intermediate_size")
    return stated if isinstance(stated, int) and stated >= hidden else 3 * hidden


def _rope_theta(text: Mapping[str, Any]) -> float:
    nested = text.get("rope_parameters") or {}
    return float(nested.get("rope_theta") or text.get("rope_theta") or 10000.0)

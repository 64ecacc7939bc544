"""A drafter before its first step: its config for a target that has none yet, and its first weights.

Owns: defaults for layers, taps, block size and window, from the target's `config.json`; new weights, or a checkpoint's.
The convolution starts as the identity and the selector as silent, so an untrained DFlash 2 drafter is a DFlash drafter.

Reference: docs/dflash2.md 2.1-2.3, 2.6, 7.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..checkpoints.configs import check_pair
from ..checkpoints.drafter_weights import check_drafter_files, expected_shapes
from ..checkpoints.files import find_config, find_files, read_config
from ..drafters.dflash2.config import DrafterConfig
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine
from ..errors import CheckpointError, SettingError
from ..names import drafter_name
from ..targets.registry import text_config
from ..validation import check_integer
from .settings import TrainSettings
from .trainer import MOST_LOGITS

_DEEP = 16  # layers from which a target is not small


_SILENT_RANK = 4  # of a selector that is there for the layout only


@dataclass(frozen=True)
class DrafterShape:
    """What may be chosen; None takes the default for the target.

    There is no layout for one of convolution and selector without the other. A drafter with one of them is a DFlash 2
    drafter whose other part does nothing (a convolution of one tap that stays the identity, a silent selector), so any
    program that reads DFlash 2 reads it; `TrainSettings` must say that this part does not learn.
    """

    layers: int | None = None
    block_size: int = 8
    taps: tuple[int, ...] | None = None
    window: int = 2048
    conv: bool = True
    selector: bool = True
    conv_kernel: int = 2
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
        if max(taps) >= depth or min(taps) < 0 or list(taps) != sorted(set(taps)):
            raise SettingError(f"taps: got {list(taps)}, expected rising layers of the target in 0..{depth - 1}")
        for name, value, low, high in (
            ("layers", layers, 1, 64), ("block_size", self.block_size, 2, 64), ("window", self.window, 1, None),
            ("conv_kernel", self.conv_kernel, 1, 16), ("selector_rank", self.selector_rank or 1, 1, 4096),
        ):  # fmt: skip
            check_integer(name, value, low, high)
        group = next(size for size in (16, 8, 4, 2, 1) if hidden % size == 0)
        nested: dict[str, Any] = {
            "block_size": self.block_size,
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(taps),
        }
        second = self.conv or self.selector
        if second:
            rank = (self.selector_rank or max(16, min(256, hidden // 8))) if self.selector else _SILENT_RANK
            nested |= {
                "conv_kernel_size": self.conv_kernel if self.conv else 1,
                "conv_group_size": group,
                "selector_rank": rank,
                "selector_top_k": min(16, _number(text, "vocab_size")),
            }
        return {
            "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
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


def memory_estimate(raw: Mapping[str, Any], settings: TrainSettings, length: int) -> tuple[int, int]:
    """Roughly what a step takes beside the target, in bytes: weights with moments, and activations of a pass.

    Args:
        length: tokens of the longest document.

    Counted for activations: what each layer keeps for the gradient in a pass of one sequence or of `MOST_LOGITS`
    logits, whichever is more, and logits with their gradients. MLX frees and reuses in between, so it may be less.
    """
    config = DrafterConfig.from_dict(raw)
    asked = settings.anchors * (config.block_size - 1)
    rows = max(asked, min(MOST_LOGITS // config.vocab_size, asked * settings.sequences)) * config.block_size
    rows //= config.block_size - 1
    size = 2 if settings.dtype == "bfloat16" else 4
    per_layer = 24 * config.hidden_size + 5 * config.intermediate_size + 3 * config.num_heads * length
    context = length * (len(config.target_layer_ids) + 4) * config.hidden_size
    activations = size * (rows * per_layer * config.num_layers + context) + 4 * 5 * rows * config.vocab_size
    return 16 * parameter_count(raw), activations


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
    return check_integer(f"target {key}", text.get(key), 1)


def _intermediate(text: Mapping[str, Any], hidden: int) -> int:
    """The target's own, unless it is a mixture of small experts."""
    stated = text.get("intermediate_size")
    return stated if isinstance(stated, int) and stated >= hidden else 3 * hidden


def _rope_theta(text: Mapping[str, Any]) -> float:
    nested = text.get("rope_parameters") or {}
    return float(nested.get("rope_theta") or text.get("rope_theta") or 10000.0)


_SPREAD = 0.02


_SILENT = ("kernel_projection.weight", "successor_codebook")


def new_drafter(raw: Mapping[str, Any], *, seed: int = 0) -> DraftModel:
    """A drafter of a published-layout config, with initial float32 weights that depend on the seed only."""
    config = DrafterConfig.from_dict(raw)
    model = DraftModel(config)
    model.load_weights(list(initial_weights(config, seed).items()))
    mx.eval(model.parameters())
    return model


def existing_config(source: str | Path, engine: Engine) -> dict[str, Any]:
    """The `config.json` of a drafter to start from.

    Raises:
        CheckpointError, ConfigError: it cannot be read or trained, named.
        PairError: it was made for another target.
    """
    raw = read_config(find_config(source, "init"))
    config = DrafterConfig.from_dict(raw)
    check_pair(config, engine.target_config)
    if config.quantization:
        raise CheckpointError(f"init: got the quantized drafter {str(source)!r}, expected float weights")
    return raw


def load_initial(drafter: DraftModel, source: str | Path) -> None:
    """Put a checkpoint's weights into a new drafter, in float32.

    Raises:
        CheckpointError: its tensors are not those of `drafter`, named.
    """
    folder = find_files(source, "init")
    weights: dict[str, mx.array] = {}
    for file in sorted({info.file for info in check_drafter_files(folder, drafter.config).values()}):
        tensors: Any = mx.load(str(file))
        weights |= {drafter_name(name): array.astype(mx.float32) for name, array in tensors.items()}
    drafter.load_weights(list(weights.items()))
    mx.eval(drafter.parameters())


def initial_weights(config: DrafterConfig, seed: int) -> dict[str, mx.array]:
    """Every tensor of a drafter, by name."""
    shapes = expected_shapes(config)
    keys = mx.random.split(mx.random.key(seed), len(shapes))
    return {name: _initial(name, shape, key) for (name, shape), key in zip(shapes.items(), keys, strict=True)}


def _initial(name: str, shape: tuple[int, ...], key: mx.array) -> mx.array:
    if len(shape) == 1:
        return mx.ones(shape)
    if name.endswith("base_kernel"):  # this row itself, nothing of the rows before it
        tap = mx.arange(shape[1])[None, :, None]
        return mx.broadcast_to((tap == 0).astype(mx.float32), shape)
    if name.endswith(_SILENT):
        return mx.zeros(shape)
    return _SPREAD * mx.random.normal(shape, key=key)

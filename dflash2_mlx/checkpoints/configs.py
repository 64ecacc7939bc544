"""What a checkpoint's `config.json` says: whether it is a target or a drafter, what it may hold, which belong together.

Owns: the sorting of configs for lists of models, the refusal of numbers that no model can have and of settings that
mlx-lm's modules do not follow, and the checks of a pair that need no weights. Loads nothing.

Reference: docs/dflash2.md 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..drafters.dflash2.config import DFLASH1, DFLASH2, DrafterConfig
from ..errors import ConfigError, PairError, UnsupportedModelError
from ..targets.registry import FAMILIES, describe_quantization, family_of, text_config
from ..validation import check_integer, check_number, refusal
from .drafter_weights import check_draft_bits, check_drafter_files
from .files import find_config, find_files, read_config

_DRAFTER_ARCHITECTURES = (DFLASH2, *DFLASH1)


def check_target_config(config: Mapping[str, Any]) -> None:
    """Refuse what cannot be a target, before its weights are looked at.

    Raises:
        PairError: it is a drafter.
        ConfigError, UnsupportedModelError: as `check_target`.
    """
    architectures = config.get("architectures") or []
    for name in architectures:
        if name in _DRAFTER_ARCHITECTURES:
            raise PairError(f"target: got a drafter ({name}), expected a language model; pass it as drafter")
    check_target(config)


def _layers_of(config: Mapping[str, Any]) -> int:
    layers = text_config(config).get("num_hidden_layers")
    if not isinstance(layers, int):
        raise ConfigError(f"target num_hidden_layers: got {layers!r}, expected an integer")
    return layers


def check_pairing(target: str | Path, drafter: str | Path) -> DrafterConfig:
    """Check by their `config.json` that a drafter belongs to a target; no weights are read or fetched.

    Args:
        target, drafter: folders or Hub ids.
    Returns:
        The drafter's config.
    Raises:
        CheckpointError, ConfigError, PairError, UnsupportedModelError: as `load` would, one line each.
    """
    target_config = read_config(find_config(target))
    check_target_config(target_config)
    raw = read_config(find_config(drafter, "drafter"))
    config = DrafterConfig.from_dict(raw, num_target_layers=_layers_of(target_config))
    check_pair(config, target_config)
    return config


def check_pair(drafter: DrafterConfig, target_config: Mapping[str, Any]) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        PairError: naming the field, the drafter's value and the target's.
    """
    target = text_config(target_config)
    layers = _layers_of(target_config)
    if drafter.hidden_size != target.get("hidden_size"):
        raise PairError(
            f"hidden_size: got {drafter.hidden_size} in the drafter, expected the target's {target.get('hidden_size')}"
        )
    if drafter.num_target_layers is not None and drafter.num_target_layers != layers:
        raise PairError(
            f"num_target_layers: got {drafter.num_target_layers} in the drafter, expected the target's {layers}"
        )
    if max(drafter.target_layer_ids) >= layers:
        raise PairError(
            f"target_layer_ids: got {max(drafter.target_layer_ids)}, expected less than the target's {layers} layers"
        )
    vocab = target.get("vocab_size")
    if not isinstance(vocab, int) or drafter.vocab_size > vocab:
        raise PairError(f"vocab_size: got {drafter.vocab_size} in the drafter, expected at most the target's {vocab}")
    if drafter.mask_token_id >= vocab:
        raise PairError(
            f"mask_token_id: got {drafter.mask_token_id}, expected less than the target's {vocab} embedding rows"
        )


def checked_drafter(
    drafter: str | Path, target_config: Mapping[str, Any], draft_bits: int | None, group_size: int
) -> tuple[Path, DrafterConfig]:
    """Folder and config of a drafter that suits the target; no weights are read."""
    config = DrafterConfig.from_dict(
        read_config(find_config(drafter, "drafter")), num_target_layers=_layers_of(target_config)
    )
    check_pair(config, target_config)
    check_draft_bits(config, draft_bits, group_size)
    folder = find_files(drafter, "drafter")
    check_drafter_files(folder, config)
    return folder, config


TARGET, DRAFTER, OTHER = "target", "drafter", "other"


@dataclass(frozen=True)
class ModelFacts:
    """What a config says.

    Args:
        kind: "target", "drafter" or "other" (cannot be used here).
        family: the target's family, or "DFlash" / "DFlash 2"; the bare `model_type` of others; None when unknown.
        quantization: such as "4-bit group 64"; None for full weights.
        context_length: of a target, None when its config is silent.
        block_size: of a drafter.
        reason: why it cannot be used; None when it can.
    """

    kind: str
    family: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    block_size: int | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def describe_config(config: Mapping[str, Any]) -> ModelFacts:
    """Say what a parsed `config.json` belongs to."""
    named = config.get("architectures")
    architectures = named if isinstance(named, list) else []
    try:
        if DFLASH2 in architectures or any(name in DFLASH1 for name in architectures):
            return _drafter(config)
        check_target(config)
        family = FAMILIES[family_of(config)][0]
        context = text_config(config).get("max_position_embeddings")
        return ModelFacts(TARGET, family, describe_quantization(config), context)
    except (ConfigError, UnsupportedModelError) as error:
        kind = config.get("model_type")
        return ModelFacts(OTHER, kind if isinstance(kind, str) else None, reason=str(error))


def _drafter(config: Mapping[str, Any]) -> ModelFacts:
    # A v1 file may leave its taps to the target's depth: any depth will do to read the rest.
    drafter = DrafterConfig.from_dict(config, num_target_layers=config.get("num_target_layers") or 10**6)
    family = "DFlash 2" if drafter.version == 2 else "DFlash"
    quantization = describe_quantization({"quantization": drafter.quantization})
    return ModelFacts(DRAFTER, family, quantization, block_size=drafter.block_size)


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

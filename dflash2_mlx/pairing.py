"""Which drafter belongs to which target, by their configs alone.

Owns: the checks that need no weights.

Reference: DFlash 2 specification 2.4 (loader checks).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint import find_config, find_files, read_config
from .drafter.config import DFLASH1, DFLASH2, DrafterConfig
from .errors import ConfigError, PairError
from .targets.config import check_target
from .targets.registry import text_config
from .weights import check_draft_bits, check_drafter_files

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

"""What a checkpoint is, from its `config.json` alone: a target, a drafter, or something else.

Owns: the sorting of configs, for lists of models. Reads no files and loads nothing. Never raises for a config that is
merely foreign: the reason is part of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .drafter.config import DFLASH1, DFLASH2, DrafterConfig
from .errors import ConfigError, UnsupportedModelError
from .targets.config import check_target
from .targets.registry import FAMILIES, describe_quantization, family_of, text_config

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

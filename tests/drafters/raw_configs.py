"""Raw drafter configs with a change, and how their refusal is looked at."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dflash2_mlx import ConfigError, DrafterConfig
from tests.messages import says

MISSING = object()


def parse(raw: dict[str, Any], **known: Any) -> DrafterConfig:
    return DrafterConfig.from_dict(raw, **known)


def edited(raw: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with some keys set or, with MISSING, taken out; `nested__key` reaches under dflash_config."""
    raw = copy.deepcopy(raw)
    for key, value in changes.items():
        place, _, name = key.rpartition("__")
        group = raw[{"nested": "dflash_config", "rope": "rope_parameters"}[place]] if place else raw
        group.pop(name, None)
        if value is not MISSING:
            group[name] = value
    return raw


def refused(raw: dict[str, Any], field: str, received: object, expected: str = "", **known: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(raw, **known)
    says(caught.value, field, received, expected)

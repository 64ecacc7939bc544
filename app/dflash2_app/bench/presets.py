"""How a measurement is set up when nobody says more: presets, usual numbers, and the sampling that follows.

Owns: the published settings. Shared by the command and the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dflash2_mlx as d2

ANNOUNCEMENT, DEFAULT = "announcement", "default"
PRESETS = (ANNOUNCEMENT, DEFAULT)
# The authors' runner: how much it asks for, and what their tables of the announcement were drawn with.
PRESET_TOKENS = 2048
ANNOUNCED = {"top_p": 0.95, "top_k": 20, "presence_penalty": 1.5}
THINKING = {"enable_thinking": True}
USUAL_TOKENS, USUAL_SAMPLES, USUAL_REPEATS = 256, 8, 3
USUAL_WIDTHS = (1, 3, 5, 8)


def usual_tokens(preset: str | None) -> int:
    """Most tokens of a reply."""
    return USUAL_TOKENS if preset is None else PRESET_TOKENS


def usual_widths(block_size: int | None) -> tuple[int, ...]:
    """Plain decoding, some widths below the drafter's own, and that one; plain decoding alone without a drafter."""
    if block_size is None:
        return (1,)
    return tuple(sorted({*(width for width in USUAL_WIDTHS if width < block_size), block_size}))


def preset_sampling(
    preset: str | None, stated: Mapping[str, Any], temperatures: Sequence[float] | None, target: str | None
) -> tuple[d2.SamplingConfig, tuple[float, ...]]:
    """Everything but the temperature, and the temperatures: what is stated, then the preset, then neutral values.

    Args:
        stated: fields of `SamplingConfig`.
        target: whose own sampling the preset "default" takes; None takes none.
    Raises:
        CheckpointError: the preset "default", and the target states no sampling.
        ConfigError: a value that sampling cannot have.
    """
    usual: dict[str, Any] = {}
    if preset == ANNOUNCEMENT:
        usual = {"temperature": 1.0, **ANNOUNCED}
    elif preset == DEFAULT and target is not None:
        usual = d2.bench.recommended_sampling(target)
    temperature = usual.pop("temperature", 0.0)
    return d2.SamplingConfig(**{**usual, **stated}), tuple(temperatures or (temperature,))


def without_effect(names: Mapping[str, Any], temperatures: Sequence[float]) -> list[str]:
    """Say which choices were made and do nothing where every reply is greedy.

    Args:
        names: what a choice is called where it was made -> its value, None where it was not made.
    """
    if any(temperatures):
        return []
    return [f"{name} has no effect at temperature 0" for name, value in names.items() if value is not None]

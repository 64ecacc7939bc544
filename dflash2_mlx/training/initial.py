"""A drafter before its first step.

Owns: initial weights, new ones or a checkpoint's. The convolution starts as the identity and the selector as silent, so
an untrained DFlash 2 drafter is a DFlash drafter.

Reference: DFlash 2 specification 7.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..checkpoint import find_config, find_files, read_config
from ..drafter.config import DrafterConfig
from ..drafter.model import DraftModel
from ..errors import CheckpointError
from ..load import Engine
from ..names import drafter_name
from ..pairing import check_pair
from ..weights import check_drafter_files, expected_shapes

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

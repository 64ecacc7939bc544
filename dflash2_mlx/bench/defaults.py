"""The sampling a target's makers recommend, from its `generation_config.json`.

Owns: what of that file is sampling. Reads no weights.
"""

from __future__ import annotations

from typing import Any

from ..checkpoints.files import MINI, MINI_TARGET, find_files, read_object
from ..errors import CheckpointError, ConfigError
from ..sampling.config import SamplingConfig

_FILE = "generation_config.json"
_TAKEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def recommended_sampling(target: str) -> dict[str, Any]:
    """The settings of `SamplingConfig` that the target's `generation_config.json` states.

    `do_sample` false, or absent, means temperature 0. What the file does not state is not in the result.

    Raises:
        CheckpointError: no such file, or one that is not a JSON object.
        ConfigError: a value that sampling cannot have.
    """
    folder = MINI_TARGET if target == MINI else find_files(target)
    path = folder / _FILE
    stated = read_object(path)
    if stated is None:
        raise CheckpointError(f"{folder}: got no {_FILE}, expected the model's own sampling in it")
    if not stated.get("do_sample", False):
        return {"temperature": 0.0}
    taken = {name: stated[name] for name in _TAKEN if stated.get(name) is not None}
    try:
        SamplingConfig(**taken)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return {"temperature": 1.0, **taken}

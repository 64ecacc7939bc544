"""Drafter checkpoint folders for the loader's tests: written whole, in part, or wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash2_mlx import CheckpointError, DrafterConfig, DraftModel, load_drafter
from tests.messages import mentions
from tests.tiny import drafter_config, drafter_weights

CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
# Wide enough for groups of 128, a rank that can be packed.
WIDE = {
    "hidden_size": 128,
    "head_dim": 32,
    "intermediate_size": 256,
    "selector_rank": 32,
    "conv_group_size": 16,
}


@contextmanager
def nothing_is_read() -> Iterator[None]:
    """Inside, reading any weight fails the test: whatever is wrong must be found in configs and headers."""
    with mock.patch.object(mx, "load", side_effect=AssertionError("weights were read")):
        yield


def write(folder: Path, raw: dict[str, Any], weights: dict[str, mx.array], name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    mx.save_safetensors(str(folder / name), weights)
    return folder


def fitting(**changes: Any) -> tuple[dict[str, Any], dict[str, mx.array]]:
    """A config, and weights that fit it."""
    raw = drafter_config(**changes)
    return raw, drafter_weights(DrafterConfig.from_dict(raw))


def parameters(model: DraftModel) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def same(model: DraftModel, weights: dict[str, mx.array]) -> None:
    """The model holds exactly these tensors, bit for bit."""
    got = parameters(model)
    assert got.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def refused(folder: Path, *parts: object, error: type[Exception] = CheckpointError, **settings: Any) -> None:
    """Loading stops before any weight is read, with one line that mentions all of `parts`."""
    with nothing_is_read(), pytest.raises(error) as caught:
        load_drafter(folder, **settings)
    mentions(caught.value, *parts)

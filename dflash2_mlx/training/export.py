"""Writes a trained drafter as a checkpoint in the published layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..drafter.model import DraftModel
from ..weights import check_drafter_files
from .files import save_tensors


def export_drafter(folder: Path, raw: Mapping[str, Any], drafter: DraftModel, *, dtype: mx.Dtype = mx.bfloat16) -> None:
    """Write `config.json` and `model.safetensors`, and check them as loading does.

    Args:
        folder: made if it is missing.
        raw: the config `drafter` was made from.
        dtype: of the stored tensors.
    Raises:
        CheckpointError: there is no room; a file that was there stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {mx.bfloat16: "bfloat16", mx.float16: "float16", mx.float32: "float32"}
    config = {**raw, "dtype": names[dtype]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    flat: Any = tree_flatten(drafter.parameters())
    weights = {name: array.astype(dtype) for name, array in flat}
    save_tensors(folder / "model.safetensors", weights, {"format": "mlx"})
    check_drafter_files(folder, drafter.config)

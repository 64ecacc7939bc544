"""Writes tensors so that a full disk spoils nothing.

Owns: the look at the room that is left, and the rule that a file appears under its name only once it is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from ..errors import CheckpointError

_SPARE = 1 << 20  # headers, and what else writes meanwhile


def room(folder: Path) -> int:
    """Free bytes where `folder` is or will be."""
    while not folder.exists():
        folder = folder.absolute().parent
    return shutil.disk_usage(folder).free


def save_tensors(path: Path, tensors: Mapping[str, mx.array], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, whole or not at all; what was there before stays until then.

    Raises:
        CheckpointError: naming the file, the room that is left and what is needed.
    """
    needed = sum(array.nbytes for array in tensors.values()) + _SPARE
    if room(path.parent) < needed:
        raise CheckpointError(f"{path}: got {room(path.parent) / 1e6:.1f} MB of free disk, expected {needed / 1e6:.1f}")
    partial = path.with_name(f"partial-{path.name}")
    try:
        mx.save_safetensors(str(partial), dict(tensors), metadata or {})
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        line = " ".join(str(error).split())
        raise CheckpointError(f"{path}: got a write that failed ({line}), expected room for {needed} bytes") from None

"""Checkpoints of a training run, going on from them exactly, and the trained drafter in the published layout.

Owns: what a checkpoint holds, which one is the newest, and the refusal of one that was made otherwise. An unfinished
checkpoint is never taken for a whole one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ..checkpoints.drafter_weights import check_drafter_files
from ..drafters.dflash2.model import DraftModel
from ..errors import CheckpointError, ConfigError
from .files import save_tensors
from .trainer import Trainer

_KEPT = 2  # checkpoints that stay on disk


def save_checkpoint(run: Trainer, folder: Path, marks: Mapping[str, Any] | None = None) -> Path:
    """Write a checkpoint below `folder`, and drop all but the newest.

    Args:
        marks: what else must be the same for a run to go on, by name.
    Raises:
        CheckpointError: there is no room; older checkpoints are as they were.
    """
    whole = folder / f"step-{run.step_number:07d}"
    partial = whole.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        save_tensors(partial / "drafter.safetensors", _flat(run.drafter.parameters()))
        save_tensors(partial / "optimizer.safetensors", _flat(run.optimizer.state))
        state = {"step": run.step_number, **_made_with(run, marks)}
        (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")
    except (CheckpointError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        kept = newest_checkpoint(folder)
        raise CheckpointError(f"{_line(error)}; last good checkpoint: {kept or 'none'}") from None
    shutil.rmtree(whole, ignore_errors=True)
    partial.rename(whole)
    for old in _checkpoints(folder)[:-_KEPT]:
        shutil.rmtree(old)
    return whole


def resume_checkpoint(run: Trainer, folder: Path, marks: Mapping[str, Any] | None = None) -> bool:
    """Go on from the newest checkpoint below `folder`; False when there is none.

    Raises:
        ConfigError: it was made with other settings, documents, drafter or marks, named.
        CheckpointError: it cannot be read.
    """
    newest = newest_checkpoint(folder)
    if newest is None:
        return False
    try:
        state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
        weights: Any = mx.load(str(newest / "drafter.safetensors"))
        moments: Any = mx.load(str(newest / "optimizer.safetensors"))
        step = int(state["step"])
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{newest}: got an unreadable checkpoint ({_line(error)}), expected a whole one"
        ) from None
    for name, value in _made_with(run, marks).items():
        if state.get(name) != value:
            raise ConfigError(f"{name}: got {value!r}, expected {state.get(name)!r} as in {newest.name}")
    run.drafter.load_weights(list(weights.items()))
    run.optimizer.state = tree_unflatten(list(moments.items()))
    run.step_number = step
    mx.eval(run.drafter.parameters(), run.optimizer.state)
    return True


def newest_checkpoint(folder: Path) -> Path | None:
    """The folder of the newest whole checkpoint, if there is one."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def _made_with(run: Trainer, marks: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that a run's course depends on, as JSON gives it back."""
    made = {
        **asdict(run.settings),
        "documents": len(run.useful),
        "drafter": asdict(run.drafter.config),
        **(marks or {}),
    }
    plain: dict[str, Any] = json.loads(json.dumps(made))
    return plain


def _flat(tree: Any) -> dict[str, mx.array]:
    flat: Any = tree_flatten(tree)
    return dict(flat)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


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

"""What lies on this machine: the Hub cache and the configured folders.

Owns: finding checkpoints and saying what each one is. Reads configs and sizes, never weights. The first place that
holds a name wins; a second one is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dflash2_mlx as d2

from .cache import cached_repo, cached_repos, is_hub_id
from .places import Places

HUB, FOLDER = "hub", "folder"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class LocalModel:
    """One checkpoint on this machine.

    Args:
        name: what `--model` and `--drafter` take: the Hub id, or the folder.
        model_id: what settings call it: the folder's name, or `Owner--Repo`.
        source: "hub" or "folder".
        size: bytes of its files.
        problem: what keeps it from being used, or None.
    """

    name: str
    model_id: str
    path: Path
    source: str
    size: int
    facts: d2.ModelFacts
    config: Mapping[str, Any] = field(repr=False)
    problem: str | None = None


@dataclass(frozen=True)
class Discovery:
    """All models that were found, and what a user should know about the search."""

    models: list[LocalModel]
    notes: list[str]

    def find(self, name: str) -> LocalModel | None:
        """A model by name, id or folder."""
        path = Path(name).expanduser().absolute()
        for model in self.models:
            if name in (model.name, model.model_id) or path == model.path:
                return model
        return None


def discover(places: Places) -> Discovery:
    """Look through all places."""
    models: list[LocalModel] = []
    notes = list(places.notes)
    owners: dict[str, LocalModel] = {}
    for model, note in (*_in_cache(), *_in_folders(places.folders)):
        if note is not None:
            notes.append(note)
        if model is None:
            continue
        first = owners.setdefault(model.model_id, model)
        if first is not model:
            notes.append(f"{model.path}: got a second model called {model.model_id}, expected one ({first.path})")
        models.append(model)
    return Discovery(models, notes)


def local_config(name: str) -> Mapping[str, Any] | None:
    """The config of a model on this machine, by Hub id or folder; None when it is not here or cannot be read."""
    given = Path(name).expanduser()
    own = given if (given / "config.json").is_file() else None
    folder = own or (cached_repo(name).current() if is_hub_id(name) else None)
    if folder is None:
        return None
    config = _read_config(folder)
    return config if isinstance(config, dict) else None


Finding = tuple[LocalModel | None, str | None]


def _in_cache() -> Iterator[Finding]:
    for repo in cached_repos():
        partial = sum(path.stat().st_size for path in repo.partials())
        folder = repo.current()
        if partial:
            left = f"an interrupted pull left {partial} bytes; `models pull {repo.repo_id}` goes on"
            yield None, f"{repo.repo_id}: {left}"
        if folder is not None and (folder / "config.json").exists():
            yield _model(folder, repo.repo_id, repo.folder.name.removeprefix("models--"), HUB)


def _in_folders(folders: list[Path]) -> Iterator[Finding]:
    for top in folders:
        for folder in _checkpoints(top):
            yield _model(folder, str(folder), folder.name, FOLDER)


def _checkpoints(top: Path, levels: int = 2) -> Iterator[Path]:
    """Folders with a config.json: `top` itself, its children, or their children."""
    if (top / "config.json").is_file():
        if not (top / "adapter_config.json").exists():
            yield top
        return
    if levels and top.is_dir():
        try:
            children = sorted(path for path in top.iterdir() if path.is_dir() and not path.name.startswith("."))
        except PermissionError:
            return
        for child in children:
            yield from _checkpoints(child, levels - 1)


def _model(folder: Path, name: str, model_id: str, source: str) -> Finding:
    config = _read_config(folder)
    if isinstance(config, str):
        return None, f"{folder}: {config}"
    facts = d2.describe_config(config)
    size = sum({path.resolve(): path.stat().st_size for path in folder.iterdir() if path.is_file()}.values())
    return LocalModel(
        name, model_id, folder, source, size, facts, config, facts.reason or missing_weights(folder)
    ), None


def _read_config(folder: Path) -> dict[str, Any] | str:
    """The parsed config, or why there is none."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"got an unreadable config.json ({error}), expected JSON"
    return config if isinstance(config, dict) else "got a config.json that is no JSON object"


def missing_weights(folder: Path) -> str | None:
    """Which weight files a checkpoint should have and has not, or None."""
    index = folder / _INDEX
    if index.is_file():
        try:
            named = {str(file) for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            return f"got an unreadable {_INDEX}, expected the list of weight files"
        missing = sorted(name for name in named if not (folder / name).is_file())
        if missing:
            some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            return f"got {len(named) - len(missing)} of {len(named)} weight files, expected {some} too"
        return None
    return None if any(folder.glob("model*.safetensors")) else "got no model*.safetensors, expected weights"

"""Where models lie: the Hub cache, and the folders of the base folder's settings.

Owns: the list of folders to look through. With the base folder pointed at `~/.omlx`, oMLX's own folders are found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..settings.paths import find_base


@dataclass(frozen=True)
class Places:
    """Folders that hold models; `notes` say what could not be read."""

    hub_cache: Path
    folders: list[Path]
    notes: list[str] = field(default_factory=list)


def hub_cache() -> Path:
    """The Hub cache, as huggingface_hub understands `HF_HUB_CACHE` and `HF_HOME`."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().absolute()


def find_places(base: Path | None = None) -> Places:
    """The Hub cache and the configured folders: `model.model_dirs` of `settings.json`, else `models` beside it."""
    root, notes = find_base(base).folder, []
    settings = root / "settings.json"
    folders: list[Path] = []
    if settings.is_file():
        try:
            folders = _model_dirs(json.loads(settings.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            why = f"got an unreadable file ({error}), expected oMLX's settings: its folders are left out"
            notes.append(f"{settings}: {why}")
    return Places(hub_cache(), folders or [root / "models"], notes)


def _model_dirs(settings: Any) -> list[Path]:
    section = settings.get("model") if isinstance(settings, dict) else None
    named = section.get("model_dirs") if isinstance(section, dict) else None
    if named is None and isinstance(section, dict) and section.get("model_dir"):
        named = [section["model_dir"]]  # older files
    if named is not None and not (isinstance(named, list) and all(isinstance(one, str) for one in named)):
        raise ValueError(f"model.model_dirs: got {named!r}, expected a list of folders")
    return [Path(one).expanduser().absolute() for one in named or [] if one]

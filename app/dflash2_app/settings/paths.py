"""The base folder and the files in it.

Owns: the rule that finds the folder, and the names of the files. The rule is oMLX's with our own names: the
command line, then `DFLASH2_BASE_PATH`, then `~/.dflash2-mlx`. Pointed at `~/.omlx` it shares oMLX's files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError

VARIABLE = "DFLASH2_BASE_PATH"
DEFAULT = "~/.dflash2-mlx"


@dataclass(frozen=True)
class Base:
    """The base folder, and what chose it: "--base-path", "DFLASH2_BASE_PATH" or "default"."""

    folder: Path
    origin: str

    @property
    def model_settings(self) -> Path:
        return self.folder / "model_settings.json"

    @property
    def model_profiles(self) -> Path:
        return self.folder / "model_profiles.json"

    @property
    def global_settings(self) -> Path:
        """oMLX's `settings.json`; read, never written."""
        return self.folder / "settings.json"

    @property
    def extras(self) -> Path:
        """Our own keys: oMLX erases keys it does not know from its files."""
        return self.folder / "dflash2_extras.json"

    @property
    def tune(self) -> Path:
        """What tuning found, a file per pair."""
        return self.folder / "tune"

    @property
    def models(self) -> Path:
        return self.folder / "models"


def find_base(given: str | Path | None = None) -> Base:
    """Find the base folder; it need not exist yet.

    Args:
        given: what `--base-path` says, None when it was not given.
    Raises:
        UsageError: the text is empty, or names something that is no folder.
    """
    if given is not None:
        return _base(str(given), "--base-path")
    if VARIABLE in os.environ:
        return _base(os.environ[VARIABLE], VARIABLE)
    return _base(DEFAULT, "default")


def _base(text: str, origin: str) -> Base:
    if not text.strip():
        raise UsageError(f"{origin}: got {text!r}, expected a folder")
    try:
        folder = Path(text).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"{origin}: got {text!r}, expected a folder (no such user)") from None
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{origin}: got {text!r}, expected a folder, not a file")
    return Base(folder, origin)

"""The pair that comes with the package: its name, and where its files lie."""

from __future__ import annotations

from pathlib import Path

MINI = "mini"
_FOLDER = Path(__file__).parent / "data" / "mini"
MINI_TARGET = _FOLDER / "target"
MINI_DRAFTER = _FOLDER / "drafter"
MINI_PROMPTS = _FOLDER / "prompts.jsonl"


def embedded_pair() -> tuple[Path, Path]:
    """Folders of the target and the drafter that `load("mini")` takes."""
    return MINI_TARGET, MINI_DRAFTER

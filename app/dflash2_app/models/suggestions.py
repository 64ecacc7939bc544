"""What the registry of published pairs knows about a model: its drafter, its licence, what would fit instead.

Owns: the one seam between the model manager and `registry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import registry


@dataclass(frozen=True)
class SuggestedDrafter:
    """A drafter's Hub id, and why it is suggested."""

    repo_id: str
    reason: str


def drafter_for(target: str, config: Mapping[str, Any] | None = None) -> SuggestedDrafter | None:
    """The drafter made for a target, by its Hub id or folder and its parsed config; None when none is known."""
    found = registry.suggest(target, config)
    return SuggestedDrafter(found[0].pair.drafter, found[0].reason) if found else None


def pair_that_fits(memory_bytes: int) -> tuple[str, str] | None:
    """Target and drafter of the largest published pair for so much memory; None when none is known."""
    pair = registry.best_fit(memory_bytes)
    return None if pair is None else (pair.target.mlx[0], pair.drafter)


def is_non_commercial(license: str | None) -> bool:
    """Whether a licence's short name, as the Hub's pages give it, forbids commercial use."""
    words = (license or "").lower().replace("_", "-").replace(" ", "-").split("-")
    return "nc" in words or "noncommercial" in words or "research" in words

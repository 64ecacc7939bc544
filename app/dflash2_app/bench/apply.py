"""The way from a recommended block size to the settings.

Owns: the one place where a measurement changes what later commands do.
"""

from __future__ import annotations

from ..errors import UsageError


def apply_block_size(model: str, width: int | None) -> str:
    """Write a model's block size to the settings and say where; None writes nothing and tells whether it could.

    Raises:
        UsageError: there is no place to write to.
    """
    # Until the settings store exists there is none: asked for before anything is measured, so nothing is lost.
    raise UsageError(
        "--apply: got it, expected a run without it: this version has no settings to write to",
        hint="pass the recommended --block-size to generate and demo",
    )

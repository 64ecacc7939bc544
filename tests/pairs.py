"""The bootstrap pair: small and trained, without a chat template; what the authors' package does on it is on record.

It does not change, while the embedded pair may: tests that need trained weights or known numbers use this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dflash2_mlx as d2

BOOTSTRAP = Path(__file__).resolve().parent / "data" / "bootstrap"


def bootstrap_pair(drafter: Path | None = None, **options: Any) -> d2.Engine:
    """The pair, or its target with another drafter."""
    return d2.load(BOOTSTRAP / "target", drafter or BOOTSTRAP / "drafter", **options)

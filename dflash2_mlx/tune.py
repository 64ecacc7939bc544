"""The old name of `dflash2_mlx.tuning`, kept for one release."""

from __future__ import annotations

from .tuning import *  # noqa: F403
from .tuning import __all__  # noqa: F401

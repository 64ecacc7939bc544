"""A base folder of its own for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash2_app.settings.paths import Base
from dflash2_app.settings.store import Store


@pytest.fixture
def base(home: Path) -> Path:
    """The folder that DFLASH2_BASE_PATH names; it does not exist yet."""
    return home / "settings"


@pytest.fixture
def store(base: Path) -> Store:
    return Store(Base(base, "default"))

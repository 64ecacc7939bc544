"""A pair to tune, and a dispatcher that believes in Metal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash2_mlx.device import timing
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.engine import Engine
from dflash2_mlx.kernels.dispatch import Dispatcher
from dflash2_mlx.tuning import drafter_trials as contests_module
from dflash2_mlx.tuning import run as run_module
from tests.engines import tiny_engine
from tests.tiny import make_tiny_drafter

from .fakes import STOCK, contest, use_clock


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A pair that another process could meet again, and short measurements."""
    monkeypatch.setattr(timing, "LONG_ENOUGH_S", 0.001)
    monkeypatch.setattr(run_module, "DEEP", 200)
    drafter = owner().call(lambda: make_tiny_drafter(block_size=3, compiled=True))
    return replace(tiny_engine("qwen3_5", drafter), fingerprint="a pair of files")


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    """A dispatcher that believes in Metal, and contests that need none."""
    here = Dispatcher("auto", lambda **_: pytest.fail("no kernel is made here"))
    for module in (run_module, contests_module):
        monkeypatch.setattr(module, "dispatcher", lambda: here)
    # The pair itself goes on without.
    use_clock(monkeypatch)
    races = [contest({STOCK: 0.04, "metal": 0.01}, key=key) for key in ("first", "second")]
    monkeypatch.setattr(run_module, "contests", lambda target, drafter, rows: races)
    return here

"""What all tests share: no Hub, no home folder."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

# Before any test module imports MLX, which takes the BLAS that it finds then. One thread each: workers share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dflash2_mlx  # noqa: F401

# Set before any test module imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell starts its background jobs with Ctrl-C ignored, and children inherit that: no test of Ctrl-C could end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def small_collections() -> None:
    """Leave test items and what earlier modules hold out of later collections: each would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder without caches, settings or tokens, for the whole run."""
    folder = tmp_path_factory.mktemp("home")
    before = {name: os.environ.get(name) for name in ("HOME", "HF_HOME")}
    os.environ["HOME"] = str(folder)
    os.environ["HF_HOME"] = str(folder / "hf")
    yield folder
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

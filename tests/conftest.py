"""What all tests share: no Hub, no home folder."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

# Set before huggingface_hub is imported, which reads it once; and one thread each, as workers share the cores.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Before any test module imports MLX, which takes the BLAS that it finds then.
import dflash2_mlx  # noqa: F401, I001
import mlx.core as mx

# A shell starts its background jobs with Ctrl-C ignored, and children inherit that: no test of Ctrl-C could end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def not_the_first_use() -> None:
    """Have MLX compile something once: commands tell of a first use, which would depend on the order of tests."""
    mx.eval(mx.compile(lambda x: x * 2 + 1)(mx.array([1.0])))


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

"""What `import dflash2_mlx` gives: exactly the names of `__all__`, on first use, and no work done yet."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dflash2_mlx as d2

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("analysis", "bench", "training", "tuning")  # public, beside the names

# Asked of a fresh interpreter, since this one has long been at work.
PROBE = """
import json, sys, threading
before = set(threading.enumerate())
import dflash2_mlx
loaded = sorted(name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm", "numpy", "huggingface_hub"))
for name in dflash2_mlx.__all__:
    getattr(dflash2_mlx, name)
from dflash2_mlx.device.runtime import owner
print(json.dumps({
    "loaded": loaded,
    "threads": [t.name for t in threading.enumerate() if t not in before],
    "owner": owner.cache_info().currsize,
    "application": sorted(name for name in sys.modules if name.split(".")[0] in ("dflash2_app", "typer", "starlette")),
}))
"""


def imported() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:dflash2_mlx", "-c", PROBE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1, f"importing prints: {done.stdout}"
    return json.loads(done.stdout)


def test_importing_does_no_work():
    found = imported()
    assert found["loaded"] == [], "importing imports MLX"
    assert found["threads"] == [], "importing starts threads"
    assert found["owner"] == 0, "importing starts the owner thread"
    assert found["application"] == [], "the library imports the application"


def test_all_is_exactly_what_can_be_imported():
    for name in d2.__all__:
        getattr(d2, name)  # resolved now, so that each stands among the others
    # Submodules are attributes of the package once imported; they are not part of its promise.
    public = {
        name for name, value in vars(d2).items() if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(d2.__all__)
    assert len(d2.__all__) == len(set(d2.__all__))
    assert set(dir(d2)) == {*d2.__all__, *PACKAGES, "__version__"}


def test_what_type_checkers_see_is_what_is_resolved():
    """The names stand there twice: imported for type checkers, and in the table that first use looks in."""
    source = ast.parse(Path(d2.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname or alias.name: f"{d2.__name__}.{node.module}"
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.col_offset > 0 and node.module is not None
        for alias in node.names
    }
    assert seen.keys() == set(d2.__all__)
    for name, module in seen.items():
        assert getattr(d2, name) is getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_public_package_is_there_without_an_import_of_its_own(name):
    probe = f"import dflash2_mlx; print(dflash2_mlx.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"dflash2_mlx.{name}\n", done.stderr


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="'dflash2_mlx' has no attribute 'nonsense'"):
        d2.nonsense  # noqa: B018 - asking is the test
    with pytest.raises(ImportError):
        from dflash2_mlx import nonsense  # noqa: F401


@pytest.mark.parametrize("name", d2.__all__)
def test_every_public_name_is_documented_and_ours(name):
    value = getattr(d2, name)
    assert value.__module__.split(".")[0] == "dflash2_mlx"
    text = inspect.getdoc(value)
    # A dataclass without one is given its signature.
    assert text and not text.startswith(f"{name}("), f"{name} has no docstring"


def test_star_import():
    names: dict[str, object] = {}
    exec("from dflash2_mlx import *", names)
    assert set(d2.__all__) <= set(names)


def test_version():
    assert d2.__version__.count(".") == 2


def test_errors_are_one_family():
    errors = [
        value
        for value in (getattr(d2, name) for name in d2.__all__)
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(errors) == 11
    assert all(issubclass(error, d2.Dflash2Error) for error in errors)
    assert issubclass(d2.ConfigError, ValueError) and issubclass(d2.SettingError, d2.ConfigError)


def test_signatures_are_those_of_the_contract():
    def parameters(function: object) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert parameters(d2.convert_drafter) == ["source", "folder", "bits", "group_size"]
    assert parameters(d2.load) == [
        "target",
        "drafter",
        "draft_bits",
        "draft_group_size",
        "target_dtype",
        "drafter_dtype",
        "draft_window",
        "draft_sink",
        "exactness",
    ]
    assert parameters(d2.check_pairing) == ["target", "drafter"]
    assert parameters(d2.count_prompt_tokens) == ["engine", "prompt", "config"]
    assert parameters(d2.PrefixCache) == ["max_entries", "max_bytes", "disk", "disk_max_bytes"]
    assert parameters(d2.load_drafter) == ["path", "draft_bits", "draft_group_size", "dtype"]
    assert (
        parameters(d2.stream_generate)
        == parameters(d2.generate)
        == [
            "engine",
            "prompt",
            "config",
            "session",
            "constraint",
            "prefix_cache",
        ]
    )
    assert parameters(d2.compare_runs) == ["engine", "prompt", "config", "plain", "dflash2"]
    assert parameters(d2.SamplingConfig) == [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "lossless_mode",
    ]
    assert parameters(d2.GenerationConfig) == [
        "max_tokens",
        "sampling",
        "stop",
        "stop_token_ids",
        "block_size",
        "verify_mode",
        "mode",
        "logprobs",
        "chat_template",
        "chat_template_kwargs",
        "prefill_chunk",
    ]

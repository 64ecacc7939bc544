"""The authors' own program loads what training writes, and drafts the same (slow; needs their package)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash2_mlx.training import DrafterShape, export_drafter, new_drafter
from tests.tiny import TARGET_CONFIGS, drafter_weights

ROOT = Path(__file__).resolve().parents[2]
# A Python that has their package, where this one does not.
PYTHON = os.environ.get("DFLASH2_AUTHORS_PYTHON", sys.executable)


def imports() -> bool:
    return subprocess.run([PYTHON, "-c", "import dflash.model_mlx"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("conv", "selector"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_authors_program_drafts_the_same(tmp_path: Path, conv: bool, selector: bool):
    if not imports():
        pytest.skip("the authors' dflash is not installed (DFLASH2_AUTHORS_PYTHON names a Python that has it)")
    raw = DrafterShape(conv=conv, selector=selector, window=16).config(TARGET_CONFIGS["qwen3"], 7)
    drafter = new_drafter(raw)
    lively = drafter_weights(drafter.config)
    silent = [name for off, name in ((not conv, "_conv."), (not selector, "candidate_selector.")) if off]
    drafter.load_weights(
        [(name, array) for name, array in lively.items() if not any(part in name for part in silent)], strict=False
    )
    export_drafter(tmp_path, raw, drafter)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [PYTHON, str(ROOT / "tools" / "check_with_authors.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("proposals equal") == 3

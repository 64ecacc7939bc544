"""`train` as it is typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .conftest import Run

LINES = [{"text": "import os\nimport sys\n\n\ndef main(argv=None):\n    return os.getcwd()\n" * 3}] * 3
SMALL = ["--steps", "2", "--sequences", "1", "--anchors", "4", "--layers", "1", "--max-length", "64"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)), encoding="utf-8")
    return file


def test_a_drafter_is_trained_and_used(run: Run, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    ran = run("train", data, "--output", folder, "--validation", data, "--block-size", "4", *SMALL)
    assert ran.code == 0, ran.err
    assert ran.out == "" and "step 2 of 2 · loss" in ran.err and "acceptance" in ran.err
    assert (folder / "train.png").read_bytes().startswith(b"\x89PNG")
    used = run("generate", "import os", "--drafter", folder, "--max-tokens", "6", "--json")
    assert json.loads(used.out)["block_size"] == 4
    again = run("train", data, "--output", folder, *SMALL)
    assert again.code == 2 and "expected a folder without a finished drafter" in again.error


def test_without_matplotlib_the_run_ends_well_and_says_so(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = run("train", data, "--output", tmp_path / "drafter", *SMALL)
    assert ran.code == 0 and "no picture of the run: matplotlib is not installed" in ran.err
    assert not (tmp_path / "drafter" / "train.png").exists()


def test_a_dry_run_says_what_would_be_done(run: Run, data: Path, tmp_path: Path) -> None:
    for flags, name in (([], "DFlash2DraftModel"), (["--no-conv-no-selector"], "DFlashDraftModel")):
        ran = run("train", data, "--output", tmp_path / "none", "--dry-run", *flags, *SMALL)
        assert ran.code == 0
        assert f"{name}, 1 layers" in ran.err and "M parameters" in ran.err and "2 steps" in ran.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "0"], "--steps: got '0'"),
        (["--block-size", "1"], "--block-size: got '1'"),
        (["--learning-rate", "0"], "--learning-rate: got '0'"),
        (["--validation", "missing.jsonl"], "missing.jsonl: got an unreadable file"),
    ],
)
def test_bad_options(run: Run, data: Path, tmp_path: Path, flags: list[str], words: str) -> None:
    ran = run("train", data, "--output", tmp_path / "none", *SMALL, *flags)
    assert ran.code in (1, 2) and words in ran.error


def test_output_must_be_given(run: Run, data: Path) -> None:
    ran = run("train", data)
    assert ran.code == 2 and "--output" in ran.error


def test_bad_data(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n{"txt": 1}\n', encoding="utf-8")
    ran = run("train", tmp_path / "bad.jsonl", "--output", tmp_path / "none", *SMALL)
    assert ran.code == 1 and "bad.jsonl:2: got" in ran.error
    assert run("train", tmp_path / "no.jsonl", "--output", tmp_path / "none").code == 1

"""`train` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx.training import TrainSettings
from tests.pairs import BOOTSTRAP

from .conftest import Run, environment

LINES = [{"text": "import os\nimport sys\n\n\ndef main(argv=None):\n    return os.getcwd()\n" * 3}] * 3
MODEL = ["--model", str(BOOTSTRAP / "target")]
SMALL = [*MODEL, "--steps", "2", "--sequences", "1", "--anchors", "4", "--layers", "1", "--max-length", "64"]


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
    used = run("generate", "import os", *MODEL, "--drafter", folder, "--max-tokens", "6", "--json")
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


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "DFlash2DraftModel, 1 layers, block size 8"),
        (["--no-conv-no-selector"], "DFlashDraftModel, 1 layers, convolution and selector off"),
        (["--no-conv", "--no-selector"], "DFlashDraftModel, 1 layers, convolution and selector off"),
        (["--no-conv", "--selector-rank", "24"], "DFlash2DraftModel, 1 layers, convolution off"),
        (["--no-selector", "--conv-kernel", "3"], "DFlash2DraftModel, 1 layers, selector off"),
        (["--cache-taps", "taps", "--taps", "0,2"], "taps: 0.000 GB to be written to taps in bfloat16"),
        (["--regenerate"], "nothing is generated in a dry run"),
    ],
)
def test_a_dry_run_says_what_would_be_done(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("train", data, "--output", tmp_path / "none", "--dry-run", *flags, *SMALL)
    assert ran.code == 0, ran.err
    for text in (words, "M parameters", "for weights and moments", "for a pass", "2 steps"):
        assert text in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_every_option_reaches_the_library(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def train(engine, config, documents, settings, folder, **more):
        seen.update(config=config, settings=settings, **more)
        raise d2.ConfigError("seen: got all")

    monkeypatch.setattr("dflash2_mlx.training.train", train)
    ran = run(
        "train", data, "--output", tmp_path / "out", *SMALL, "--taps", "0,2", "--window", "99", "--conv-kernel", "3",
        "--selector-rank", "24", "--warmup", "0.5", "--weight-decay", "0.1", "--clip", "2", "--dtype", "bfloat16",
        "--seed", "3", "--learning-rate", "0.1", "--every", "7", "--block-size", "5", "--cache-taps", tmp_path / "taps",
        "--cache-dtype", "float32",
    )  # fmt: skip
    assert ran.error == "seen: got all"
    nested, settings, start = seen["config"]["dflash_config"], seen["settings"], seen["start"]
    assert (nested["target_layer_ids"], seen["config"]["sliding_window"], nested["block_size"]) == ([0, 2], 99, 5)
    assert (nested["conv_kernel_size"], nested["selector_rank"]) == (3, 24)
    wanted = TrainSettings(2, 0.1, 0.5, 2.0, 0.1, 1, 4, 3, "bfloat16", True, True)
    assert settings == wanted and seen["every"] == 7
    assert (start.init, start.cache_taps, start.cache_dtype) == (None, tmp_path / "taps", "float32")


def test_the_targets_own_replies_are_learned(run: Run, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    flags = ["--regenerate", "--regenerate-tokens", "9", "--prompt-tokens", "6", "--no-conv", "--dtype", "bfloat16"]
    ran = run("train", data, "--output", folder, "--cache-taps", tmp_path / "taps", *flags, *SMALL)
    assert ran.code == 0, ran.err
    assert "regenerating: 6 of 6" in ran.err and "the target's replies are in" in ran.err
    said = [json.loads(line) for line in (folder / "regenerated.jsonl").read_text().splitlines()]
    assert said[0]["max_tokens"] == 9 and {line["prompt"] for line in said[1:]} == {6}
    assert len(list((tmp_path / "taps").glob("*.safetensors"))) == 2  # three times the same text of two pieces
    readme = (folder / "README.md").read_text()
    assert "| replies | the target's own |" in readme and "| learned | no convolution |" in readme


def test_training_goes_on_from_a_drafter(run: Run, data: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("train", data, "--output", first, "--block-size", "4", *SMALL).code == 0
    ran = run("train", data, "--output", second, "--init", first, *SMALL, "--learning-rate", "1e-9")
    assert ran.code == 0, ran.err
    used = run("generate", "import os", *MODEL, "--drafter", second, "--max-tokens", "4", "--json")
    assert json.loads(used.out)["block_size"] == 4
    ran = run("train", data, "--output", tmp_path / "third", "--init", first, *SMALL, "--block-size", "5")
    assert ran.code == 2 and ran.error == f"--block-size: got 5, expected 4 as in --init {first}"
    ran = run("train", data, "--output", tmp_path / "third", "--init", tmp_path / "nowhere", *SMALL)
    assert ran.code == 1 and "init: got" in ran.error


def test_a_loss_that_is_no_number_names_the_last_good_checkpoint(run: Run, data: Path, tmp_path: Path) -> None:
    flags = ["--learning-rate", "1e30", "--every", "1", "--clip", "1e30", "--warmup", "0"]
    ran = run("train", data, "--output", tmp_path / "out", *SMALL, "--steps", "4", *flags)
    assert ran.code == 1 and ": got " in ran.error and "expected a finite number" in ran.error
    kept = ran.error.rpartition("last good checkpoint: ")[2]
    assert Path(kept).is_dir() and Path(kept).parent == tmp_path / "out" / "checkpoints"


@pytest.mark.slow
def test_a_killed_run_has_the_same_curve(data: Path, tmp_path: Path) -> None:
    def command(folder: Path) -> list[str]:
        flags = [*SMALL, "--steps", "9", "--every", "2", "--cache-taps", str(tmp_path / f"{folder.name}-taps")]
        return [sys.executable, "-m", "dflash2_app", "train", str(data), "--output", str(folder), *flags]

    def losses(folder: Path) -> list[float]:
        return [json.loads(line)["loss"] for line in (folder / "train.jsonl").read_text().splitlines()]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command(whole), env=environment(), check=True, capture_output=True, timeout=300)
    with subprocess.Popen(command(cut), env=environment(), stderr=subprocess.DEVNULL) as process:
        while not (cut / "train.jsonl").is_file() or (cut / "train.jsonl").read_text().count("\n") < 5:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        process.kill()
    assert len(losses(cut)) < 9 and not (cut / "model.safetensors").exists()
    subprocess.run(command(cut), env=environment(), check=True, capture_output=True, timeout=300)
    assert losses(cut) == losses(whole)
    names = [(folder / "model.safetensors").read_bytes() for folder in (whole, cut)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "0"], "--steps: got '0'"),
        (["--block-size", "1"], "--block-size: got '1'"),
        (["--learning-rate", "0"], "--learning-rate: got '0'"),
        (["--taps", "3,1"], "--taps: got '3,1', expected rising layer numbers such as 1,5,9"),
        (["--taps", "0,99"], "--taps: got [0, 99], expected rising layers of the target in 0.."),
        (["--conv-kernel", "3", "--no-conv"], "--conv-kernel: got 3, expected a drafter with a convolution"),
        (["--selector-rank", "3", "--no-conv-no-selector"], "--selector-rank: got 3, expected a drafter with a sel"),
        (["--regenerate-temperature", "1"], "--regenerate-temperature: got 1.0, expected --regenerate as well"),
        (["--prompt-tokens", "1"], "--prompt-tokens: got 1, expected --regenerate as well"),
        (["--cache-dtype", "float32"], "--cache-dtype: got 'float32', expected --cache-taps as well"),
        (["--dtype", "float16"], "--dtype: got 'float16', expected float32 or bfloat16"),
        (["--warmup", "1"], "--warmup: got '1', expected a number in [0, 1)"),
        (["--clip", "0"], "--clip: got '0'"),
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
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    ran = run("train", tmp_path / "empty.jsonl", "--output", tmp_path / "none", *SMALL)
    assert ran.code == 1 and "empty.jsonl: got no documents" in ran.error
    (tmp_path / "short.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    ran = run("train", tmp_path / "short.jsonl", "--output", tmp_path / "none", *SMALL)
    assert ran.code == 1 and "documents: got 1 without two supervised tokens in a row" in ran.error
    assert run("train", tmp_path / "no.jsonl", "--output", tmp_path / "none").code == 1

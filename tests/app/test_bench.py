"""`bench` as it is typed, on the embedded pair; `bench/` beside this file has sets and servers."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.bench.table import lines
from dflash2_app.commands.bench import apply_block_size, check_apply
from dflash2_app.commands.options import ModelOptions
from dflash2_mlx import bench
from tests.pairs import BOOTSTRAP, bootstrap_pair

from .conftest import Run, environment

SMALL = ["bench", "--samples", "2", "--max-tokens", "8", "--repeat", "1"]
FIELDS = """kind complete requests requests_planned model drafter block_size endpoint set revision prompts preset
max_tokens repeats seed sampling chat_template chat_template_args machine versions busy notices acceptance_sources
settings recommendation""".split()
ARM_FIELDS = """width requests rounds generated_tokens prompt_tokens tokens_per_second tokens_per_second_by_repeat
speedup speedup_by_repeat acceptance_length acceptance_rate acceptance_by_position expected_length prefill_s
peak_memory_bytes milliseconds texts mode""".split()


@pytest.fixture(scope="module")
def mini() -> d2.Engine:
    return d2.load("mini")


@pytest.fixture(scope="module")
def bare() -> d2.Engine:
    return bootstrap_pair()


@pytest.fixture(autouse=True)
def loaded_once(mini: d2.Engine, bare: d2.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs belong to an engine: with a new one per test, compiling would be most of the time."""
    monkeypatch.setattr(d2, "load", lambda target="mini", *_, **__: bare if str(target) == BARE[1] else mini)


def test_a_pair_is_measured(run: Run, tmp_path: Path) -> None:
    table, picture = tmp_path / "out.csv", tmp_path / "out.png"
    files = ["--json", "--csv", table, "--plot", picture]
    ran = run(*SMALL, "--widths", "1,4", "--temperatures", "0,1", "--repeat", "2", "--samples", "1", *files)
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert list(record) == FIELDS
    assert (record["kind"], record["complete"], record["set"], record["prompts"]) == ("pair", True, "mini", 1)
    assert record["requests"] == record["requests_planned"] == 2 * 2 * 2
    greedy, sampled = record["settings"]
    plain, drafted = greedy["arms"]
    assert list(plain) == list(drafted) == ARM_FIELDS
    assert (plain["mode"], plain["width"], drafted["mode"], drafted["width"]) == ("plain", 1, "dflash2", 4)
    assert drafted["texts"] == {"compared": 2, "identical": 2, "differences": []}
    assert sampled["arms"][1]["texts"] is None
    assert len(drafted["acceptance_by_position"]) == 3 and 1 <= drafted["acceptance_length"] <= 4
    assert drafted["speedup"] == pytest.approx(drafted["tokens_per_second"] / plain["tokens_per_second"])
    assert set(drafted["milliseconds"]) == {"draft", "select", "verify", "commit", "build", "host_gap"}
    assert drafted["peak_memory_bytes"] > 0 and drafted["prefill_s"] > 0
    assert record["sampling"]["lossless_mode"] is None and record["recommendation"]["reason"]
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["temperature"], row["width"]) for row in rows] == [
        ("0.0", "1"),
        ("0.0", "4"),
        ("1.0", "1"),
        ("1.0", "4"),
    ]
    assert float(rows[1]["acceptance_1"]) == drafted["acceptance_by_position"][0]
    assert float(rows[1]["verify_ms"]) == drafted["milliseconds"]["verify"]["median"] and rows[0]["draft_ms"] == ""
    assert picture.read_bytes().startswith(b"\x89PNG")
    # The table says what the record says.
    text = "\n".join(lines(record))
    assert f"{drafted['speedup']:.2f}x" in text and f"{drafted['acceptance_length']:.2f}" in text
    assert "verdict    identical: all 2 drafted replies" in text
    assert "do not add up to a round" in text and "temperature 1 · depth 0" in text


def test_the_table_without_a_drafter(run: Run) -> None:
    ran = run(*SMALL, "--drafter", "none", "--no-phases")
    assert ran.code == 0, ran.err
    assert "  plain " in ran.out and "in turn" not in ran.out and "up to 8 tokens each, 1 repeat\n" in ran.out
    assert not any(word in ran.out for word in ("drafter", "\nadvice", "\nverdict"))
    assert "temperature 0, depth 0: measuring" in ran.err
    refused = run(*SMALL, "--drafter", "none", "--widths", "1,4")
    assert refused.code == 2 and refused.error == "--widths: got 4, expected integers in 1..1: there is no drafter"


BARE = ("--model", str(BOOTSTRAP / "target"), "--drafter", str(BOOTSTRAP / "drafter"))  # without a chat template


def test_own_prompts_and_a_preset(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("def f(x):\nimport os\n")
    ran = run("bench", *BARE, "--prompts", file, "--preset", "announcement", "--max-tokens", "6", "--repeat", "1",
              "--widths", "1,3", "--top-k", "7", "--no-phases", "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    drawn = record["sampling"]
    assert (drawn["top_p"], drawn["top_k"], drawn["presence_penalty"]) == (0.95, 7, 1.5)
    assert [setting["temperature"] for setting in record["settings"]] == [1.0]
    assert (record["set"], record["prompts"], record["preset"]) == ("mine.txt", 2, "announcement")
    assert "without a chat template there is no thinking to switch on" in record["notices"]


def test_the_models_own_sampling_must_be_stated(run: Run) -> None:
    ran = run(*SMALL, *BARE, "--preset", "default")
    assert ran.code == 1 and "got no generation_config.json" in ran.error


def test_without_plain_decoding_nothing_is_compared(run: Run) -> None:
    ran = run(*SMALL, "--widths", "4", "--no-phases")
    assert ran.code == 0, ran.err
    assert "without width 1 there is nothing to compare with" in ran.out
    assert "\nverdict" not in ran.out and "\nadvice" not in ran.out


def test_options_without_effect_are_told(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("one\ntwo\n")
    ran = run(*SMALL, "--widths", "1", "--no-phases", "--top-p", "0.9", "--lossless-mode", "coupled", "--samples", "99",
              "--prompts", file)  # fmt: skip
    assert ran.code == 0, ran.err
    assert "--top-p has no effect at temperature 0" in ran.out
    assert "--lossless-mode has no effect at temperature 0" in ran.out
    assert "--samples: 99 were asked for, mine.txt has 2" in ran.err


def stopping_after(runs: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    original = bench.measure

    def measure(*args: Any) -> Iterator[bench.Event]:
        seen = 0
        for event in original(*args):
            if isinstance(event, bench.Run):
                seen += 1
                if seen > runs:
                    raise error
            yield event

    monkeypatch.setattr(bench, "measure", measure)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (d2.PromptError("prompt: got too much"), 1), (MemoryError(), 1)]
)
def test_what_was_measured_is_shown_when_it_ends_early(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, code: int
) -> None:
    stopping_after(3, error, monkeypatch)
    ran = run(*SMALL, "--widths", "1,4", "--csv", tmp_path / "o.csv")
    assert ran.code == code
    assert "unfinished 3 of 4 requests were measured" in ran.out
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 3
    assert ("interrupted" in ran.err) == (code == 130) and ("error: " in ran.err) == (code == 1)


def test_what_ends_before_the_first_request_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopping_after(0, d2.PromptError("prompt: got too much"), monkeypatch)
    old = tmp_path / "old.png"
    old.write_bytes(b"kept")
    ran = run(*SMALL, "--csv", tmp_path / "o.csv", "--plot", old)
    assert ran.code == 1 and ran.out == "" and ran.error == "prompt: got too much"
    assert not (tmp_path / "o.csv").exists() and old.read_bytes() == b"kept"


def test_ctrl_c_in_a_real_process() -> None:
    command = [sys.executable, "-m", "dflash2_app", "bench", "--widths", "1", "--repeat", "500", "--no-phases",
               "--max-tokens", "16"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None and process.stderr is not None
    try:
        for line in process.stderr:
            if "measuring" in line:
                break
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()
    assert process.returncode == 130, err
    assert "unfinished" in out and "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--widths", "1,1"], "--widths: got '1,1', expected different numbers such as 1,4,8"),
        (["--widths", "1,x"], "--widths: got 'x', expected an integer >= 1"),
        (["--widths", "9"], "--widths: got 9, expected integers in 1..8"),
        (["--depths", "-1"], "--depths: got '-1'"),
        (["--depths", "5000"], "--depths: got 5000, expected at most"),
        (["--temperatures", "0,-1"], "--temperatures: got '-1'"),
        (["--max-tokens", "1"], "--max-tokens: got '1'"),
        (["--samples", "0"], "--samples: got '0'"),
        (["--repeat", "0"], "--repeat: got '0'"),
        (["--set", "imagenet"], "--set: got 'imagenet', expected gsm8k or"),
        (["--preset", "mine"], "--preset: got 'mine', expected announcement or default"),
        (["--prompts", "a", "--set", "mini"], "--prompts: got it beside --set mini"),
        (["--prompts", "missing.jsonl"], "prompts: got 'missing.jsonl', expected a readable file"),
        (["--no-chat-template", "--chat-template-args", "{}"], "--chat-template-args: got it beside"),
        (["--logit-bias", "3=1", "--logit-bias", "3=2"], "--logit-bias: got token 3 twice"),
        (["--plot", "picture.pdf"], "--plot: got 'picture.pdf', expected a name that ends in .png"),
        (["--plot", "nowhere/picture.png"], "--plot: got 'nowhere/picture.png', expected a writable file"),
        (["--csv", "nowhere/t.csv"], "--csv: got 'nowhere/t.csv', expected a writable file"),
        (["--apply", "--drafter", "none"], "--apply: got it beside --drafter none, expected the configured drafter"),
        (["--model", BARE[1], "--chat-template-args", '{"x": 1}'], "--chat-template-args: got"),
    ],
)
def test_bad_options(run: Run, flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*SMALL, *flags)
    assert ran.code in (1, 2) and words in ran.error and ran.out == ""
    assert not any(tmp_path.iterdir())


def test_without_matplotlib_a_plot_is_refused_first(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = run(*SMALL, "--plot", tmp_path / "o.png")
    assert ran.code == 2 and "expected matplotlib to be installed" in ran.error
    assert "pip install 'dflash2-mlx[bench]'" in ran.err and not (tmp_path / "o.png").exists()


def arm(width: int, **changes: Any) -> dict[str, Any]:
    usual = {
        "width": width, "mode": "plain" if width == 1 else "dflash2", "tokens_per_second": 10.0, "speedup": 1.0,
        "speedup_by_repeat": None, "acceptance_length": None, "acceptance_rate": None, "acceptance_by_position": [],
        "expected_length": None, "prefill_s": 0.1, "peak_memory_bytes": 2 * 10**9, "prompt_tokens": 9.0,
        "milliseconds": {}, "texts": None,
    }  # fmt: skip
    return {**usual, **changes}


def test_a_difference_is_said_with_its_logit_gap() -> None:
    found = {"prompt": 2, "turn": 0, "repeat": 0, "index": 17, "plain_token": 1, "dflash2_token": 2, "logit_gap": 5e-4}
    texts = {"compared": 9, "identical": 2, "differences": [found] * 6 + [{**found, "logit_gap": None}]}
    record = {
        "kind": "pair", "model": "m", "drafter": "d", "block_size": 8, "preset": None, "prompts": 3, "set": "mini",
        "max_tokens": 9, "repeats": 3, "notices": ["n"], "busy": "b", "complete": True,
        "settings": [{"depth": 0, "temperature": 0.0, "arms": [arm(1), arm(4, texts=texts)]}],
        "recommendation": {"block_size": None, "speedup": 0.9, "reason": "r", "caution": "c"},
    }  # fmt: skip
    shown = lines(record)
    at = shown.index("verdict    different: 2 of 9 drafted replies equal plain decoding's")
    assert shown[at + 1] == "           width 4, prompt 2: from token 17 on, logit gap 0.0005"
    assert shown[at + 6] == "           and 2 more (--json lists them)"
    assert shown[-4:] == ["note       n", "caution    b", "caution    c", "advice     plain decoding: r"]
    assert "2.00 GB" in "\n".join(shown)


def test_a_recommended_block_size_is_applied(run: Run) -> None:
    models = ModelOptions()
    check_apply(models)
    assert apply_block_size(models, None) == "--apply: nothing is written: no block size is recommended"
    assert apply_block_size(models, 5).startswith("Runtime block size 5 is now set for mini in ")
    shown = json.loads(run("settings", "show", "mini", "--json").out)
    assert shown["settings"]["dflash_block_size"] == 5
    ran = run("generate", "x = 1", "--max-tokens", "8", "--json")
    assert json.loads(ran.out)["block_size"] == 5

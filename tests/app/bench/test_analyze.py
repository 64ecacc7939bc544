"""`bench --analyze`: the same numbers as lines, as JSON and as a picture."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.bench.analyze import AnalysisOptions, run_analysis
from dflash2_app.bench.analyze_picture import draw_analysis
from dflash2_app.bench.analyze_text import analysis_lines
from dflash2_app.console.output import Output
from dflash2_app.errors import UsageError

from ..conftest import Run

DRAFTER = Path(d2.__file__).parent / "data" / "mini" / "drafter"
LONG = "/home/somebody/drafters/qwen3-0.6b/without-convolution"


def acceptance(name: str, kind: str, temperature: float, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "temperature": temperature,
        "block_size": 4,
        "requests": 2,
        "rounds": 40,
        "acceptance_length": 2.345,
        "acceptance_by_position": [0.75, 0.5, None],
        "pooled_length": 2.125,
        "expected_length": 2.125,
        "identity_holds": True,
        "same_text": None if temperature else True,
        **changes,
    }


def recall(name: str, temperature: float) -> dict[str, Any]:
    return {
        "name": name,
        "temperature": temperature,
        "k": 16,
        "blocks": 77,
        "recall_at_1": [0.8, 0.25, None],
        "recall_at_k": [0.99, 0.9, 0.875],
        "walk": [0.85, 0.5, 0.0],
        "length_at_1": 2.0,
        "oracle_length": 3.6606,
        "length_of_walk": 2.275,
    }


FOUND: dict[str, Any] = {
    "model": "target",
    "drafter": "ours",
    "block_size": 4,
    "prompts": 2,
    "max_tokens": 64,
    "acceptance": [
        acceptance(name, kind, temperature)
        for temperature in (0.0, 1.0)
        for name, kind in (("ours", "loaded"), ("selector off", "switched off"), (LONG, "another drafter"))
    ],
    "recall": [recall(name, temperature) for temperature in (0.0, 1.0) for name in ("ours", LONG)],
    "attention": [
        {"name": name, "rounds": 40, "by_layer": [0.2, 0.055], "by_layer_and_head": [[0.3, 0.1], [0.01, 0.1]]}
        for name in ("ours", LONG)
    ],
    "costs": {
        "width": 4,
        "repeats": 15,
        "verify_ms": 30.0,
        "draft_ms": 10.0,
        "draft_share": 0.25,
        "parts": {
            "selector off": {"share": 0.006, "quarter": -0.001, "three_quarters": 0.01, "visible": False},
            "convolution off": {"share": 0.0132, "quarter": 0.011, "three_quarters": 0.02, "visible": True},
        },
        "method": "by difference",
    },
    "note": None,
}


def test_lines_hold_the_numbers() -> None:
    lines = analysis_lines(FOUND)
    text = "\n".join(lines)
    assert "ours                           2.35      40    75.0  50.0     -" in lines
    assert "  selector off                 2.35      40    75.0  50.0     -" in lines
    assert "ours                         Recall@1      2.00    80.0  25.0     -" in lines
    assert "                             Recall@16     3.66    99.0  90.0  87.5" in lines
    assert "                             greedy walk   2.27    85.0  50.0   0.0" in lines
    assert "…ft" not in text and "-0.6b/without-convolution" in text, "a long name keeps its end"
    assert "ours                             1   20.0    30.0  10.0" in lines
    assert "verify 30.00 ms, draft 10.00 ms (25.0 % of both)" in text
    assert "selector off       saves +0.6 % of the round (middle half -0.1 to +1.0 %: lost in the noise here)" in text
    assert "convolution off    saves +1.3 % of the round (middle half +1.1 to +2.0 %)" in text
    assert text.count("1 + Σ Π c_i is the mean over rounds") == 2
    assert text.count("greedy replies are the same with every drafter") == 1
    assert all(line == line.rstrip() for line in lines)


def test_what_does_not_hold_is_said() -> None:
    found = copy.deepcopy(FOUND)
    found["acceptance"][1] |= {"identity_holds": False, "same_text": False, "acceptance_length": None}
    found["note"] = "slow rows"
    text = "\n".join(analysis_lines(found))
    assert "is NOT the mean over rounds for selector off" in text
    assert "other greedy replies than the loaded drafter's: selector off" in text
    found["acceptance"][2]["block_size"] = 3
    assert "-  (block size 3)" in "\n".join(analysis_lines(found)) and "(block size" not in text
    assert "  selector off                    -      40" in text and "note       slow rows" in text


def test_many_heads_are_summed_up_and_a_plain_drafter_has_no_parts() -> None:
    found = copy.deepcopy(FOUND)
    found["attention"] = [{"name": "ours", "rounds": 3, "by_layer": [0.5], "by_layer_and_head": [[0.25, 0.75] * 16]}]
    found["costs"]["parts"] = {}
    text = "\n".join(analysis_lines(found))
    assert "least and most of the heads" in text and "1   50.0    25.0  75.0" in text
    assert "neither convolution nor selector" in text


@pytest.mark.parametrize("drafters", [1, 2])
def test_the_picture_is_a_png(tmp_path: Path, drafters: int) -> None:
    found = copy.deepcopy(FOUND)
    found["attention"] = found["attention"][:drafters]
    found["acceptance"][0]["acceptance_by_position"] = [None, None, None]
    draw_analysis(found, tmp_path / "analysis.png")
    assert (tmp_path / "analysis.png").read_bytes().startswith(b"\x89PNG")


SMALL = ("bench", "--analyze", "--samples", "2", "--max-tokens", "6", "--temperatures", "0", "--repeat", "2")


def test_the_embedded_pair_is_analyzed(run: Run, tmp_path: Path) -> None:
    ran = run(*SMALL, "--plot", tmp_path / "a.png", "--compare", DRAFTER, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (tmp_path / "a.png").is_file()
    assert [row["name"] for row in found["acceptance"]] == [
        *("mini", "selector off", "convolution off", "both off"), str(DRAFTER),
    ]  # fmt: skip
    first, last = found["acceptance"][0], found["acceptance"][-1]
    for field in ("acceptance_length", "acceptance_by_position", "rounds"):
        assert first[field] == last[field], "the same drafter by another name"
    assert all(row["identity_holds"] and row["same_text"] for row in found["acceptance"])
    assert found["recall"][0]["blocks"] > 0 and found["recall"][0]["k"] == 16
    assert set(found) == {*FOUND, "sampling", "machine", "versions"}
    assert analysis_lines(found)[0] == "pair       mini · drafter mini · block size 8"


def test_without_a_drafter_there_is_nothing_to_analyze() -> None:
    engine = d2.load(DRAFTER.parent / "target")
    with Output() as out, pytest.raises(UsageError, match="--analyze: got no drafter"):
        run_analysis(out, engine, ["x"], AnalysisOptions(d2.GenerationConfig()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compare", "nowhere"], "drafter: got 'nowhere', expected an existing folder or a Hub id"),
        (["--compare", "mini"], "--compare: got 'mini' twice"),
        (["--temperatures", "0,0.0"], "--temperatures: got"),
        (["--repeat", "1"], "--repeat: got 1 beside --analyze, expected an integer >= 2"),
        (["--widths", "9"], "--block-size: got 9, expected an integer in 2..8"),
        (["--widths", "3,5"], "--widths: got 2 beside --analyze, expected one"),
        (["--depths", "5"], "--depths: got it beside --analyze"),
        (["--no-phases"], "--no-phases: got it beside --analyze"),
        (["--csv", "t.csv"], "--csv: got it beside --analyze"),
        (["--apply"], "--apply: got it beside --analyze"),
        (["--endpoint", "http://127.0.0.1:1"], "--endpoint: got it beside --analyze"),
    ],
)
def test_bad_options(run: Run, arguments: list[str], words: str) -> None:
    ran = run(*SMALL, *arguments)
    assert ran.code in (1, 2) and words in ran.error and ran.out == ""


def test_a_comparison_needs_an_analysis(run: Run) -> None:
    ran = run("bench", "--compare", "x")
    assert ran.code == 2 and ran.error == "--compare: got 'x', expected --analyze as well"

"""The benchmarks run, say what they measured, and refuse bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_decode, bench_kernels, bench_train
from benchmarks.machine import BadInput, run_command


def test_decode_measures_every_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([bench_decode.PROMPTS[0], "def f(x):\n"]))
    arguments = f"--max-tokens 12 --repeats 2 --widths 4,3 --prompts {prompts} --json {out}"
    bench_decode.main(arguments.split())
    record = json.loads(out.read_text())
    assert [row["arm"] for row in record["summary"]] == ["plain", "DFlash 2, width 4", "DFlash 2, width 3"]
    assert record["summary"][0]["ratio"] == 1.0
    assert all(row["texts_equal"] == 2 and row["tokens_per_second"] > 0 for row in record["summary"])
    phases = {"draft", "select", "verify", "commit", "build", "host_gap"}
    assert [set(arm["milliseconds"]) for arm in record["arms"]] == [phases - {"draft", "select"}, phases, phases]
    assert [len(arm["seconds"]) for arm in record["arms"]] == [2, 2, 2]
    shown = capsys.readouterr().out
    for text in ("mlx 0.", "BLAS: ", "DFlash 2, width 4", "separate synchronous runs"):
        assert text in shown


def test_ratio_and_rate_by_hand() -> None:
    plain = bench_decode.Arm("plain", None, tokens=[10, 30], seconds=[[1.0, 3.0], [1.0, 9.0], [1.0, 3.0]])
    other = bench_decode.Arm("other", 5, tokens=[10, 30], seconds=[[0.5, 1.5], [0.5, 1.5], [9.0, 1.5]])
    assert plain.tokens_per_second() == 10.0
    assert other.tokens_per_second() == 20.0
    assert other.ratios(plain) == [2.0, 5.0, 4.0 / 10.5]
    assert bench_decode.quartiles([4.0]) == {"median": 4.0, "quarter": 4.0, "three_quarters": 4.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--bogus", "unrecognized arguments"),
        ("--widths 9", r"--widths: got 9, expected 2\.\.8"),
        ("--widths 4,4", "different numbers"),
        ("--widths wide", "such as 8,5"),
        ("--max-tokens 1", "at least 2"),
        ("--repeats 0", "at least 1"),
        ("--target-dtype half", "invalid choice"),
        ("--prompts nowhere.json", "expected a JSON file"),
        ("--json nowhere/out.json", "existing folder"),
    ],
)
def test_decode_refuses_bad_input(arguments: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        bench_decode.main(arguments.split())
    assert "\n" not in str(caught.value)


def test_a_refusal_is_one_line_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_command(lambda _: bench_decode.main(["--model", "nowhere"]), "bench_decode")
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("bench_decode: model: got 'nowhere'") and error.count("\n") == 1


def test_kernels_covers_every_operation(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    bench_kernels.main(["--shapes", "tests", "--repeats", "1", "--json", str(out)])
    timings = json.loads(out.read_text())["timings"]
    folder = Path(bench_kernels.__file__).parent.parent / "dflash2_mlx" / "kernels"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    choosing = {"dispatch", "source", "call", "qmm_calls", "qmm_forms"}  # how operations run, and rules: no operations
    assert {timing["operation"].split(",")[0] for timing in timings} - {"edge_scores"} == files - choosing
    assert all(timing["median_ms"] >= timing["least_ms"] > 0 for timing in timings)


def test_train_compares_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    bench_train.main(f"--size tiny --sequences 2 --anchors 3 --block-size 4 --repeats 2 --json {out}".split())
    record = json.loads(out.read_text())
    assert len(record["ratios"]) == len(record["rows"]) == 2 and record["target_share"] > 0
    assert "rows per CPU second" in capsys.readouterr().out
    with pytest.raises(BadInput, match="--block-size: got 1, expected at least 2"):
        bench_train.main(["--block-size", "1"])

"""`doctor` says what is here, and measures what it recommends from."""

from __future__ import annotations

import json
from collections.abc import Iterator

import mlx.core as mx
import pytest

from dflash2_mlx.device.chips import read_chip
from dflash2_mlx.kernels import dispatch

from .conftest import Run


def test_quick_loads_no_model(run: Run) -> None:
    ran = run("doctor", "--quick", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0 and ran.err == ""
    assert found["pair"] is None and found["memory_bandwidth_bytes_per_s"] is None
    assert {"select_walk", "few_row_attention", "qmm_rows_tensor"} <= {kernel["name"] for kernel in found["kernels"]}
    assert bool(found["cannot"]) == (found["machine"]["backend"] != "metal")


def test_the_text_holds_what_the_json_says(run: Run) -> None:
    found, text = json.loads(run("doctor", "--quick", "--json").out), run("doctor", "--quick").out
    assert found["machine"]["system"] in text
    assert f"mlx {found['versions']['mlx']}" in text
    for kernel in found["kernels"]:
        assert kernel["name"] in text
    for missing in found["cannot"]:
        assert f"cannot     {missing}" in text


@pytest.mark.parametrize(("drafter", "busy"), [([], 99.0), (["--drafter", "none"], 0.0)])
def test_the_embedded_pair_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, drafter: list[str], busy: float
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (busy, 1.0, 1.0))
    ran = run("doctor", "--rows", "3", *drafter)
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert any(line.startswith("bandwidth") for line in lines)
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0] in ("1", "2", "3")]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    first, second = (len(row) for row in rows[:2])
    assert first == 3 and (second == 3 if drafter else second >= 6), "the best width has a word more"
    assert ("caution    99.0 processes want to run" in ran.out) == bool(busy) and ("caution" in ran.out) == bool(busy)
    assert any(line.startswith("advice") for line in lines)


def test_json_is_for_bug_reports(run: Run) -> None:
    pair = json.loads(run("doctor", "--rows", "2", "--json").out)["pair"]
    assert (pair["model"], pair["drafter"], pair["block_size"]) == ("mini", "mini", 8)
    assert set(pair["verify_ms"]) == {"1", "2"} and set(pair["draft_ms"]) == {"2"}
    assert len(pair["acceptance_by_position"]) == 7 and 1 < pair["acceptance_length"] <= 8


def test_a_variable_that_cannot_be_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch.dispatcher.cache_clear()
    monkeypatch.setenv("DFLASH2_KERNELS", "fast")
    ran = run("doctor", "--quick")
    assert ran.code == 1 and ran.error.startswith("DFLASH2_KERNELS: got 'fast', expected auto, mlx, metal")


@pytest.fixture
def metal_by_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if mx.metal.is_available():
        pytest.skip("there is Metal here")
    monkeypatch.setenv("DFLASH2_KERNELS", "select_walk=metal")
    dispatch.dispatcher.cache_clear()
    yield
    dispatch.dispatcher.cache_clear()


def test_metal_that_is_not_there_is_reported_and_an_error(run: Run, metal_by_name: None) -> None:
    quick = run("doctor", "--quick")
    assert quick.code == 0 and "MLX has no Metal here, though it was asked for by name" in quick.out
    ran = run("doctor", "--json")
    assert ran.code == 1 and ran.error.startswith("DFLASH2_KERNELS: got metal for select_walk")
    found = json.loads(ran.out)
    assert found["problem"] == ran.error and found["machine"]["backend"]
    reply = run("generate", "x", "--max-tokens", "3")
    assert reply.code == 1 and reply.out == "" and reply.error == ran.error


@pytest.mark.parametrize("rows", ["1", "17", "x"])
def test_rows_out_of_range(run: Run, rows: str) -> None:
    ran = run("doctor", "--rows", rows)
    assert ran.code == 2 and ran.error == f"--rows: got '{rows}', expected an integer in 2..16"


@pytest.mark.parametrize(
    ("chip", "line"),
    [
        (
            read_chip("applegpu_g17s", "Apple M5 Max", "26.4", "0.32.4", gpu_cores=40),
            "GPU generation 17 · 40 cores · Neural Accelerators: yes (GPU generation 17, macOS 26.4, MLX 0.32.4)",
        ),
        (
            read_chip("applegpu_g14s", "Apple M2 Max", "26.4", "0.32.4"),
            "GPU generation 14 · bfloat16 is emulated · "
            "Neural Accelerators: no (GPU generation 14: those before 17 have none)",
        ),
        (read_chip("x86_64", "AMD EPYC"), None),
    ],
)
def test_the_gpu_and_why_its_accelerators_are_used_or_not(chip, line, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dflash2_mlx.analysis.machine.this_chip", lambda: chip)
    lines = run("doctor", "--quick").out.splitlines()
    assert lines[0].startswith(f"machine    {chip.name} · ")
    assert [text for text in lines if text.startswith("chip ")] == ([] if line is None else [f"chip       {line}"])
    gpu = json.loads(run("doctor", "--quick", "--json").out)["machine"]["gpu"]
    assert (gpu is None) == (line is None)
    if gpu is not None:
        assert (gpu["cores"], gpu["neural_accelerators"]) == (chip.gpu_cores, chip.neural_accelerators)

"""Tuning in the background: when nobody asks for anything, and no harm to replies beside it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_mlx import tuning as tune
from dflash2_mlx.decode.costs import KEPT
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.engine import Engine
from dflash2_mlx.kernels.dispatch import Dispatcher
from dflash2_mlx.tuning import run as run_module
from dflash2_mlx.tuning.background import DONE, FAILED, RUNNING, STOPPED, WAITING
from tests.runs import PROMPT, lively_reply

from .fakes import STOCK, contest


class Beside:
    """A tuning in the background, and what it said at its end."""

    def __init__(self, engine: Engine, folder: Path, quiet_s: float = 0.0):
        self.lines: list[str] = []
        self.ended = threading.Event()
        self.job = tune.BackgroundTuning(engine, tune.TuneFolder(folder), done=self._done, quiet_s=quiet_s)

    def _done(self, line: str) -> None:
        self.lines.append(line)
        self.ended.set()

    def wait_until(self, state: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while self.job.state != state:
            assert time.monotonic() < end, self.job.state
            time.sleep(0.002)


def test_it_tunes_when_nobody_asks_and_says_so(engine: Engine, metal: Dispatcher, tmp_path: Path):
    beside = Beside(engine, tmp_path)
    beside.job.start()
    assert beside.ended.wait(120) and beside.job.state == DONE
    assert beside.lines == ["qwen3_5 + tiny: tuned, 2 of 2 races won by our kernels"]
    assert metal.winner("norm_rope", "first") == "metal" and engine.costs.source == KEPT
    assert len(tune.TuneFolder(tmp_path).records()[0]) == 1


def test_replies_come_first_and_are_not_changed(
    engine: Engine, metal: Dispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs: list[int] = []  # that were under way when a contender ran
    race = contest({STOCK: 0.04, "metal": 0.01}, watch=lambda: jobs.append(len(owner()._jobs)))
    monkeypatch.setattr(run_module, "contests", lambda target, drafter, rows: [race] * 4)
    beside = Beside(engine, tmp_path)
    beside.job.start()
    beside.wait_until(RUNNING)
    config = d2.GenerationConfig(max_tokens=8, stop_token_ids=())
    replies = [d2.generate(engine, PROMPT, config) for _ in range(3)]
    assert beside.job.state == RUNNING, "else this test saw nothing"
    assert all(reply.token_ids == list(lively_reply("qwen3_5"))[:8] for reply in replies)
    assert beside.ended.wait(120) and beside.job.state == DONE
    assert jobs and not any(jobs), "a contender ran in the middle of a reply"


def test_it_waits_for_quiet(engine: Engine, metal: Dispatcher, tmp_path: Path):
    beside = Beside(engine, tmp_path, quiet_s=3600.0)
    beside.job.start()
    d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=4, stop_token_ids=()))
    time.sleep(0.3)
    assert beside.job.state == WAITING and beside.job.progress is None
    beside.job.stop()
    assert beside.ended.wait(10) and beside.lines == ["qwen3_5 + tiny: tuning was stopped"]


def test_stopped_half_way_it_keeps_nothing_and_lets_go(engine: Engine, metal: Dispatcher, tmp_path: Path):
    beside = Beside(engine, tmp_path)
    beside.job.start()
    beside.wait_until(RUNNING)
    beside.job.stop()
    assert beside.ended.wait(30) and beside.job.state == STOPPED
    assert beside.job._engine is None and beside.job._steps is None
    assert tune.TuneFolder(tmp_path).records() == ([], [])
    beside.job.stop()
    time.sleep(0.1)
    assert beside.lines == ["qwen3_5 + tiny: tuning was stopped"]


def test_the_background_makes_way_for_another_process_and_goes_on(engine: Engine, metal: Dispatcher, tmp_path: Path):
    folder = tune.TuneFolder(tmp_path)
    beside = Beside(engine, tmp_path)
    with folder.alone():
        beside.job.start()
        time.sleep(0.3)
        assert beside.job.state == WAITING and beside.job.progress is None
        assert not beside.job.ready(), "nor does it try all the time"
    beside.wait_until(RUNNING)
    with folder.alone(wait_s=10) as alone:
        assert alone, "a slice is not long"
        before = beside.job.progress
        time.sleep(0.3)
        assert beside.job.progress == before
    assert beside.ended.wait(120) and beside.job.state == DONE


def test_a_fault_of_ours_ends_it_and_not_the_owner_thread(
    engine: Engine, metal: Dispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_module, "contests", lambda *_: {}["nobody thought of that"])
    beside = Beside(engine, tmp_path)
    beside.job.start()
    assert beside.ended.wait(120) and beside.job.state == FAILED
    assert beside.lines == ["qwen3_5 + tiny: tuning failed: KeyError: 'nobody thought of that'"]
    assert owner().call(lambda: 7) == 7


def test_a_failure_ends_it_alone(engine: Engine, metal: Dispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tune").write_text("", encoding="utf-8")
    beside = Beside(engine, tmp_path / "tune")
    beside.job.start()
    assert beside.ended.wait(120) and beside.job.state == FAILED
    assert beside.job.problem is not None and beside.lines[0].startswith("qwen3_5 + tiny: tuning failed: ")
    assert d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=4, stop_token_ids=())).token_ids

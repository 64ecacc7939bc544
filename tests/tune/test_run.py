"""Tuning a pair: nothing to race without Metal, winners and costs adopted, and no harm to replies beside it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx import costs as costs_module
from dflash2_mlx import tune
from dflash2_mlx.costs import KEPT, MEASURED, CostTable, PassCosts
from dflash2_mlx.kernels import _dispatch
from dflash2_mlx.kernels import contests as contests_module
from dflash2_mlx.kernels._dispatch import Dispatcher
from dflash2_mlx.load import Engine
from dflash2_mlx.runtime import owner
from dflash2_mlx.tune import run as run_module
from dflash2_mlx.tune.background import DONE, FAILED, RUNNING, STOPPED, WAITING
from tests.engines import tiny_engine
from tests.runs import PROMPT, lively_reply
from tests.tiny import make_tiny_drafter

from .fakes import STOCK, contest, use_clock

COSTS = PassCosts({1: 1.0, 2: 1.1, 3: 1.2}, {2: 0.1, 3: 0.1})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A pair that another process could meet again, and short measurements."""
    monkeypatch.setattr(costs_module, "LONG_ENOUGH_S", 0.001)
    monkeypatch.setattr(run_module, "DEEP", 200)
    drafter = owner().call(lambda: make_tiny_drafter(block_size=3, compiled=True))
    return replace(tiny_engine("qwen3_5", drafter), fingerprint="a pair of files")


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    """A dispatcher that believes in Metal, and contests that need none."""
    here = Dispatcher("auto", lambda **_: pytest.fail("no kernel is made here"))
    for module in (run_module, contests_module):
        monkeypatch.setattr(module, "dispatcher", lambda: here)
    # The pair itself goes on without.
    use_clock(monkeypatch)
    races = [contest({STOCK: 0.04, "metal": 0.01}, key=key) for key in ("first", "second")]
    monkeypatch.setattr(run_module, "contests", lambda target, drafter, rows: races)
    return here


def finish(steps: Any) -> tuple[tune.TuneRecord, list[tune.Progress]]:
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration as end:
            return end.value, seen


def test_without_metal_only_passes_are_timed(engine: Engine, tmp_path: Path):
    if _dispatch.dispatcher().factory is not None:
        pytest.skip("there is Metal here")
    folder = tune.TuneFolder(tmp_path)
    nothing = "no kernel of ours can run here, so there is nothing to race: MLX has no Metal"
    assert tune.why_not(engine, None) == tune.nothing_to_race() == nothing
    record, seen = finish(tune.tune(engine, folder))
    assert record.raced and record.races == () and record.winners == {}
    assert record.costs is not None
    assert set(record.costs.verify) == set(record.costs.slope) == {1, 2, 3} and set(record.costs.draft) == {2, 3}
    assert engine.costs.source == KEPT and engine.costs.costs(engine.target, engine.drafter) is record.costs
    assert [one.done for one in seen] == list(range(seen[-1].total + 1)) and seen[-1].what == "done"
    # Another process finds it.
    later = replace(engine, costs=CostTable())
    assert tune.attach(later, folder).record == record
    assert later.costs.source == KEPT and later.costs.costs(engine.target, engine.drafter) == record.costs


def test_winners_and_costs_are_adopted(engine: Engine, metal: Dispatcher, tmp_path: Path):
    assert tune.why_not(engine, None) is None
    metal.adopt({("norm_rope", "first"): "from an earlier race"})
    folder = tune.TuneFolder(tmp_path)
    record, seen = finish(tune.tune(engine, folder))
    assert record.winners == {("norm_rope", "first"): "metal", ("norm_rope", "second"): "metal"}
    assert metal.winner("norm_rope", "first") == "metal" and metal.raced("norm_rope") == {
        "first": "metal",
        "second": "metal",
    }
    assert list(dict.fromkeys(one.what for one in seen)) == [
        "norm_rope first",
        "norm_rope second",
        "passes by rows",
        "done",
    ]
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert tune.why_not(engine, record) == f"tuned already, {record.at}"
    assert tune.why_not(engine, replace(record, raced=False)) is None
    assert tune.why_not(replace(engine, drafter=None), None) == "no drafter: plain decoding has no width to choose"
    # A later process: the winners stand before the first pass.
    metal.forget(record.winners)
    tune.attach(replace(engine, costs=CostTable()), folder)
    assert metal.winner("norm_rope", "second") == "metal"


def test_graphs_are_traced_anew_when_winners_change(engine: Engine):
    assert engine.drafter is not None
    config = d2.GenerationConfig(max_tokens=8, stop_token_ids=())
    before, project = d2.generate(engine, PROMPT, config).token_ids, engine.drafter.project
    raced = {("norm_rope", "a shape nobody has"): "mlx"}
    owner().call(lambda: _dispatch.dispatcher().adopt(raced))
    after = d2.generate(engine, PROMPT, config).token_ids
    assert engine.drafter.project is not project
    assert before == after == list(lively_reply("qwen3_5"))[:8]
    owner().call(lambda: _dispatch.dispatcher().forget(raced))


def test_costs_that_adaptive_measured_are_kept(engine: Engine, tmp_path: Path):
    folder = tune.TuneFolder(tmp_path)
    assert tune.attach(engine, folder) == tune.Attached(None)
    config = d2.GenerationConfig(max_tokens=4, verify_mode="adaptive")
    assert "measured first" in d2.generate(engine, PROMPT, config).stats.notices[0]
    assert engine.costs.source == MEASURED
    ((record,), notes) = folder.records()
    assert not record.raced and record.costs == engine.costs.costs(engine.target, engine.drafter) and notes == []
    later = replace(engine, costs=CostTable())
    tune.attach(later, folder)
    assert d2.generate(later, PROMPT, config).stats.notices == []


def test_costs_that_cannot_be_kept_are_told(engine: Engine, tmp_path: Path):
    (tmp_path / "tune").write_text("a file where the folder should be", encoding="utf-8")
    tune.attach(engine, tune.TuneFolder(tmp_path / "tune"))
    notices = d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=4, verify_mode="adaptive")).stats.notices
    assert len(notices) == 2 and notices[1].startswith("the costs of passes are not kept: ")


def test_a_damaged_record_is_told_and_not_used(engine: Engine, tmp_path: Path):
    folder = tune.TuneFolder(tmp_path)
    record, _ = finish(tune.tune(engine, folder))
    folder.file_of(record.identity).write_text("{", encoding="utf-8")
    fresh = replace(engine, costs=CostTable())
    found = tune.attach(fresh, folder)
    assert found.record is None and "cannot be used" in found.notes[0] and not fresh.costs.known


def test_pairs_without_files_keep_nothing(tmp_path: Path):
    passing = tiny_engine("qwen3")
    folder = tune.TuneFolder(tmp_path / "tune")
    assert tune.attach(passing, folder) == tune.Attached(None) and passing.costs.keep is None
    finish(tune.tune(passing, folder))
    assert not folder.folder.exists()


# In the background.


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


def test_a_failure_ends_it_alone(engine: Engine, metal: Dispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tune").write_text("", encoding="utf-8")
    beside = Beside(engine, tmp_path / "tune")
    beside.job.start()
    assert beside.ended.wait(120) and beside.job.state == FAILED
    assert beside.job.problem is not None and beside.lines[0].startswith("qwen3_5 + tiny: tuning failed: ")
    assert d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=4, stop_token_ids=())).token_ids

"""Tuning a pair: nothing to race without Metal, winners and costs adopted, and what cannot be done is told."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx import tuning as tune
from dflash2_mlx.decode.costs import KEPT, MEASURED, CostTable, PassCosts
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.engine import Engine
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels.dispatch import Dispatcher
from dflash2_mlx.tuning import run as run_module
from tests.engines import tiny_engine
from tests.runs import PROMPT, lively_reply, target_config

from .fakes import STOCK, contest

COSTS = PassCosts({1: 1.0, 2: 1.1, 3: 1.2}, {2: 0.1, 3: 0.1})


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
    assert record.raced and record.races == () and record.winners == {} and record.notes == (nothing,)
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
    passing = replace(engine, fingerprint="unnamed-1")
    assert tune.why_not(passing, None) == "this pair has no files: what was found could not be kept for it"
    assert tune.why_not(replace(engine, drafter=None), None) == "no drafter: plain decoding has no width to choose"
    # A later process: the winners stand before the first pass.
    metal.forget(record.winners)
    tune.attach(replace(engine, costs=CostTable()), folder)
    assert metal.winner("norm_rope", "second") == "metal"


OTHERS = {("norm_rope", "of another model"): "mlx"}


def test_other_models_keep_their_winners(engine: Engine, metal: Dispatcher):
    metal.adopt(OTHERS | {("norm_rope", "first"): "mlx"})
    steps = run_module.tuning(engine)
    owner().call(lambda: next(steps))
    assert metal.raced("norm_rope") == {"of another model": "mlx"}, "its own must not stand in for what is raced"
    owner().call(steps.close)
    assert metal.raced("norm_rope") == {"of another model": "mlx", "first": "mlx"}, "given up: as it was before"
    finish(tune.tune(engine))
    assert metal.raced("norm_rope") == {"of another model": "mlx", "first": "metal", "second": "metal"}


def test_given_up_half_way_everything_is_as_it_was(engine: Engine, metal: Dispatcher, tmp_path: Path):
    metal.adopt({("norm_rope", "second"): "mlx"})
    steps = tune.tune(engine, tune.TuneFolder(tmp_path))
    next(steps)
    steps.close()  # as Ctrl-C does
    owner().call(lambda: None)
    assert metal.raced("norm_rope") == {"second": "mlx"} and list(tmp_path.glob("*.json")) == []


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(engine: Engine, tmp_path: Path):
    (tmp_path / "tune").write_text("", encoding="utf-8")
    with pytest.raises(OSError):
        next(tune.tune(engine, tune.TuneFolder(tmp_path / "tune")))


def test_what_it_will_take_is_told_before(engine: Engine, metal: Dispatcher, monkeypatch: pytest.MonkeyPatch):
    plan = tune.plan(engine)
    assert (plan.races, plan.contenders, plan.most_rows, plan.bytes, plan.notes) == (2, 4, 3, 0, ())
    assert plan.race_seconds == pytest.approx(2 * 2 * 7 * 0.05)
    assert plan.pass_seconds is None and plan.deep == 200
    engine.costs.adopt(COSTS, KEPT)
    # 3 passes near and deep and 2 drafts, each tried twice and run three times.
    assert tune.plan(engine).pass_seconds == pytest.approx(5 * (2 * (1.0 + 1.1 + 1.2) + 0.1 + 0.1), rel=0.01)
    known = replace(engine, target_config=target_config("qwen3_5"))
    states = tune.plan(known)
    assert 0 < states.bytes < 10**7 and states.deep == 200
    monkeypatch.setattr(run_module, "MOST_BYTES", states.bytes - 1)
    less = tune.plan(known)
    assert less.deep is None and 0 < less.bytes < states.bytes and "passes behind 200 positions need" in less.notes[0]


def test_races_that_need_too_much_memory_or_time_are_left_out(
    engine: Engine, metal: Dispatcher, monkeypatch: pytest.MonkeyPatch
):
    races = [replace(contest({STOCK: 0.04, "metal": 0.01}, key=key), bytes=size) for key, size in
             (("a", 10), ("b", 3 * 10**9), ("c", 2 * 10**9))]  # fmt: skip
    monkeypatch.setattr(run_module, "contests", lambda target, drafter, rows: races)
    plan = tune.plan(engine)
    assert (plan.races, plan.bytes) == (2, 2 * 10**9)
    assert plan.notes == ("1 of 3 races need more than 2 GB beside the model: left out",)
    record, _ = finish(tune.tune(engine))
    assert [race.key for race in record.races] == ["a", "c"] and record.notes == plan.notes
    # Half of what is free, where that is less.
    monkeypatch.setattr(run_module, "_free_bytes", lambda: 3_999_999_998)
    assert tune.plan(engine).notes == ("2 of 3 races need more than 2 GB beside the model: left out",)
    monkeypatch.setattr(run_module, "_free_bytes", lambda: 10**12)
    assert tune.plan(engine).races == 2
    monkeypatch.setattr(run_module, "MOST_SECONDS", 0.0)
    record, seen = finish(tune.tune(engine))
    assert record.races == () and record.notes[1] == "2 of 2 races: left out after 0 seconds"
    assert record.costs is not None and seen[-1].done == seen[-1].total


def test_the_inputs_of_a_race_leave_memory_with_it(engine: Engine, metal: Dispatcher, monkeypatch: pytest.MonkeyPatch):
    alive: list[weakref.ref[Any]] = []

    def one(key: str) -> Any:
        held = Held()
        alive.append(weakref.ref(held))
        return contest({STOCK: 0.04, "metal": 0.01}, key=key, watch=lambda: held.nothing())

    monkeypatch.setattr(run_module, "contests", lambda target, drafter, rows: [one("a"), one("b")])
    steps = run_module.tuning(engine)
    while owner().call(lambda: next(steps)).what != "norm_rope b":
        pass
    gc.collect()
    assert [ref() is None for ref in alive] == [True, False]
    owner().call(steps.close)


class Held:
    """What a race holds."""

    def nothing(self) -> None:
        pass


def test_winners_that_cannot_run_are_told_and_not_used(engine: Engine, metal: Dispatcher, tmp_path: Path):
    folder = tune.TuneFolder(tmp_path)
    record, _ = finish(tune.tune(engine, folder))
    odd = [replace(record.races[0], kernel=kernel, key="k", winner=winner, seconds={STOCK: 1.0, winner: 0.5})
           for kernel, winner in (("norm_rope", "tile"), ("of_tomorrow", "metal"))]  # fmt: skip
    folder.save(replace(record, races=(*record.races, *odd)))
    metal.forget(record.winners)
    found = tune.attach(replace(engine, costs=CostTable()), folder)
    assert found.notes == (
        f"{folder.file_of(record.identity)}: 2 of 4 winners cannot run here and are not used: "
        "metal of of_tomorrow, tile of norm_rope",
    )
    assert metal.raced("norm_rope") == {"first": "metal", "second": "metal"} and metal.raced("of_tomorrow") == {}


def test_where_every_kernel_is_switched_off_there_is_nothing_to_race(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_module, "dispatcher", lambda: Dispatcher("mlx", lambda **_: pytest.fail("none is made")))
    reason = "no kernel of ours can run here, so there is nothing to race: DFLASH2_KERNELS switches them off"
    assert tune.nothing_to_race() == tune.why_not(engine, None) == reason
    monkeypatch.setattr(run_module, "dispatcher", lambda: Dispatcher("mlx,accept=auto", lambda **_: None))
    assert tune.nothing_to_race() is None


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


def test_costs_measured_later_leave_the_races_as_they_are(engine: Engine, metal: Dispatcher, tmp_path: Path):
    folder = tune.TuneFolder(tmp_path)
    record, _ = finish(tune.tune(engine, folder))
    later = replace(engine, costs=CostTable())
    tune.attach(later, folder)
    later.costs.adopt(COSTS, MEASURED)
    kept, _ = folder.find(record.identity)
    assert kept is not None and kept.costs == COSTS and later.costs.problem is None
    assert (kept.races, kept.raced, kept.seconds) == (record.races, True, record.seconds)


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


def test_two_processes_do_not_tune_at_once(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_module, "_PATIENCE_S", 0.1)
    folder = tune.TuneFolder(tmp_path)
    with folder.alone() as first:
        assert first
        with folder.alone() as second:
            assert not second
        with pytest.raises(d2.SettingError, match=r"tune: got another process that tunes with .*, expected it to have"):
            next(tune.tune(engine, folder))
    steps = tune.tune(engine, folder)
    next(steps)
    with folder.alone() as meanwhile:
        assert not meanwhile, "the whole of a foreground is one piece"
    steps.close()
    with folder.alone() as after:
        assert after
    assert folder.records() == ([], [])
    with tune.TuneFolder(tmp_path / "nowhere").alone() as alone:
        assert alone, "where nothing can be kept, that is told elsewhere"

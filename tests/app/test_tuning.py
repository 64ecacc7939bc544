"""Tuning as users meet it: when it goes on in the background, what `doctor` shows, and how it is switched off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import dflash2_mlx as d2
from dflash2_app.engine import loading, tuning
from dflash2_app.engine.setup import prepare
from dflash2_app.settings.paths import Base
from dflash2_app.web.serving.engines import Engines, Held
from dflash2_mlx import tuning as tune
from dflash2_mlx.decode.costs import CostTable, PassCosts
from dflash2_mlx.device.chips import read_chip
from dflash2_mlx.tuning.measure import RaceResult
from dflash2_mlx.tuning.record import TuneFolder, TuneRecord, identity_of

from .conftest import Run

RACES = (
    RaceResult("norm_rope", "8x48x128 bfloat16 heads 40", "mlx", "metal", {"mlx": 2e-5, "metal": 1e-5}),
    RaceResult("select_walk", "7x31x16x256 greedy", "mlx", "mlx", {}, {"metal": "other tokens than the twin's"}),
)


def record(pair: str = "pair-1", **changes: Any) -> TuneRecord:
    made = TuneRecord(
        identity_of(read_chip(None, "a chip"), pair), "target", "drafter", "2026-11-30T12:00:00+00:00", 9.0,
        PassCosts({1: 0.07}, {}), True, RACES,
    )  # fmt: skip
    return replace(made, **changes)


# When it begins.


class Job:
    """Stands in for the library's background job."""

    made: ClassVar[list[Job]] = []

    def __init__(self, engine: Any, folder: TuneFolder, *, done: Any):
        self.engine, self.folder, self.done, self.calls = engine, folder, done, []
        Job.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Background jobs, on a machine that could race something."""
    monkeypatch.setattr(Job, "made", [])
    monkeypatch.setattr(tune, "BackgroundTuning", Job)
    monkeypatch.setattr(tune, "why_not", lambda engine, found: "tuned already" if found is not None else None)
    return Job.made


ENGINE: Any = SimpleNamespace(fingerprint="pair-1", costs=CostTable(), drafter=None, target_name="t", drafter_name="d")


def test_it_begins_beside_a_pair_that_was_not_tuned(jobs: list[Job], tmp_path: Path) -> None:
    taken = tuning.take_up(ENGINE, tmp_path, background=True)
    assert [job.calls for job in jobs] == [["start"]] and jobs[0].folder.folder == tmp_path
    taken.stop()
    assert jobs[0].calls == ["start", "stop"]
    tuning.Tuned().stop()


def test_what_it_is_at_can_be_told() -> None:
    job: Any = SimpleNamespace(name="t + d", state="waiting", progress=None, problem=None)
    empty = {"done": None, "total": None, "what": None, "problem": None}
    assert tuning.Tuned().now is None
    assert tuning.Tuned(job=job).now == {"pair": "t + d", "state": "waiting", **empty}
    job.state, job.progress = "running", tune.Progress(0, 9, "norm_rope 8x8")
    assert tuning.Tuned(job=job).now == {
        "pair": "t + d", "state": "running", "done": 0, "total": 9, "what": "norm_rope 8x8", "problem": None,
    }  # fmt: skip
    job.state, job.problem = "failed", "No space left on device"
    assert (tuning.Tuned(job=job).now or {})["problem"] == "No space left on device"


def test_it_does_not_begin_where_nothing_could_be_kept(jobs: list[Job], tmp_path: Path) -> None:
    (tmp_path / "tune").write_text("", encoding="utf-8")
    taken = tuning.take_up(ENGINE, tmp_path / "tune", background=True)
    assert taken.job is None and jobs == []
    assert taken.notes == (f"nothing is tuned in the background: {tmp_path / 'tune'}: File exists",)
    assert tuning.take_up(ENGINE, tmp_path / "tune", background=False).notes == ()


def test_it_does_not_begin_where_it_may_not_or_need_not(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tuning.take_up(ENGINE, tmp_path, background=False).job is None
    assert tuning.take_up(ENGINE, None, background=True).job is None
    monkeypatch.setattr(tune, "attach", lambda engine, folder: tune.Attached(record(), ("a note",)))
    taken = tuning.take_up(ENGINE, tmp_path, background=True)
    assert taken.job is None and taken.notes == ("a note",) and jobs == []


@pytest.mark.parametrize(
    ("several", "given", "environment", "stored", "begins"),
    [
        (True, {}, {}, None, True),
        (False, {}, {}, None, False),  # one reply: generate, demo, bench
        (True, {"tune": False}, {}, None, False),  # --no-tune
        (True, {}, {"DFLASH2_TUNE": "off"}, None, False),
        (True, {}, {}, False, False),  # the setting
        (True, {"tune": True}, {"DFLASH2_TUNE": "off"}, False, True),  # the command line is nearest
    ],
)
def test_what_switches_it(
    several: bool, given: dict[str, Any], environment: dict[str, str], stored: bool | None, begins: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if stored is not None:
        (tmp_path / "dflash2_extras.json").write_text(json.dumps({"version": 1, "models": {"mini": {"tune": stored}}}))
    asked: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        loading, "take_up", lambda _, folder, *, background: asked.append((folder, background)) or tuning.Tuned()
    )
    monkeypatch.setattr(d2, "load", lambda *_, **__: ENGINE)
    setup = prepare("mini", command_line=given, environment=environment, base=Base(tmp_path, "default"))
    setup = replace(setup, plan=replace(setup.plan, prefix=None))
    loading.load_engine(setup.plan, loading.Room(), several=several)
    assert asked == [(tmp_path / "tune", begins)]


def test_the_setting_is_no_part_of_what_is_loaded(tmp_path: Path) -> None:
    keys = [
        prepare("mini", command_line={"tune": on}, environment={}, base=Base(tmp_path, "default")).load_key
        for on in (True, False)
    ]
    assert keys[0] == keys[1]


def test_it_ends_before_its_engine_leaves_memory() -> None:
    async def work() -> list[str]:
        calls: list[str] = []
        served: Any = SimpleNamespace(stop=lambda: calls.append("stop"))
        engines = Engines(pinned=lambda key: False)
        held = Held(SimpleNamespace(key="k", name="n"))  # type: ignore[arg-type]
        held.served = served
        engines.drop(held)
        engines.drop(held)
        assert held.served is None
        return calls

    assert asyncio.run(work()) == ["stop"]


# What is shown.


def test_doctor_lists_what_was_tuned_and_what_cannot_be_used(run: Run, home: Path) -> None:
    folder = TuneFolder(home / "settings" / "tune")
    quick = run("doctor", "--quick").out
    assert "tuned      nothing yet: kernels run by default" in quick
    from dflash2_mlx import analysis

    folder.save(record("here", identity=identity_of(analysis.this_chip(), "here"), target="mini", drafter="mini"))
    folder.save(record("elsewhere", at="2026-11-29T12:00:00+00:00"))
    (folder.folder / "damaged.json").write_text("{", encoding="utf-8")
    lines = run("doctor", "--quick").out.splitlines()
    tuned = [line for line in lines if line.startswith("tuned")]
    assert tuned == [
        "tuned      mini + mini · 2026-11-30T12:00:00+00:00 · 1 of 2 races won by our kernels",
        "tuned      target + drafter · 2026-11-29T12:00:00+00:00 · 1 of 2 races won by our kernels"
        " · of another chip or version: not used",
    ]
    assert sum("damaged.json: got a tune file that cannot be used" in line for line in lines) == 1
    found = json.loads(run("doctor", "--quick", "--json").out)["tuning"]
    assert [one["current"] for one in found["records"]] == [True, False] and len(found["notes"]) == 1


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tuning without measurements; whether it came before the examination."""
    order: list[str] = []

    def steps(engine: Any, folder: TuneFolder) -> Generator[tune.Progress, None, TuneRecord]:
        from dflash2_mlx import analysis

        order.append("tuned")
        yield tune.Progress(0, 2, "norm_rope")
        yield tune.Progress(1, 2, "passes by rows")
        found = record(identity=identity_of(analysis.this_chip(), engine.fingerprint))
        folder.save(found)
        return found

    monkeypatch.setattr(tune, "tune", steps)
    monkeypatch.setattr(tune, "plan", lambda engine: tune.Plan(196, 470, 8, 134_000_000, 164.5, 12.3, 4096, 2 * 10**9))
    monkeypatch.setattr("dflash2_app.commands.doctor.examine", lambda *_: order.append("examined"))
    return order


def test_doctor_tunes_and_shows_the_races(run: Run, tuned: list[str]) -> None:
    ran = run("doctor", "--tune")
    assert ran.code == 0 and tuned == ["tuned", "examined"]
    assert "tuning: 1 of 2 · passes by rows" in ran.err
    assert (
        "tuning: 196 races of 470 contenders, at most about 3 min and what Metal needs to compile; "
        "passes of 1 to 8 rows, about 12 s; up to 0.1 GB beside the model; Ctrl-C ends it and keeps nothing\n"
    ) in ran.err
    races = [" ".join(line.split()) for line in ran.out.splitlines() if line.startswith("race ")]
    assert races == [
        "race norm_rope 8x48x128 bfloat16 heads 40 metal 2.00x metal 10.0 us, mlx 20.0 us",
        "race select_walk 7x31x16x256 greedy mlx 1.00x metal is out: other tokens than the twin's",
    ]
    found = json.loads(run("doctor", "--tune", "--json").out)
    assert found["tuned"]["races"][0]["winner"] == "metal" and found["tuned"]["costs"]["verify_s"] == {"1": 0.07}
    assert found["tuning"]["records"][0]["current"] is True


def test_tune_needs_a_pair_and_a_folder(run: Run, home: Path) -> None:
    ran = run("doctor", "--quick", "--tune")
    assert ran.code == 2 and ran.error.startswith("--tune: got it beside --quick")
    (home / "settings").mkdir(exist_ok=True)
    (home / "settings" / "tune").write_text("no folder", encoding="utf-8")
    ran = run("doctor", "--tune")
    assert ran.code == 1 and "expected a folder that can be written" in ran.error
    assert "tuning: no races; passes of 1 to 8 rows; Ctrl-C ends it and keeps nothing" in ran.err
    assert "tuning: 0 of" not in ran.err


def test_without_metal_doctor_says_that_nothing_was_raced() -> None:
    nothing = "no kernel of ours can run here, so there is nothing to race: MLX has no Metal"
    assert tuning.race_lines(record(races=(), notes=(nothing,)).to_dict()) == [
        "races      none", f"note       {nothing}",
    ]  # fmt: skip
    some = tuning.race_lines(record(notes=("2 of 4 races: left out after 600 seconds",)).to_dict())
    assert len(some) == 3 and some[-1] == "note       2 of 4 races: left out after 600 seconds"

"""Records of tuning: what they hold for, how they are written, and what is never trusted."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dflash2_mlx.decode.costs import PassCosts
from dflash2_mlx.device.chips import read_chip
from dflash2_mlx.errors import ConfigError
from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.tuning.measure import RaceResult
from dflash2_mlx.tuning.record import TuneFolder, TuneRecord, identity_of

CHIP = read_chip("applegpu_g16s", "Apple M4 Pro", "26.4", "0.32.4", gpu_cores=20)
IDENTITY = identity_of(CHIP, "pair-1")
RACE = RaceResult("norm_rope", "8x48x128 bfloat16", "mlx", "metal", {"mlx": 2e-5, "metal": 1e-5}, {"other": "refused"})
RECORD = TuneRecord(
    IDENTITY, "target", "drafter", "2026-11-30T12:00:00+00:00", 12.5,
    PassCosts({1: 0.07, 8: 0.1}, {8: 0.01}, {1: 1e-7, 8: 3e-7}), True, (RACE,),
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path):
    folder = TuneFolder(tmp_path / "not" / "there yet")
    assert folder.find(IDENTITY) == (None, None) and folder.records() == ([], [])
    file = folder.save(RECORD)
    assert folder.find(IDENTITY) == (RECORD, None) and folder.records() == ([RECORD], [])
    assert RECORD.winners == {("norm_rope", "8x48x128 bfloat16"): "metal"}
    assert [path.name for path in file.parent.iterdir()] == [file.name], "nothing is left beside it"
    folder.save(replace(RECORD, seconds=1.0))
    assert len(folder.records()[0]) == 1
    bare = replace(RECORD, costs=None, drafter=None, raced=False, races=(), identity=replace(IDENTITY, pair="pair-2"))
    folder.save(bare)
    assert folder.find(bare.identity) == (bare, None)


@pytest.mark.parametrize(
    "other",
    [
        identity_of(replace(CHIP, gpu_cores=16), "pair-1"),
        identity_of(replace(CHIP, name="Apple M4 Max"), "pair-1"),
        identity_of(replace(CHIP, mlx="0.33.0"), "pair-1"),
        identity_of(CHIP, "pair-2"),
        replace(IDENTITY, kernels="another text of some kernel"),
    ],
)
def test_it_holds_for_nothing_else(tmp_path: Path, other):
    folder = TuneFolder(tmp_path)
    folder.save(RECORD)
    assert folder.find(other) == (None, None)
    # Nor when the file was put in another one's place.
    folder.file_of(IDENTITY).rename(folder.file_of(other))
    record, note = folder.find(other)
    assert record is None and note is not None and "holds for another machine or pair: passed over" in note


def test_every_kernels_text_counts(tmp_path: Path):
    from dflash2_mlx.kernels.source import CHECKOUT, all_sources, kernel_source

    whole = all_sources((CHECKOUT,))
    assert all(kernel_source(path.stem, (CHECKOUT,)) in whole for path in CHECKOUT.glob("*.metal"))
    with pytest.raises(FileNotFoundError, match=r"no \.metal file in"):
        all_sources((tmp_path,))


def test_a_macos_update_alone_asks_for_no_new_races():
    assert identity_of(replace(CHIP, macos="27.0"), "pair-1") == IDENTITY


def broken(change) -> str:
    raw = json.loads(json.dumps(RECORD.to_dict()))
    change(raw)
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "tune version: got [], expected 1"),
        (broken(lambda raw: raw.update(version=2)), "tune version: got 2, expected 1"),
        (broken(lambda raw: raw.pop("races")), "tune races: got None"),
        (broken(lambda raw: raw["races"].append(3)), "tune races: got 3, expected objects"),
        (broken(lambda raw: raw["races"][0].update(winner=None)), "tune winner: got None"),
        (broken(lambda raw: raw["races"][0].update(seconds={"mlx": "fast"})), "expected seconds"),
        (broken(lambda raw: raw["costs"]["verify_s"].update({"1": -1})), "costs verify_s: got '1': -1"),
        (broken(lambda raw: raw["costs"]["verify_s"].update({"x": 1})), "costs verify_s: got 'x': 1"),
        (broken(lambda raw: raw["costs"]["verify_s"].pop("1")), "costs verify_s: got no time of one row"),
        (broken(lambda raw: raw["costs"].pop("draft_s")), "costs draft_s: got None"),
        (broken(lambda raw: raw["costs"]["draft_s"].update({"8": float("nan")})), "costs draft_s: got '8': nan"),
        (broken(lambda raw: raw["identity"].pop("chip")), "tune chip: got None"),
        (broken(lambda raw: raw.update(raced="yes")), "tune raced: got 'yes'"),
        # What a hostile hand may write.
        ("[" * 100_000, "recursion"),
        ('{"version": 1, "seconds": ' + "9" * 5000 + "}", "cannot be used"),
        (broken(lambda raw: raw.update(seconds=10**400)), "tune seconds: got 1000"),
        (broken(lambda raw: raw.update(seconds=True)), "tune seconds: got True"),
        (broken(lambda raw: raw["costs"]["verify_s"].update({"1": 10**400})), "costs verify_s: got '1': 1000"),
        (broken(lambda raw: raw["costs"]["verify_s"].update({"9" * 5000: 1})), "costs verify_s: got '9999"),
        (
            broken(lambda raw: raw["races"][0].update(winner="nobody")),
            "tune winner: got 'nobody', expected one that ran",
        ),
        (
            broken(lambda raw: raw["races"][0]["seconds"].update(mlx=0)),
            "tune winner: got 'metal', expected one that ran",
        ),
        (broken(lambda raw: raw["races"][0]["seconds"].update(mlx=-1)), "tune races: got -1, expected seconds"),
        (broken(lambda raw: raw.update(notes="a note")), "tune notes: got 'a note'"),
        (broken(lambda raw: raw.update(notes=[3])), "tune notes: got 3"),
    ],
)
def test_what_cannot_be_read_is_passed_over_with_a_note(tmp_path: Path, text: str, reason: str):
    folder = TuneFolder(tmp_path)
    folder.save(replace(RECORD, identity=replace(IDENTITY, pair="good")))
    folder.file_of(IDENTITY).write_text(text, encoding="utf-8")
    record, note = folder.find(IDENTITY)
    assert record is None and note is not None
    assert reason in note and note.endswith("passed over") and "\n" not in note
    found, notes = folder.records()
    assert [one.identity.pair for one in found] == ["good"] and notes == [note]


def test_what_is_no_file_of_ours_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = TuneFolder(tmp_path)
    folder.save(RECORD)
    os.mkfifo(tmp_path / "pipe.json")  # to read it would be to wait for ever
    (tmp_path / "folder.json").mkdir()
    found, notes = folder.records()
    assert found == [RECORD] and sum("not a file" in note for note in notes) == len(notes) == 2
    monkeypatch.setattr("dflash2_mlx.tuning.record.MOST_BYTES", 100)
    assert "bytes, expected at most 100" in (folder.find(IDENTITY)[1] or "")


def test_a_folder_that_cannot_hold_a_record_is_known_before(tmp_path: Path):
    TuneFolder(tmp_path / "new" / "folder").check()
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OSError):
        TuneFolder(tmp_path / "file").check()


def test_a_record_holds_for_one_choice_of_kernels(monkeypatch: pytest.MonkeyPatch):
    default = identity_of(CHIP, "pair-1")
    for choice in ("mlx", "auto,accept=mlx", "qmm_rows_tensor=auto"):
        monkeypatch.setenv("DFLASH2_KERNELS", choice)
        dispatcher.cache_clear()
        assert identity_of(CHIP, "pair-1") != default
    dispatcher.cache_clear()


def test_records_of_the_first_format_have_no_notes(tmp_path: Path):
    raw = RECORD.to_dict()
    del raw["notes"]
    assert TuneRecord.from_dict(raw) == RECORD
    noted = replace(RECORD, notes=("3 of 9 races: left out",))
    assert TuneRecord.from_dict(json.loads(json.dumps(noted.to_dict()))) == noted


def test_names_of_one_process_are_never_kept():
    assert IDENTITY.lasting and not identity_of(CHIP, "unnamed-12ab").lasting


def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = TuneFolder(tmp_path)
    file = folder.save(RECORD)
    before = file.read_text(encoding="utf-8")
    monkeypatch.setattr("json.dump", lambda *_, **__: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        folder.save(replace(RECORD, seconds=1.0))
    assert file.read_text(encoding="utf-8") == before and len(list(tmp_path.iterdir())) == 1


def test_costs_refuse_what_is_no_table():
    with pytest.raises(ConfigError, match="costs verify_s: got 5, expected seconds by rows"):
        PassCosts.from_dict({"verify_s": 5})

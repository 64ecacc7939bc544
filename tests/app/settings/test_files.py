"""Settings files lose nothing: other keys, other programs' edits, other processes' updates, a file cut short."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.settings import files
from dflash2_app.settings.files import JsonFile, SettingsError

from ..conftest import environment
from .samples import model_settings, read, write

WRITER = Path(__file__).with_name("writer.py")
PROCESS_WRITES = 200


def setter(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda records: records.update(values)


@pytest.fixture
def file(base: Path) -> JsonFile:
    return JsonFile(base / "model_settings.json", "models")


def leftovers(base: Path) -> list[str]:
    return [path.name for path in base.iterdir() if ".new-" in path.name]


def test_a_missing_file_reads_as_empty_and_is_made(file: JsonFile, base: Path) -> None:
    assert file.read().data == {"version": 1, "models": {}} and not file.read().exists
    file.update(setter(a={"x": 1}))
    assert read(base) == {"version": 1, "models": {"a": {"x": 1}}}
    assert (base / "model_settings.json").read_text().startswith('{\n  "version": 1,\n  "models": {')
    assert leftovers(base) == []


def test_everything_else_stays_byte_for_byte(file: JsonFile, base: Path) -> None:
    before = model_settings()
    write(base, before)
    file.update(setter(new={}))
    assert list(read(base)) == list(before), "order of keys"
    assert read(base) == {**before, "models": {**before["models"], "new": {}}}
    file.update(lambda records: records.pop("new"))
    assert (base / "model_settings.json").read_text() == json.dumps(before, indent=2, ensure_ascii=False) + "\n"


def test_a_change_that_changes_nothing_writes_nothing(file: JsonFile, base: Path) -> None:
    path = write(base, model_settings())
    inode = path.stat().st_ino
    file.update(lambda records: None)
    assert path.stat().st_ino == inode


def test_a_change_that_raises_writes_nothing(file: JsonFile, base: Path) -> None:
    path = write(base, model_settings())
    before = path.read_bytes()

    def change(records: dict[str, Any]) -> None:
        records.clear()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        file.update(change)
    assert path.read_bytes() == before and leftovers(base) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "no JSON (line 1: "),
        ("", "no JSON"),
        ("[1]", "a JSON list"),
        ('{"models": []}', "a list under 'models'"),
        ('{"models": {"a": {"x": 1, "x": 2}}}', "the key 'x' twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_is_never_written(file: JsonFile, base: Path, text: str, word: str) -> None:
    path = write(base, text)
    for action in (file.read, lambda: file.update(setter(a={}))):
        with pytest.raises(SettingsError) as caught:
            action()
        assert str(path) in str(caught.value) and word in str(caught.value)
        assert "settings recover" in (caught.value.hint or "")
    assert path.read_text() == text and leftovers(base) == []


def test_bytes_that_are_no_text(file: JsonFile, base: Path) -> None:
    write(base, "").write_bytes(b'{"models": {"\xff": {}}}')
    with pytest.raises(SettingsError, match="not UTF-8 at 13"):
        file.read()


def test_a_damaged_file_is_set_aside_whole(file: JsonFile, base: Path) -> None:
    write(base, "{ half")
    aside = file.set_aside()
    assert aside.read_text() == "{ half" and ".damaged-" in aside.name
    file.update(setter(a={}))
    with pytest.raises(SettingsError, match="can be read"):
        file.set_aside()


@pytest.mark.parametrize("version", [2, "1", None])
def test_another_version_is_told_and_kept(file: JsonFile, base: Path, version: Any) -> None:
    write(base, {"version": version, "models": {"a": {"x": 1}}})
    assert f"got version {version!r}, expected 1" in file.read().notes[0]
    file.update(setter(b={}))
    assert read(base) == {"version": version, "models": {"a": {"x": 1}, "b": {}}}


def test_half_a_surrogate_pair_survives(file: JsonFile, base: Path) -> None:
    write(base, '{"version": 1, "models": {"a": {"x": "\\ud800", "y": "ü"}}}')
    file.update(setter(b={}))
    assert read(base)["models"]["a"] == {"x": "\ud800", "y": "ü"}


def test_a_link_stays_a_link_and_rights_stay(base: Path, tmp_path: Path) -> None:
    real = write(tmp_path / "elsewhere", model_settings())
    real.chmod(0o640)
    base.mkdir()
    (base / "model_settings.json").symlink_to(real)
    JsonFile(base / "model_settings.json", "models").update(setter(b={}))
    assert (base / "model_settings.json").is_symlink() and "b" in read(real.parent)["models"]
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("swaps", [True, False])
def test_an_edit_before_the_exchange_is_merged(
    file: JsonFile, base: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    """Another program, which knows no lock, saves after our read."""
    write(base, {"version": 1, "models": {"theirs": {"x": 1}}})
    if not swaps:
        monkeypatch.setattr(files, "_system_swap", lambda: None)
    edits = iter([{"x": 2}, {"x": 3}])

    real = files.publish

    def publish(new: Path, path: Path, expected: bytes | None) -> bool:
        edit = next(edits, None)
        if edit is not None:
            write(base, {"version": 1, "models": {"theirs": edit}})
        return real(new, path, expected)

    monkeypatch.setattr(files, "publish", publish)
    file.update(setter(ours={"y": 1}))
    assert read(base)["models"] == {"theirs": {"x": 3}, "ours": {"y": 1}}
    assert leftovers(base) == []


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="needs a system call that swaps two names")
def test_an_edit_between_the_look_and_the_exchange_is_merged(
    file: JsonFile, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last moment there is: a plain rename would throw that edit away."""
    write(base, {"version": 1, "models": {"theirs": {"x": 1}}})
    edits, swap = iter([{"x": 2}]), files.swap
    if not swap(*(write(base, {}, name) for name in ("one", "two"))):
        pytest.skip("this file system cannot swap two names")

    def late(one: Path, other: Path) -> bool:
        edit = next(edits, None)
        if edit is not None:
            write(base, {"version": 1, "models": {"theirs": edit}})
        return swap(one, other)

    monkeypatch.setattr(files, "swap", late)
    file.update(setter(ours={}))
    assert read(base)["models"] == {"theirs": {"x": 2}, "ours": {}}


def test_a_file_made_between_read_and_write_is_merged(
    file: JsonFile, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base.mkdir()
    made = iter([True])

    real = files.publish

    def publish(new: Path, path: Path, expected: bytes | None) -> bool:
        if next(made, False):
            write(base, {"version": 1, "models": {"theirs": {}}})
        return real(new, path, expected)

    monkeypatch.setattr(files, "publish", publish)
    file.update(setter(ours={}))
    assert set(read(base)["models"]) == {"theirs", "ours"}


def test_endless_edits_by_others_end_in_an_error(file: JsonFile, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base, model_settings())
    monkeypatch.setattr(files, "publish", lambda *_: False)
    with pytest.raises(SettingsError, match="an edit by another program before each of 50 tries"):
        file.update(setter(ours={}))


def test_the_steps_of_a_write(file: JsonFile, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data reach the disk before the name does, and the name before the update returns."""
    write(base, model_settings())
    steps: list[str] = []
    fsync, publish = os.fsync, files.publish

    def note_fsync(handle: int) -> None:
        name = str(Path(f"/proc/self/fd/{handle}").readlink()) if sys.platform == "linux" else ""
        steps.append("folder" if os.path.isdir(handle) else f"file {'.new-' in name}")  # noqa: PTH112 - a handle
        fsync(handle)

    def note_publish(*arguments: Any) -> bool:
        steps.append("publish")
        return publish(*arguments)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(files, "publish", note_publish)
    file.update(setter(a={}))
    assert steps[1:] == ["publish", "folder"] and steps[0].startswith("file")


def test_a_full_disk_leaves_the_old_file(file: JsonFile, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(base, model_settings())
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match="no space left on device"):
        file.update(setter(a={}))
    assert path.read_bytes() == before and leftovers(base) == []


def test_a_lock_that_is_not_given_back(file: JsonFile, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    base.mkdir()
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.05)
    with FileLock(base / ".model_settings.json.lock"), pytest.raises(SettingsError, match="has held its lock"):
        file.update(setter(a={}))


def _writer(path: Path, name: str, times: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(WRITER), str(path), name, str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())


def test_two_processes_lose_no_update(base: Path) -> None:
    base.mkdir()
    path = base / "model_settings.json"
    writers = [_writer(path, name, PROCESS_WRITES) for name in ("one", "two")]
    for writer in writers:
        _, err = writer.communicate(timeout=300)
        assert writer.returncode == 0, err.decode()
    found = read(base)["models"]
    assert {name: found[name]["count"] for name in ("one", "two", "shared")} == {
        "one": PROCESS_WRITES, "two": PROCESS_WRITES, "shared": 2 * PROCESS_WRITES,
    }  # fmt: skip


def test_a_kill_leaves_a_whole_file(base: Path) -> None:
    """kill -9 at a random moment, again and again; nothing that was reported written may be gone."""
    base.mkdir()
    path, least = base / "model_settings.json", 0
    dice = random.Random(7)
    for _ in range(8):
        with _writer(path, "one", 0) as writer:
            assert writer.stdout is not None
            first = int(writer.stdout.readline() or 0)
            time.sleep(dice.uniform(0, 0.08))
            writer.kill()
            told = [int(line) for line in writer.stdout.read().splitlines()]
        count = read(base)["models"]["one"]["count"]
        assert count >= least + max([first, *told])
        least = count
    JsonFile(path, "models").update(setter(after={}))
    assert leftovers(base) == [], "what the killed left behind is cleared away"
    assert read(base)["models"]["one"]["count"] == least

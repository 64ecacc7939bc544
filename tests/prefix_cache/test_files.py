"""Stored prefixes as files: whole or not there, skipped with a note when damaged, bounded, oldest out first."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dflash2_mlx.errors import CheckpointError
from dflash2_mlx.prefix_cache.disk import DiskStore
from dflash2_mlx.prefix_cache.files import read_file, read_file_header, write_file
from dflash2_mlx.prefix_cache.snapshot import FrozenSnapshot, HostTensor, Layout

ROOT = Path(__file__).resolve().parents[2]
MB = 1 << 20


def frozen(first: int = 0, *, length: int = 6, floats: int = 8) -> FrozenSnapshot:
    """Made-up rows of a target with one full layer, no drafter."""
    tokens = np.arange(first, first + length, dtype=np.int32)
    rows = np.arange(floats, dtype=np.float32) + first
    tensor = HostTensor("F32", (1, 1, floats, 1), rows.data.cast("B"))
    return FrozenSnapshot(
        tokens,
        Layout(length, (1, 0, None, 0), (0, 0, None, 0), 0, None, None),
        {"full.keys.0": tensor, "full.values.0": tensor},
    )


def find(store: DiskStore, first: int = 0) -> tuple[int, list[float]] | None:
    found = store.find("models", [*range(first, first + 6), 99], None, 0)
    if found is None:
        return None
    read = store.read(found[0])
    return None if read is None else (found[1], np.frombuffer(read.tensors["full.keys.0"].data, np.float32).tolist())


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, notes: list[str]) -> DiskStore:
    return DiskStore(tmp_path, MB, notes.append)


def test_what_is_written_is_read(tmp_path: Path, store: DiskStore, notes: list[str]) -> None:
    store.write("models", frozen())
    store.flush()
    assert find(store) == (6, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert find(DiskStore(tmp_path, MB, notes.append)) is not None
    assert store.find("other models", [0, 1, 2, 3, 4, 5, 99], None, 0) is None
    assert store.find("models", [0, 1, 2, 3, 4, 5, 99], None, 6) is None  # no more than is known already
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"] and notes == []
    store.remove("models", frozen().tokens, False)
    store.flush()
    assert list(tmp_path.iterdir()) == []


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(bytes(data))


def edit(path: Path, **changes: object) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


LAYOUT = {"position": 6, "full": [1, 0, None, 0], "sliding": [0, 0, None, 0], "recurrent": 0, "context": None}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_short, "cut short"),
        (flip, "another checksum"),
        (lambda path: path.write_bytes(b""), "damaged file"),
        (lambda path: path.write_bytes(b"not safetensors at all"), "damaged file"),
        (lambda path: edit(path, format="0"), "got format '0', expected '1'"),
        (lambda path: edit(path, layout="{"), "damaged header"),
        (lambda path: edit(path, layout=json.dumps(LAYOUT)), "damaged header"),
        (lambda path: edit(path, layout=json.dumps({**LAYOUT, "context_floor": "x"})), "made of counts"),
        (
            lambda path: edit(path, layout=json.dumps({**LAYOUT, "context_floor": None, "position": 5})),
            "6 tokens for 5",
        ),
        (lambda path: edit(path, crc32="x"), "damaged header"),
    ],
    ids=["short", "flipped", "empty", "text", "version", "no json", "key gone", "no count", "position", "checksum"],
)
def test_a_damaged_file_is_skipped_with_a_note(tmp_path: Path, store: DiskStore, notes: list[str], damage, reason):
    store.write("models", frozen())
    store.flush()
    damage(only_file(tmp_path))
    assert find(store) is None
    assert find(store) is None
    assert len(notes) == 1 and reason in notes[0] and only_file(tmp_path).name in notes[0]
    store.write("models", frozen())
    store.flush()
    assert find(store) is not None, "a damaged file was never replaced"
    store.write("models", frozen(50))
    store.flush()
    assert find(store, 50) is not None  # the others are served


def test_the_least_recently_used_files_go_first(tmp_path: Path, notes: list[str]) -> None:
    store = DiskStore(tmp_path, 12_000, notes.append)
    for number in range(3):
        store.write("models", frozen(100 * number, floats=400))  # 3,200 bytes and a header
        store.flush()
        time.sleep(0.01)
    assert find(store, 0) is not None  # used now
    store.write("models", frozen(300, floats=400))
    store.flush()
    assert [find(store, 100 * number) is not None for number in range(4)] == [True, False, True, True]
    assert store.nbytes <= 12_000 and notes == []
    store.write("models", frozen(900, floats=4000))
    store.flush()
    assert "was not written: disk_max_bytes is 12000" in notes[0]
    assert find(store, 0) is not None, "a prefix that can never fit pushed others out"


def test_a_writer_that_is_killed_leaves_no_broken_file(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.prefix_cache.test_files import frozen;"
        "from dflash2_mlx.prefix_cache.files import write_file\n"
        "print('ready', flush=True)\n"
        "for n in range(10**6): write_file(Path(sys.argv[1]) / f'prefix-{n % 3}.safetensors', 'models',"
        " frozen(n, floats=100_000))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    while not list(tmp_path.glob("prefix-2*")):
        time.sleep(0.005)
    child.kill()
    child.wait()
    child.stdout.close()
    for path in tmp_path.glob("prefix-*.safetensors"):
        read_file(read_file_header(path))


def test_a_failed_write_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch, notes: list[str]) -> None:
    store = DiskStore(tmp_path, MB, notes.append)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    store.write("models", frozen())
    store.flush()
    assert list(tmp_path.iterdir()) == []
    assert notes == [f"prefix cache: nothing was written to {tmp_path} (No space left on device)"]


def test_a_file_that_vanishes_is_no_error(tmp_path: Path, store: DiskStore, notes: list[str]) -> None:
    store.write("models", frozen())
    store.flush()
    found = store.find("models", [0, 1, 2, 3, 4, 5, 99], None, 0)
    assert found is not None
    only_file(tmp_path).unlink()
    assert store.read(found[0]) is None and "was skipped" in notes[0]
    assert find(store) is None


def test_a_header_is_not_trusted_about_its_length(tmp_path: Path) -> None:
    path = tmp_path / "prefix-x.safetensors"
    write_file(path, "models", frozen())
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])
    with pytest.raises(CheckpointError, match="header longer than the file"):
        read_file_header(path)

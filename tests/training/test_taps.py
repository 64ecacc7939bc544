"""Taps that come from a folder are those that are computed, and a folder of other taps is refused."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.training import Document, TapsCache, Trainer, document_taps, files, new_drafter
from tests.runs import lively_target
from tests.tiny import HIDDEN, drafter_config, make_tiny_target
from tests.training.test_trainer import SETTINGS, document

LAYERS = (0, 2)


def documents() -> list[Document]:
    return [Document(np.arange(length, dtype=np.int32) + 3, np.ones(length, dtype=bool)) for length in (9, 5, 14)]


def cache(folder: Path, dtype: str = "float32", layers: tuple[int, ...] = LAYERS) -> TapsCache:
    return TapsCache(folder, lively_target("qwen3"), layers, dtype)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_documents_of_different_lengths_share_a_pass(family):
    target = lively_target(family)
    together = document_taps(target, documents(), LAYERS)
    assert together.shape == (3, 14, 2 * HIDDEN)
    for row, one in zip(together, documents(), strict=True):
        alone = document_taps(target, [one], LAYERS)[0]
        np.testing.assert_allclose(row[: len(one.tokens)], alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("dtype", "kind"), [("float32", mx.float32), ("bfloat16", mx.bfloat16)])
def test_what_is_kept_is_what_was_computed(tmp_path, dtype, kind):
    first, again = cache(tmp_path, dtype)(documents()), cache(tmp_path, dtype)(documents())
    assert first.dtype == again.dtype == kind and mx.array_equal(first, again)
    for row, one in zip(first, documents(), strict=True):
        want = document_taps(lively_target("qwen3"), [one], LAYERS)[0].astype(kind)
        assert mx.array_equal(row[: len(one.tokens)], want) and not mx.any(row[len(one.tokens) :]).item()


def test_nothing_is_computed_twice(tmp_path, monkeypatch):
    cache(tmp_path)(documents())
    kept = cache(tmp_path)
    monkeypatch.setattr("dflash2_mlx.training.taps.document_taps", None)
    assert kept(documents()[::-1]).shape == (3, 14, 2 * HIDDEN)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_losses_are_those_without_a_cache(tmp_path, dtype, tolerance):
    def losses(taps: TapsCache | None) -> list[float]:
        drafter = new_drafter(drafter_config(), seed=3)
        run = Trainer(lively_target("qwen3"), drafter, [document(), document(40, first=10)], SETTINGS, taps)
        return [run.step().loss for _ in range(3)]

    kept = losses(cache(tmp_path, dtype))
    assert kept == pytest.approx(losses(None), rel=tolerance)
    assert losses(cache(tmp_path, dtype)) == kept


def test_the_size_is_told_and_room_is_asked_for(tmp_path, monkeypatch):
    kept = cache(tmp_path / "new", "bfloat16")
    assert kept.missing_bytes([*documents(), documents()[0]]) == (9 + 5 + 14) * 2 * HIDDEN * 2
    assert not (tmp_path / "new").exists()
    kept(documents()[:1])
    assert kept.missing_bytes(documents()) == (5 + 14) * 2 * HIDDEN * 2
    monkeypatch.setattr("dflash2_mlx.training.taps.room", lambda folder: 100)
    with pytest.raises(d2.ConfigError, match=r"cache_taps: got 0.00 GB of free disk in .*new, expected"):
        kept.check_room(documents())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": (0, 1)}, r"layers \[0, 1\], expected \[0, 2\]"),
        ({"dtype": "bfloat16"}, "dtype bfloat16, expected float32"),
    ],
)
def test_other_taps_are_refused(tmp_path, changes, words):
    cache(tmp_path)(documents())
    with pytest.raises(d2.ConfigError, match=f"cache_taps: got {words}"):
        cache(tmp_path, **changes)


def test_taps_of_another_target_are_refused(tmp_path):
    cache(tmp_path)(documents())
    with pytest.raises(d2.ConfigError, match="cache_taps: got another target"):
        TapsCache(tmp_path, make_tiny_target("qwen3", seed=5), LAYERS, "float32")


def test_damaged_folders_are_one_line(tmp_path):
    kept = cache(tmp_path)
    kept(documents()[:1])
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(b"cut")
    with pytest.raises(d2.CheckpointError, match="got unreadable taps"):
        kept(documents()[:1])
    (tmp_path / "taps.json").write_text(json.dumps([1]))
    with pytest.raises(d2.ConfigError, match=r"taps\.json: got an unreadable file"):
        cache(tmp_path)


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    tensors = {"a": mx.ones((1000,))}
    files.save_tensors(tmp_path / "x.safetensors", tensors)
    before = (tmp_path / "x.safetensors").read_bytes()
    monkeypatch.setattr(files, "room", lambda folder: 1000)
    with pytest.raises(d2.CheckpointError, match=r"x.safetensors: got 0.0 MB of free disk, expected 1.1"):
        files.save_tensors(tmp_path / "x.safetensors", tensors)
    monkeypatch.undo()

    def failing(name, *_):
        Path(name).write_bytes(b"half")
        raise RuntimeError("[write] no space")

    monkeypatch.setattr(files.mx, "save_safetensors", failing)
    with pytest.raises(d2.CheckpointError, match="got a write that failed"):
        files.save_tensors(tmp_path / "x.safetensors", tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
    assert (tmp_path / "x.safetensors").read_bytes() == before

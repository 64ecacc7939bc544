"""Measurements that are kept: how many, in which order, and under which names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash2_app.bench.history import KeptRun, RunStore
from dflash2_app.errors import AppError

FIELDS = "drafter set prompts preset max_tokens repeats complete requests requests_planned".split()
RECORD: dict[str, Any] = {**dict.fromkeys(FIELDS), "settings": [], "recommendation": None}


def run(name: str) -> KeptRun:
    return KeptRun(name, "mini", "2026-01-02T03:04:05Z", 1.5, RECORD)


def test_the_newest_stay(tmp_path: Path) -> None:
    store = RunStore(tmp_path, most=3)
    names = ["20260102-030405", "20260102-030405-2", "20260102-030405-10", "20260101-000000", "20260103-000000"]
    gone = [name for saved in names for name in store.save(run(saved))]
    assert gone == ["20260102-030405", "20260101-000000"], (
        "what is just saved stays, even when it is the oldest by name"
    )
    found, problems = store.all()
    assert [item.id for item in found] == ["20260103-000000", "20260102-030405-10", "20260102-030405-2"]
    assert problems == []
    assert not list(store.folder.glob("*.tmp")) and store.folder.stat().st_mode & 0o077 == 0


def test_what_is_kept_is_read_as_it_was(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.all() == ([], []) and not store.folder.exists()
    name = store.fresh_id()
    store.save(run(name))
    assert store.load(name) == run(name) and store.fresh_id() != name


@pytest.mark.parametrize(
    "name", ["", "../x", "20260102-030405/../x", "20260102", "20260102-030405.json", "٢٠٢٦٠١٠٢-030405"]
)
def test_other_names_are_no_files(tmp_path: Path, name: str) -> None:
    store = RunStore(tmp_path)
    for use in (store.load, store.delete):
        with pytest.raises(AppError, match=r"^run: got .*expected a kept one"):
            use(name)

"""A name leads to the record oMLX would take, and to something that can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash2_app.errors import AppError, UsageError
from dflash2_app.settings.names import check_new, find_model, new_id, source_of
from dflash2_app.settings.paths import Base, find_base
from dflash2_app.settings.store import Settings

MODELS: dict[str, Any] = {
    "Qwen3.8-27B-4bit": {"model_alias": "Big"},
    "mlx-community--Tiny-4bit": {},
    "Org--Twice": {},
    "Other--Twice": {},
    "odd": "no record",
}
PROFILES = {
    "Qwen3.8-27B-4bit": {
        "fast": {"expose_as_model": True, "api_name": "quick", "settings": {}},
        "hidden": {"settings": {}},
    }
}


@pytest.fixture
def settings(base: Path) -> Settings:
    return Settings(Base(base, "default"), MODELS, {}, PROFILES)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("Qwen3.8-27B-4bit", "Qwen3.8-27B-4bit"),
        ("qwen3.8-27b-4BIT", "Qwen3.8-27B-4bit"),
        ("big", "Qwen3.8-27B-4bit"),
        ("owner/Qwen3.8-27B-4bit", "Qwen3.8-27B-4bit"),
        ("owner/Big", "Qwen3.8-27B-4bit"),
        ("mlx-community/Tiny-4bit", "mlx-community--Tiny-4bit"),
        ("mlx-community--tiny-4bit", "mlx-community--Tiny-4bit"),
        ("tiny-4bit", "mlx-community--Tiny-4bit"),
    ],
)
def test_names_that_are_known(settings: Settings, name: str, model_id: str) -> None:
    found = find_model(settings, name)
    assert (found.model_id, found.known, found.profile) == (model_id, True, None)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("Twice", "Twice"),  # of two owners: neither
        ("new/Model", "new--Model"),
        ("mini", "mini"),
        ("Big:hidden", "Big:hidden"),
        ("Big:fast", "Big:fast"),  # its api_name is another
    ],
)
def test_names_that_are_new(settings: Settings, name: str, model_id: str) -> None:
    found = find_model(settings, name)
    assert (found.model_id, found.known) == (model_id, False)


@pytest.mark.parametrize("name", ["Qwen3.8-27B-4bit:quick", "big:quick"])
def test_an_exposed_profile(settings: Settings, name: str) -> None:
    found = find_model(settings, name)
    assert (found.model_id, found.profile) == ("Qwen3.8-27B-4bit", "fast")


def test_a_folder_goes_by_its_name(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "Some-Model"
    folder.mkdir()
    assert new_id(str(folder)) == new_id(f"{folder}/") == "Some-Model"
    assert source_of(settings, find_model(settings, str(folder))) == str(folder)


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_sources(base: Path, settings: Settings) -> None:
    def source(name: str) -> str:
        return source_of(settings, find_model(settings, name))

    assert source("mini") == "mini"
    assert source("tiny-4bit") == "mlx-community/Tiny-4bit"
    assert source("new/Model") == "new/Model"
    assert source("owner/Qwen3.8-27B-4bit") == "owner/Qwen3.8-27B-4bit"
    with pytest.raises(AppError, match=f"expected the settings of Qwen3.8-27B-4bit to lead to .*{base}/models"):
        source("big")
    folder = model_folder(base / "models" / "owner" / "Qwen3.8-27B-4bit")
    assert source("big") == source("owner/Qwen3.8-27B-4bit") == str(folder)
    assert source("another/Qwen3.8-27B-4bit") == "another/Qwen3.8-27B-4bit", "another owner's is another model"


def test_sources_in_other_places(base: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "elsewhere" / "Named")
    shared = {"version": "1.0", "model": {"model_dirs": [str(tmp_path / "elsewhere")]}}
    listed = Settings(Base(base, "default"), {"Named": {}}, {}, {}, shared)
    assert source_of(listed, find_model(listed, "named")) == str(folder)
    remembered = Settings(Base(base, "default"), {"Named": {}}, {"Named": {"source": "/far/Named"}}, {})
    assert source_of(remembered, find_model(remembered, "Named")) == "/far/Named"


def test_a_new_record_needs_a_model(settings: Settings, base: Path) -> None:
    for name in ("mini", "owner/name", "Big", str(base.parent)):
        check_new(settings, find_model(settings, name))
    with pytest.raises(UsageError, match="model: got 'typo', expected a folder, a Hub id"):
        check_new(settings, find_model(settings, "typo"))
    model_folder(base / "models" / "typo")
    check_new(settings, find_model(settings, "typo"))


# The base folder


def test_the_base_folder_rule(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = find_base()
    assert (found.folder, found.origin) == (home / "settings", "DFLASH2_BASE_PATH")
    found = find_base(tmp_path)
    assert (found.folder, found.origin) == (tmp_path, "--base-path")
    monkeypatch.delenv("DFLASH2_BASE_PATH")
    found = find_base()
    assert (found.folder, found.origin) == (home / ".dflash2-mlx", "default")
    monkeypatch.setenv("DFLASH2_BASE_PATH", "~/.omlx")
    assert find_base().model_settings == home / ".omlx" / "model_settings.json"


@pytest.mark.parametrize("text", ["", " ", "~nobody-of-that-name/x"])
def test_a_base_folder_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DFLASH2_BASE_PATH", text)
    with pytest.raises(UsageError, match=r"^DFLASH2_BASE_PATH: got .*, expected a folder"):
        find_base()


def test_a_file_is_no_base_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(UsageError, match=r"--base-path: got .* expected a folder, not a file"):
        find_base(tmp_path / "f")

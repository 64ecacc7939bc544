"""oMLX's own files are read right, changed, and written with nothing lost; records keep the rules that oMLX has."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.errors import UsageError
from dflash2_app.settings.files import SettingsError
from dflash2_app.settings.resolve import model_layers, resolve
from dflash2_app.settings.store import Settings, Store, parse_assignments

from .samples import ALL_KEYS, MTP, UNKNOWN, model_settings, read, write


def effective(settings: Settings, model_id: str) -> dict[str, Any]:
    found = resolve(model_layers(settings, model_id))
    return {name: item.value for name, item in found.values.items()}


def test_every_key_is_read(store: Store, base: Path) -> None:
    write(base, model_settings())
    settings = store.load()
    found = effective(settings, "Qwen3.8-27B-4bit")
    assert {name: found[name] for name in ALL_KEYS} == ALL_KEYS
    absent = effective(settings, "mlx-community--Tiny-4bit")
    assert absent["dflash_enabled"] is False and absent["dflash_in_memory_cache"] is True
    assert (absent["dflash_draft_sink_size"], absent["dflash_verify_mode"]) == (0, "adaptive")
    assert settings.default_model == "Aliased"
    assert any("got a str as the record of NotARecord" in note for note in settings.notes)


def test_a_change_loses_nothing(store: Store, base: Path) -> None:
    before = model_settings()
    write(base, before)
    store.set_values("Org--Repo", {"temperature": 0.9, "top_k": 20})
    after = copy.deepcopy(before)
    after["models"]["Org--Repo"] |= {"temperature": 0.9, "top_k": 20}
    assert read(base) == after
    assert json.dumps(read(base)["models"]["Org--Repo"]["big"]) == str(UNKNOWN["big"])
    store.set_values("Org--Repo", {"top_k": None, "temperature": UNKNOWN["temperature"]})
    assert read(base) == before


def test_null_is_not_saved(store: Store, base: Path) -> None:
    store.set_values("a", {"temperature": None, "top_k": 3})
    assert read(base)["models"]["a"] == {"top_k": 3}
    store.set_values("a", {"top_k": None})
    assert read(base)["models"] == {}, "an empty record is no record"


def test_the_sink_is_written_out_with_dflash(store: Store, base: Path) -> None:
    """Absent it means 64 to oMLX before 0.6.3, and 0 after."""
    store.set_values("a", {"dflash_enabled": True, "dflash_draft_model": "o/d"})
    assert read(base)["models"]["a"]["dflash_draft_sink_size"] == 0
    store.set_values("b", {"dflash_enabled": True, "dflash_draft_sink_size": 16})
    assert read(base)["models"]["b"]["dflash_draft_sink_size"] == 16
    store.set_values("c", {"temperature": 1.0})
    assert "dflash_draft_sink_size" not in read(base)["models"]["c"]


def test_mtp_beside_dflash_is_kept_and_told(store: Store, base: Path) -> None:
    write(base, model_settings())
    assert store.load().record_notes("Both") == [
        "Both: mtp_enabled stands beside dflash_enabled: oMLX drops such a record; DFlash counts here"
    ]
    assert effective(store.load(), "Both")["dflash_enabled"] is True
    store.set_values("Both", {"temperature": 0.5})
    assert MTP.items() <= read(base)["models"]["Both"].items()


@pytest.mark.parametrize("beside", ["mtp_enabled", "vlm_mtp_enabled"])
def test_mtp_beside_dflash_is_not_made(store: Store, base: Path, beside: str) -> None:
    path = write(base, {"version": 1, "models": {"a": {beside: True}}})
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"dflash_enabled: got true beside {beside} of a, expected one of the two"):
        store.set_values("a", {"dflash_enabled": True})
    assert path.read_bytes() == before
    store.set_values("a", {"dflash_enabled": False})


def test_the_disk_cache_needs_the_one_in_memory(store: Store, base: Path) -> None:
    with pytest.raises(UsageError, match="dflash_ssd_cache: got true without dflash_in_memory_cache"):
        store.set_values("a", {"dflash_ssd_cache": True, "dflash_in_memory_cache": False})
    store.set_values("a", {"dflash_ssd_cache": True})
    with pytest.raises(UsageError, match="dflash_ssd_cache"):
        store.set_values("a", {"dflash_in_memory_cache": False})
    assert read(base)["models"]["a"] == {"dflash_ssd_cache": True}


def test_the_disk_cache_in_a_folder_of_omlx(store: Store, base: Path) -> None:
    """oMLX refuses it unless its own cache folder is set."""
    assert store.load().ssd_folder == base / "cache" / "dflash2_prefix"
    write(base, {"version": "1.0", "cache": {"ssd_cache_dir": None}}, "settings.json")
    with pytest.raises(UsageError, match=r"cache\.ssd_cache_dir"):
        store.set_values("a", {"dflash_ssd_cache": True})
    write(base, {"version": "1.0", "cache": {"ssd_cache_dir": "/ssd"}}, "settings.json")
    store.set_values("a", {"dflash_ssd_cache": True})
    assert store.load().ssd_folder == Path("/ssd/dflash2_prefix")


def test_one_default_model(store: Store, base: Path) -> None:
    write(base, model_settings())
    store.set_values("new", {"is_default": True})
    found = read(base)["models"]
    assert found["Aliased"]["is_default"] is False and found["new"]["is_default"] is True
    assert found["Aliased"]["model_alias"] == "Bob"


@pytest.mark.parametrize("alias", ["bob", "ORG--repo"])
def test_an_alias_is_given_once(store: Store, base: Path, alias: str) -> None:
    write(base, model_settings())
    with pytest.raises(UsageError, match="model_alias: got "):
        store.set_values("new", {"model_alias": alias})
    store.set_values("Aliased", {"model_alias": "Bob"})


def test_our_own_keys_stay_out_of_omlx_files(store: Store, base: Path) -> None:
    store.set_values("a", {"frequency_penalty": 0.5, "temperature": 1.0}, source="/models/a")
    assert read(base)["models"]["a"] == {"temperature": 1.0}
    assert read(base, "dflash2_extras.json")["models"]["a"] == {"frequency_penalty": 0.5, "source": "/models/a"}
    assert effective(store.load(), "a")["frequency_penalty"] == 0.5
    store.set_values("b", {"frequency_penalty": None})
    assert "b" not in read(base, "dflash2_extras.json")["models"]


def test_a_record_that_is_none_is_left_alone(store: Store, base: Path) -> None:
    path = write(base, model_settings())
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="got a str as the record of NotARecord, expected an object"):
        store.set_values("NotARecord", {"temperature": 1.0})
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["model_profiles.json", "dflash2_extras.json", "settings.json"])
def test_one_damaged_file_stops_every_write(store: Store, base: Path, name: str) -> None:
    write(base, "{", name)
    with pytest.raises(SettingsError, match=name):
        store.set_values("a", {"temperature": 1.0})
    assert not (base / "model_settings.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["temperature"], "setting: got 'temperature', expected KEY=VALUE"),
        (["top_k=1", "top_k=2"], "top_k: got it twice, expected it once"),
        (["top_k=x"], "top_k: got 'x', expected an integer >= 0"),
    ],
)
def test_assignments_that_are_none(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_assignments(words)
    assert str(caught.value) == message


def test_assignments() -> None:
    assert parse_assignments(["description=a=b", "top_k=", "min_p=0.1"]) == {
        "description": "a=b", "top_k": None, "min_p": 0.1,
    }  # fmt: skip

"""Profiles in oMLX's layout: saved, applied, shown as modified, forgotten; nothing else in their file is touched."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dflash2_app.errors import AppError, UsageError
from dflash2_app.settings.profiles import (
    apply_profile,
    check_name,
    is_modified,
    profiles_of,
    remove_profile,
    save_profile,
)
from dflash2_app.settings.store import Store

from .samples import read, write

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
OMLX = {
    "version": 1,
    "profiles": {
        "m": {
            "theirs": {
                "name": "theirs", "display_name": "Theirs", "api_name": "t", "created_at": "2026-01-01T00:00:00Z",
                "settings": {
                    "temperature": 0.2, "dflash_enabled": True, "specprefill_enabled": True, "is_pinned": True,
                },
                "expose_as_model": True, "unheard_of": [1],
            },
            "broken": 3,
        },
        "other": {"x": {"settings": {}}},
    },
}  # fmt: skip


def test_save_keeps_what_a_profile_may_hold(store: Store, base: Path) -> None:
    record = {"temperature": 0.5, "dflash_enabled": True, "is_default": True, "model_alias": "a", "mtp_x": 1}
    write(base, {"version": 1, "models": {"m": record}})
    save_profile(store, "m", "fast", now=NOON)
    assert read(base, "model_profiles.json") == {
        "version": 1,
        "profiles": {"m": {"fast": {
            "name": "fast", "display_name": "fast", "created_at": NOON.isoformat(),
            "settings": {"temperature": 0.5, "dflash_enabled": True, "mtp_x": 1}, "updated_at": NOON.isoformat(),
        }}},
    }  # fmt: skip
    assert read(base)["models"]["m"]["active_profile_name"] == "fast"


def test_saving_over_a_profile_keeps_what_it_holds_besides(store: Store, base: Path) -> None:
    write(base, OMLX, "model_profiles.json")
    write(base, {"version": 1, "models": {"m": {"top_k": 9}}})
    save_profile(store, "m", "theirs", now=NOON)
    found = read(base, "model_profiles.json")["profiles"]
    assert found["m"]["theirs"]["settings"] == {"top_k": 9}
    assert (found["m"]["theirs"]["created_at"], found["m"]["theirs"]["unheard_of"]) == ("2026-01-01T00:00:00Z", [1])
    assert found["m"]["broken"] == 3 and found["other"] == OMLX["profiles"]["other"]  # type: ignore[index]


def test_apply_makes_the_model_equal_to_the_profile(store: Store, base: Path) -> None:
    write(base, OMLX, "model_profiles.json")
    record = {"temperature": 0.9, "top_k": 5, "is_pinned": False, "model_alias": "a", "future": 1}
    write(base, {"version": 1, "models": {"m": record}})
    apply_profile(store, "m", "theirs")
    assert read(base)["models"]["m"] == {
        "temperature": 0.2, "is_pinned": False, "model_alias": "a", "future": 1, "dflash_enabled": True,
        "specprefill_enabled": True, "active_profile_name": "theirs", "dflash_draft_sink_size": 0,
    }  # fmt: skip
    assert not is_modified(store.load(), "m")


def test_a_change_after_it_shows_as_modified(store: Store, base: Path) -> None:
    write(base, {"version": 1, "models": {"m": {"temperature": 0.9}}})
    save_profile(store, "m", "p")
    assert not is_modified(store.load(), "m")
    store.set_values("m", {"temperature": 0.8})
    assert is_modified(store.load(), "m")
    assert read(base)["models"]["m"]["active_profile_name"] == "p", "oMLX forgets it here; we keep it"
    store.set_values("m", {"temperature": 0.9, "dflash_block_size": None, "is_pinned": True})
    assert not is_modified(store.load(), "m")
    apply_profile(store, "m", "p")
    assert read(base)["models"]["m"] == {"temperature": 0.9, "is_pinned": True, "active_profile_name": "p"}


def test_remove(store: Store, base: Path) -> None:
    write(base, {"version": 1, "models": {"m": {"temperature": 0.9}}})
    save_profile(store, "m", "p")
    save_profile(store, "m", "q")
    remove_profile(store, "m", "p")
    assert list(profiles_of(store.load(), "m")) == ["q"]
    assert read(base)["models"]["m"]["active_profile_name"] == "q"
    remove_profile(store, "m", "q")
    assert read(base, "model_profiles.json")["profiles"] == {}
    assert read(base)["models"]["m"] == {"temperature": 0.9}


def test_a_profile_with_a_bad_value_is_not_applied(store: Store, base: Path) -> None:
    bad = {"version": 1, "profiles": {"m": {"p": {"settings": {"top_k": "many"}}}}}
    write(base, bad, "model_profiles.json")
    with pytest.raises(AppError, match="profile p: top_k: got 'many', expected an integer >= 0"):
        apply_profile(store, "m", "p")
    assert not (base / "model_settings.json").exists()


def test_a_profile_that_is_not_there(store: Store, base: Path) -> None:
    write(base, OMLX, "model_profiles.json")
    for action in (apply_profile, remove_profile):
        with pytest.raises(AppError, match=r"profile: got 'nope', expected one that m has \(theirs\)"):
            action(store, "m", "nope")


@pytest.mark.parametrize("name", ["", "Fast", "-x", "_x", "a b", "x" * 33, "a.b"])
def test_names_that_omlx_refuses(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="profile: got "):
        save_profile(store, "m", name)


@pytest.mark.parametrize("name", ["a", "9", "fast-1_b", "x" * 32])
def test_names_that_omlx_takes(name: str) -> None:
    assert check_name(name) == name

"""Named sets of settings per model, in oMLX's `model_profiles.json`.

Owns: what a profile may hold, its name and its times. Applying one writes the model's record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..errors import AppError, UsageError
from .keys import KEYS, NOT_IN_PROFILES
from .schema import BadValue
from .store import ACTIVE_PROFILE, Settings, Store, change_record

LONGEST_NAME = 32
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def check_name(name: str) -> str:
    """Raises UsageError: the name is not one that oMLX takes."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise UsageError(
            f"profile: got {name!r}, expected at most {LONGEST_NAME} of a-z, 0-9, _ and -, beginning with a letter "
            "or digit"
        )
    return name


def profiles_of(settings: Settings, model_id: str) -> Mapping[str, Mapping[str, Any]]:
    """The model's profiles by name; what is no record is left out."""
    found = settings.profiles.get(model_id)
    if not isinstance(found, Mapping):
        return {}
    return {name: profile for name, profile in found.items() if isinstance(profile, Mapping)}


def profile_named(settings: Settings, model_id: str, name: str) -> Mapping[str, Any]:
    """Raises AppError: there is no such profile."""
    found = profiles_of(settings, model_id)
    if name not in found:
        there = ", ".join(found) or "none yet"
        raise AppError(f"profile: got {name!r}, expected one that {model_id} has ({there})")
    return found[name]


def profile_values(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The settings a profile may hold, as they stand in it."""
    held = profile.get("settings")
    return {name: value for name, value in held.items() if _belongs(name)} if isinstance(held, Mapping) else {}


def _belongs(name: str) -> bool:
    # Our extras never go into a file that oMLX writes anew.
    return name not in NOT_IN_PROFILES and not (name in KEYS and KEYS[name].extra)


def save_profile(store: Store, model_id: str, name: str, *, now: datetime | None = None) -> dict[str, Any]:
    """Keep the model's present settings under a name; an existing profile keeps what else it holds."""
    check_name(name)
    record = store.load().record(model_id)
    values = {key: value for key, value in record.items() if _belongs(key)}
    stamp = (now or datetime.now(UTC)).isoformat()

    def change(profiles: dict[str, Any]) -> None:
        own = profiles.setdefault(model_id, {})
        if not isinstance(own, dict) or not isinstance(own.get(name, {}), dict):
            raise AppError(f"{store.profiles.path}: got no object for {model_id}/{name}, expected a profile")
        profile = own.setdefault(name, {"name": name, "display_name": name, "created_at": stamp})
        profile["settings"] = values
        profile["updated_at"] = stamp

    store.profiles.update(change)
    store.models.update(lambda records: change_record(records, model_id, {ACTIVE_PROFILE: name}))
    return values


def apply_profile(store: Store, model_id: str, name: str) -> dict[str, Any]:
    """Give the model the profile's settings; those that a profile may hold and this one does not are removed."""
    settings = store.load()
    values = profile_values(profile_named(settings, model_id, name))
    for key, value in values.items():
        try:
            _ = KEYS[key].normalise(value) if key in KEYS else None
        except BadValue as error:
            raise AppError(f"profile {name}: {key}: {error}") from None

    def change(records: dict[str, Any]) -> None:
        record = records.get(model_id)
        known = [key for key in record if key in KEYS and _belongs(key)] if isinstance(record, dict) else []
        change_record(records, model_id, {**dict.fromkeys(known), **values, ACTIVE_PROFILE: name}, settings)

    store.models.update(change)
    return values


def remove_profile(store: Store, model_id: str, name: str) -> None:
    """Forget a profile; the model's settings stay as they are."""
    profile_named(store.load(), model_id, name)

    def change(profiles: dict[str, Any]) -> None:
        profiles.get(model_id, {}).pop(name, None)
        if not profiles.get(model_id):
            profiles.pop(model_id, None)

    store.profiles.update(change)
    record = store.load().record(model_id)
    if record.get(ACTIVE_PROFILE) == name:
        store.models.update(lambda records: change_record(records, model_id, {ACTIVE_PROFILE: None}))


def rename_profile(store: Store, model_id: str, name: str, new: str) -> None:
    """Call a profile something else.

    Raises:
        UsageError: the new name is taken, or not one that oMLX takes.
        AppError: there is no such profile.
    """
    check_name(new)
    settings = store.load()
    profile_named(settings, model_id, name)
    if new in profiles_of(settings, model_id):
        raise UsageError(f"profile: got {new!r}, expected a name that {model_id} does not have already")

    def change(profiles: dict[str, Any]) -> None:
        renamed = {new if key == name else key: value for key, value in profiles.get(model_id, {}).items()}
        profile = renamed[new]
        if profile.get("display_name") == name:
            profile["display_name"] = new
        profile["name"] = new
        profiles[model_id] = renamed

    store.profiles.update(change)
    if settings.record(model_id).get(ACTIVE_PROFILE) == name:
        store.models.update(lambda records: change_record(records, model_id, {ACTIVE_PROFILE: new}))


def expose_profile(store: Store, model_id: str, name: str, *, exposed: bool, api_name: str | None = None) -> None:
    """List a profile as a model of its own, `model:api_name`, or no longer.

    Args:
        api_name: what stands behind the colon; None keeps what is there, else the profile's name.
    Raises:
        UsageError: the name is not one that oMLX takes, or another exposed profile has it.
        AppError: there is no such profile.
    """
    settings = store.load()
    wanted = api_name or profile_named(settings, model_id, name).get("api_name") or name
    if api_name is not None:
        check_name(api_name)
    for other, profile in profiles_of(settings, model_id).items():
        taken = profile.get("expose_as_model") is True and wanted == (profile.get("api_name") or other)
        if exposed and other != name and taken:
            raise UsageError(f"api_name: got {wanted!r}, expected a name that the profile {other} does not have")

    def change(profiles: dict[str, Any]) -> None:
        profile = profiles[model_id][name]
        profile["expose_as_model"] = exposed
        if api_name is not None:
            profile["api_name"] = api_name

    store.profiles.update(change)


def is_modified(settings: Settings, model_id: str) -> bool:
    """Whether the model's settings differ from its active profile; oMLX forgets the profile then, we say so."""
    record = settings.record(model_id)
    active = record.get(ACTIVE_PROFILE)
    found = profiles_of(settings, model_id).get(active) if isinstance(active, str) else None
    if found is None:
        return False
    held = profile_values(found)
    # Absent and default are the same; what the profile does not know and neither do we is not its business.
    defaults = {name: key.default for name, key in KEYS.items() if _belongs(name)}

    def meaning(values: Mapping[str, Any], name: str) -> Any:
        value = values.get(name)
        return defaults.get(name) if value is None else value

    return any(meaning(held, name) != meaning(record, name) for name in {*defaults, *held})

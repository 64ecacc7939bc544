"""Reads and changes the settings of models in oMLX's files and in our side file.

Owns: the rules of a record: what may stand together, which keys live where, one default model, unique
aliases. The files themselves are `files.py`'s. Invariant: what a change does not name stays as it was, also
where we do not understand it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .files import JsonFile, SettingsError
from .keys import KEYS, find_key
from .paths import Base
from .schema import BadValue

SOURCE = "source"  # of the side file: the folder that a model's id stands for
ACTIVE_PROFILE = "active_profile_name"
DEFAULT_SSD_FOLDER = "cache"
OWN_SSD_FOLDER = "dflash2_prefix"  # beside oMLX's `dflash_l2`, whose files have another form


@dataclass(frozen=True)
class Settings:
    """All files of one base folder, as they were at one moment; records are raw, as they stand there."""

    base: Base
    models: Mapping[str, Any]
    extras: Mapping[str, Any]
    profiles: Mapping[str, Any]
    shared: Mapping[str, Any] = field(default_factory=dict)  # oMLX's settings.json
    notes: tuple[str, ...] = ()

    def record(self, model_id: str) -> Mapping[str, Any]:
        """The model's raw record, empty when there is none."""
        return _record(self.models, model_id)

    def extra(self, model_id: str) -> Mapping[str, Any]:
        """The model's record in our side file, empty when there is none."""
        return _record(self.extras, model_id)

    def record_notes(self, model_id: str) -> list[str]:
        """What the user should know of one record."""
        beside = _excluded(self.record(model_id))
        if beside is None:
            return []
        return [f"{model_id}: {beside} stands beside dflash_enabled: oMLX drops such a record; DFlash counts here"]

    @property
    def of_omlx(self) -> bool:
        """Whether this folder is one that oMLX keeps."""
        return bool(self.shared)

    @property
    def default_model(self) -> str | None:
        """The id of the model that is used when none is named."""
        return next((name for name in self.models if self.record(name).get("is_default") is True), None)

    @property
    def ssd_folder(self) -> Path | None:
        """Where a prefix cache on disk belongs; None when oMLX shares this folder and has not been given one."""
        section = self.shared.get("cache")
        stated = section.get("ssd_cache_dir") if isinstance(section, Mapping) else None
        if isinstance(stated, str) and stated:
            return Path(stated).expanduser() / OWN_SSD_FOLDER
        return None if self.of_omlx else self.base.folder / DEFAULT_SSD_FOLDER / OWN_SSD_FOLDER


def _record(section: Mapping[str, Any], model_id: str) -> Mapping[str, Any]:
    found = section.get(model_id)
    return found if isinstance(found, Mapping) else {}


class Store:
    """The settings files of a base folder."""

    def __init__(self, base: Base):
        self.base = base
        self.models = JsonFile(base.model_settings, "models")
        self.profiles = JsonFile(base.model_profiles, "profiles")
        self.extras = JsonFile(base.extras, "models")
        self.shared = JsonFile(base.global_settings, None, "1.0")

    def load(self) -> Settings:
        """Raises SettingsError: a file is there and cannot be read."""
        models, profiles, extras, shared = (
            file.read() for file in (self.models, self.profiles, self.extras, self.shared)
        )
        notes = [*models.notes, *profiles.notes, *extras.notes, *shared.notes]
        notes += [
            f"{self.models.path}: got a {type(record).__name__} as the record of {name}, expected an object: ignored"
            for name, record in models.data["models"].items()
            if not isinstance(record, dict)
        ]
        return Settings(
            self.base,
            models.data["models"],
            extras.data["models"],
            profiles.data["profiles"],
            shared.data,
            tuple(notes),
        )

    def set_values(self, model_id: str, values: Mapping[str, Any], *, source: str | None = None) -> None:
        """Give keys of one model new values; None removes a key.

        Args:
            values: checked ones, by key.
            source: the folder that `model_id` stands for, kept in the side file.
        Raises:
            UsageError: the values cannot stand together with what is there.
            SettingsError: a file cannot be read or written.
        """
        own, shared = split_extras(values)
        if source is not None:
            own[SOURCE] = source
        settings = self.load()  # all files must be readable before one is written
        if shared:
            self.models.update(lambda records: change_record(records, model_id, shared, settings))
        if own and (settings.extra(model_id) or any(value is not None for value in own.values())):
            self.extras.update(lambda records: _assign(_own_record(records, model_id, self.extras.path), own))


def split_extras(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of our side file, and those of oMLX's."""
    own = {name: value for name, value in values.items() if name in KEYS and KEYS[name].extra}
    return own, {name: value for name, value in values.items() if name not in own}


def changed(settings: Settings, model_id: str, values: Mapping[str, Any]) -> Settings:
    """The settings as they would be after a change; nothing is written.

    Raises:
        UsageError: the values cannot stand together with what is there.
        SettingsError: what stands under this id is no record.
    """
    own, shared = split_extras(values)
    models, extras = copy.deepcopy(dict(settings.models)), copy.deepcopy(dict(settings.extras))
    if shared:
        change_record(models, model_id, shared, settings)
    if own:
        _assign(_own_record(extras, model_id, settings.base.extras), own)
    return replace(settings, models=models, extras=extras)


def parse_assignments(words: list[str]) -> dict[str, Any]:
    """Read `key=value` words; a value of `null`, or none, stands for "as if absent".

    Raises:
        UsageError: naming the key, what was received and what is expected.
    """
    values: dict[str, Any] = {}
    for item in words:
        name, equals, given = item.partition("=")
        if not equals:
            raise UsageError(f"setting: got {item!r}, expected KEY=VALUE")
        key = find_key(name.strip())
        if key.name in values:
            raise UsageError(f"{key.name}: got it twice, expected it once")
        try:
            values[key.name] = key.parse(given)
        except BadValue as error:
            raise UsageError(f"{key.name}: {error}") from None
    return values


def change_record(
    records: dict[str, Any], model_id: str, values: Mapping[str, Any], settings: Settings | None = None
) -> None:
    """Change one record among `records`, in place, and keep the rules that go beyond one record.

    Raises:
        UsageError: oMLX would drop the record, or refuse it; nothing may be written then.
        SettingsError: what stands under this id is no record.
    """
    record = _own_record(records, model_id, "model_settings.json")
    was_excluded, was_lone = _excluded(record), _lone_disk_cache(record)
    _assign(record, values)
    if record.get("dflash_enabled") is True:
        # Absent means 64 to oMLX before 0.6.3 and 0 after: say it.
        record.setdefault("dflash_draft_sink_size", 0)
    if _excluded(record) and not was_excluded:
        raise UsageError(
            f"dflash_enabled: got true beside {_excluded(record)} of {model_id}, expected one of the two: "
            "oMLX drops a record with both"
        )
    if _lone_disk_cache(record) and not was_lone:
        raise UsageError("dflash_ssd_cache: got true without dflash_in_memory_cache, expected both on")
    if values.get("dflash_ssd_cache") is True and settings is not None and settings.ssd_folder is None:
        raise UsageError(
            "dflash_ssd_cache: got true, expected cache.ssd_cache_dir in oMLX's settings.json first: "
            "oMLX refuses it without"
        )
    if values.get("model_alias") is not None:
        _check_alias(records, model_id, values["model_alias"])
    if values.get("is_default") is True:
        for name, other in records.items():
            if name != model_id and isinstance(other, dict) and other.get("is_default"):
                other["is_default"] = False
    if not record:
        del records[model_id]


def _own_record(records: dict[str, Any], model_id: str, where: object) -> dict[str, Any]:
    record = records.setdefault(model_id, {})
    if not isinstance(record, dict):
        raise SettingsError(f"{where}: got a {type(record).__name__} as the record of {model_id}, expected an object")
    return record


def _assign(record: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Null is not saved: absent means default."""
    for name, value in values.items():
        if value is None:
            record.pop(name, None)
        else:
            record[name] = value


def _excluded(record: Mapping[str, Any]) -> str | None:
    """The accelerator that oMLX does not allow beside DFlash, if the record has both."""
    if record.get("dflash_enabled") is not True:
        return None
    return next((name for name in ("mtp_enabled", "vlm_mtp_enabled") if record.get(name) is True), None)


def _lone_disk_cache(record: Mapping[str, Any]) -> bool:
    return record.get("dflash_ssd_cache") is True and record.get("dflash_in_memory_cache") is False


def _check_alias(records: Mapping[str, Any], model_id: str, alias: str) -> None:
    for name in records:
        if name != model_id and alias.lower() in (name.lower(), str(_record(records, name).get("model_alias")).lower()):
            raise UsageError(f"model_alias: got {alias!r}, expected a name that {name} does not have already")

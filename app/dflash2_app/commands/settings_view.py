"""How settings are shown: as aligned lines, and as the objects of `--json`.

Owns: the wording of values and the layout. Reads nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..manage.forms import base_object
from ..settings.keys import DFLASH, KEYS
from ..settings.names import Named
from ..settings.profiles import is_modified
from ..settings.resolve import Effective
from ..settings.schema import Key
from ..settings.store import ACTIVE_PROFILE, Settings

GIB = 2**30
_DFLASH_NAMES = {key.name for key in DFLASH}


def worded(key: Key, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if key.name.endswith("_max_bytes"):
        return f"{value / GIB:g} GiB"
    return str(value)


def assignment_line(name: str, value: Any) -> str:
    """What was just saved, in the user's words and by its key."""
    key = KEYS[name]
    return f"{key.label:34} {worded(key, value):24} {name}".rstrip()


def overview(settings: Settings) -> dict[str, Any]:
    """All models of a base folder, for `--json`."""
    return {
        **base_object(settings),
        "models": {name: dict(settings.record(name)) for name in settings.models},
        "extras": {name: dict(settings.extra(name)) for name in settings.extras},
        "notes": list(settings.notes),
    }


def overview_lines(settings: Settings) -> list[str]:
    shared = ", shared with oMLX" if settings.of_omlx else ""
    lines = [f"base folder  {settings.base.folder} ({settings.base.origin}{shared})"]
    if not settings.models:
        return [*lines, "no model has settings yet"]
    width = max(len("model"), *map(len, settings.models))
    lines += ["", f"{'model':{width}}  DFlash  Draft Model"]
    for name in settings.models:
        record = settings.record(name)
        state = "on" if record.get("dflash_enabled") is True else "off"
        marks = ["default"] if record.get("is_default") is True else []
        marks += [f"alias {record['model_alias']}"] if record.get("model_alias") else []
        end = f"  ({', '.join(marks)})" if marks else ""
        lines.append(f"{name:{width}}  {state:6}  {record.get('dflash_draft_model') or '-'}{end}")
    return lines


def model_object(
    settings: Settings, named: Named, effective: Effective, outlook: Mapping[str, Any], *, origins: bool
) -> dict[str, Any]:
    """One model, for `--json`."""
    record = settings.record(named.model_id)
    shown: dict[str, Any] = {
        "model": named.model_id,
        "known": named.known,
        "profile": named.profile or record.get(ACTIVE_PROFILE),
        "profile_modified": is_modified(settings, named.model_id),
        "settings": {name: item.value for name, item in effective.values.items()},
    }
    if origins:
        shown["origins"] = {name: item.origin for name, item in effective.values.items()}
    return {**shown, "kept": _kept(record), "problems": list(effective.problems), **outlook}


def _kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a record that nothing here uses: oMLX's others, and unknown ones."""
    return {name: value for name, value in record.items() if name not in KEYS and name != ACTIVE_PROFILE}


def model_lines(
    settings: Settings, named: Named, effective: Effective, outlook: Mapping[str, Any], *, origins: bool
) -> list[str]:
    record = settings.record(named.model_id)
    lines = [f"model  {named.model_id}" + ("" if named.known else " (no settings of its own yet)")]
    if active := named.profile or record.get(ACTIVE_PROFILE):
        lines.append(f"profile  {active}" + (" (modified)" if is_modified(settings, named.model_id) else ""))
    group = ""
    for name, key in KEYS.items():
        if name not in _DFLASH_NAMES and not effective.given(name):
            continue
        if key.group != group:
            group = key.group
            lines += ["", group]
        origin = f"  ({effective.origin(name)})" if origins else ""
        lines.append(f"  {key.label:34} {worded(key, effective[name])}{origin}")
    kept = _kept(record)
    if kept:
        lines += ["", "Kept for other programs, without effect here", *(f"  {name:34} {kept[name]}" for name in kept)]
    if outlook["dflash_requested"]:
        drafter = outlook["drafter"]
        reason = outlook["dflash_fallback_reason"]
        lines += ["", f"replies: {f'drafted by {drafter}' if drafter else f'plain decoding ({reason})'}"]
    return lines

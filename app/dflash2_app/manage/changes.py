"""Changing the settings of one model: what was given is read, checked as a whole, shown before it is saved.

Owns: the order of the checks, the faults by key, and what a user should know of a change. Invariant: what `check`
calls good is what `save` writes, unless the files change in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.setup import outlook
from ..errors import AppError, UsageError, one_line
from ..settings.files import SettingsError
from ..settings.keys import KEYS, find_key
from ..settings.names import Named, check_new, find_model, is_folder
from ..settings.plan import Plan
from ..settings.resolve import ENVIRONMENT, Effective
from ..settings.schema import BadValue
from ..settings.store import Settings, Store, changed
from .checks import DRAFT_MODEL, Pairing, check_values, draft_model, look_at_pair

# What only a new load can honour; the two others of use "load" name a model rather than change it.
ENGINE_KEYS = frozenset(name for name, key in KEYS.items() if key.use == "load") - {"is_default", "model_alias"}
WHOLE = ""  # the name of a fault that belongs to no single key


@dataclass(frozen=True)
class Change:
    """A change that was checked. With `faults` (texts by key) nothing may be saved, and `settings` are as before.

    `values` are ready to be saved, None where a key goes back to its default.
    """

    named: Named
    values: dict[str, Any]
    faults: dict[str, str]
    notes: list[str]
    settings: Settings
    effective: Effective
    plan: Plan
    pairing: Pairing
    load_keys: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.faults


def find_own(settings: Settings, name: str) -> Named:
    """The model that a name means, for reading and changing its settings.

    Raises:
        UsageError: it leads to no model, or means an exposed profile.
    """
    named = find_model(settings, name)
    if named.profile is not None:
        raise UsageError(f"model: got the profile {named.typed!r}, expected the model itself ({named.model_id})")
    check_new(settings, named)
    if not named.model_id:
        raise UsageError(f"model: got {name!r}, expected the folder of a model")
    return named


def read_values(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by key, and faults by key: a text is read as typed at a command line, null goes back to the default."""
    values: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, raw in given.items():
        try:
            key = find_key(name)
            values[name] = key.parse(raw) if isinstance(raw, str) else key.normalise(raw, typed=True)
        except UsageError as error:
            faults[name] = one_line(str(error)).removeprefix(f"{name}: ")
        except BadValue as error:
            faults[name] = str(error)
    return values, faults


def check(settings: Settings, named: Named, given: Mapping[str, Any], environment: Mapping[str, str]) -> Change:
    """Check a change as a whole; what is wrong is told by key, and nothing is raised for it."""
    values, faults = read_values(given)
    notes: list[str] = []
    after = settings
    if not faults:
        try:
            checked = check_values(settings, named, values)
            after = changed(settings, named.model_id, checked.values)
            values, notes = checked.values, checked.notes
        except SettingsError:
            raise
        except AppError as error:
            name, text = fault_of(error)
            faults[name] = text
    effective, plan, told = outlook(after, named, environment)
    drafter = values.get(DRAFT_MODEL) or (None if DRAFT_MODEL in values else effective[DRAFT_MODEL])
    notes += [note for note in consequences(values, effective, plan, told) if note not in notes]
    before, _, _ = outlook(settings, named, environment)
    load_keys = [name for name in values if name in ENGINE_KEYS and before[name] != effective[name]]
    pairing = _pairing(settings, named, drafter)
    return Change(named, values, faults, notes, after, effective, plan, pairing, load_keys)


def _pairing(settings: Settings, named: Named, drafter: str | None) -> Pairing:
    try:
        return look_at_pair(settings, named, None if drafter is None else draft_model(drafter))
    except UsageError as error:
        return Pairing("bad", one_line(str(error)))


def fault_of(error: Exception) -> tuple[str, str]:
    """The key a refusal is about, and its text; a drafter that does not fit is a fault of Draft Model."""
    text = one_line(str(error))
    name, colon, rest = text.partition(": ")
    if colon and name in KEYS:
        return name, rest
    if " for " in name:
        return DRAFT_MODEL, text
    return WHOLE, text


def save(store: Store, change: Change) -> None:
    """Write a change that is good.

    Raises:
        UsageError, SettingsError: the files changed meanwhile, or cannot be written.
    """
    assert change.good
    named = change.named
    source = str(Path(named.typed).expanduser().resolve()) if is_folder(named.typed) else None
    store.set_values(named.model_id, change.values, source=source)


def consequences(values: Mapping[str, Any], effective: Effective, plan: Plan, told: list[str]) -> list[str]:
    """What the user should know of settings that were, or are to be, saved."""
    notes = [*told, *(f"not used: {problem}" for problem in effective.problems)]
    if plan.fallback_reason:
        notes.append(f"plain decoding: {plan.fallback_reason}")
    covered = [name for name in values if effective.origin(name) == ENVIRONMENT]
    return notes + [f"{name}: {KEYS[name].variable} is set and wins in this environment" for name in covered]


def omlx_note(settings: Settings) -> list[str]:
    """What to do about oMLX, where it shares this folder."""
    if not settings.of_omlx:
        return []
    return ["oMLX, if it runs, must reload its settings (or be started anew) before it saves, or it undoes this change"]


def recover(store: Store) -> list[str]:
    """Keep files that cannot be read under another name; one line for each."""
    moved = []
    for file in (store.models, store.profiles, store.extras):
        try:
            file.read()
        except SettingsError:
            moved.append(f"{file.path} is now {file.set_aside().name}")
    return moved

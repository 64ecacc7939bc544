"""From what a user types to a model's id in the files, and from an id to what can be loaded.

Owns: oMLX's naming: an id is the name of the model's folder, or `Org--Repo` for an entry of the Hub cache.
A name is looked up as an id, in any case, as an exposed profile, as an alias, without its prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AppError, UsageError
from .store import SOURCE, Settings

MINI = "mini"


@dataclass(frozen=True)
class Named:
    """A model as somebody named it.

    `model_id` is its key in the files, `typed` the name that was given (without the profile), `profile` the exposed
    profile that the name asks for, and `known` whether the files have a record of it.
    """

    model_id: str
    typed: str
    known: bool
    profile: str | None = None


def check_new(settings: Settings, named: Named) -> None:
    """Refuse to begin a record for a name that leads to no model.

    Raises:
        UsageError: neither a folder, a Hub id nor a name that the files know.
    """
    typed = named.typed
    if named.known or typed == MINI or is_folder(typed) or is_hub_id(typed):
        return
    if _local_folder(settings, named.model_id) is None:
        raise UsageError(f"model: got {typed!r}, expected a folder, a Hub id like owner/name or a configured name")


def is_folder(text: str) -> bool:
    try:
        return text != MINI and Path(text).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # too long a name, no such user, a NUL
        return False


def is_hub_id(text: str) -> bool:
    """Whether a text has the form owner/name."""
    owner, slash, repo = text.partition("/")
    return bool(slash and owner and repo) and "/" not in repo and not text.startswith((".", "~", "/"))


def find_model(settings: Settings, name: str) -> Named:
    """Find the model that a name means; one that the files do not know gets the id they would give it."""
    found = _find_id(settings.models, name)
    if found is not None:
        return Named(found, name, True)
    front, colon, back = name.rpartition(":")
    owner = _find_id(settings.models, front) if colon else None
    profile = None if owner is None else exposed_profiles(settings, owner).get(back)
    if owner is not None and profile is not None:
        return Named(owner, front, True, profile)
    new = new_id(name)
    return Named(new, name, new in settings.models)


def _find_id(models: Mapping[str, Any], name: str) -> str | None:
    if is_folder(name) and ("/" in name or name.startswith(("~", "."))):
        new = new_id(name)
        return new if new in models else None
    candidates = [name, name.replace("/", "--", 1)]
    candidates += [name.rpartition("/")[2]] if "/" in name else []
    for candidate in candidates:
        if candidate in models:
            return candidate
        for other in models:
            if other.lower() == candidate.lower():
                return other
        for other, record in models.items():
            alias = record.get("model_alias") if isinstance(record, Mapping) else None
            if isinstance(alias, str) and alias.lower() == candidate.lower():
                return other
    # Of an entry of the Hub cache, the name without its owner, where that is unique.
    entries = [other for other in models if "--" in other and other.partition("--")[2].lower() == name.lower()]
    return entries[0] if len(entries) == 1 else None


def exposed_profiles(settings: Settings, model_id: str) -> dict[str, str]:
    """A model's profiles that are models of their own to clients: the name after the colon, and the profile's."""
    profiles = settings.profiles.get(model_id)
    found: dict[str, str] = {}
    for name, profile in (profiles if isinstance(profiles, Mapping) else {}).items():
        if isinstance(profile, Mapping) and profile.get("expose_as_model") is True:
            found.setdefault(str(profile.get("api_name") or name), str(name))
    return found


def new_id(name: str) -> str:
    """The id of a model that has no record yet."""
    if is_folder(name):
        return Path(name).expanduser().resolve().name
    return name.replace("/", "--", 1) if is_hub_id(name) else name


def source_of(settings: Settings, named: Named) -> str:
    """What the library loads for a model: a folder, a Hub id or "mini".

    Raises:
        AppError: the settings know the model, and nothing of that name can be found.
    """
    typed, model_id = named.typed, named.model_id
    if typed == MINI:
        return MINI
    if not named.known or is_folder(typed):
        return typed
    folder = _local_folder(settings, model_id)
    if is_hub_id(typed):  # a folder is meant only where it lies under that owner
        return str(folder) if folder is not None and folder.parts[-2:] == tuple(typed.split("/")) else typed
    stated = settings.extra(model_id).get(SOURCE)
    if isinstance(stated, str) and stated:
        return stated
    if folder is not None:
        return str(folder)
    if "--" in model_id:
        return model_id.replace("--", "/", 1)
    places = ", ".join(map(str, model_folders(settings)))
    raise AppError(
        f"model: got {typed!r}, expected the settings of {model_id} to lead to a folder; none of that name in {places}",
        hint="name the folder or the Hub id instead",
    )


def model_folders(settings: Settings) -> list[Path]:
    """Folders that hold models: those of oMLX's settings, else `models` in the base folder."""
    section = settings.shared.get("model")
    stated = section.get("model_dirs") if isinstance(section, Mapping) else None
    listed = [Path(item).expanduser() for item in stated if isinstance(item, str)] if isinstance(stated, list) else []
    return listed or [settings.base.models]


def _local_folder(settings: Settings, model_id: str) -> Path | None:
    """A model folder of that name, one or two levels down."""
    for root in model_folders(settings):
        for folder in (root, root / model_id, *sorted(root.glob(f"*/{_escaped(model_id)}"))):
            if folder.name == model_id and (folder / "config.json").is_file():
                return folder
    return None


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)

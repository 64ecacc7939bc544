"""`dflash2-mlx settings`: show and change what is configured, in oMLX's files and words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console.output import Output
from ..errors import AppError, UsageError
from .options import BasePath

if TYPE_CHECKING:
    from ..settings.names import Named
    from ..settings.resolve import Effective
    from ..settings.store import Settings, Store

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a Hub id, or a configured name")]
ProfileArgument = Annotated[str, typer.Argument(metavar="NAME")]
Base = Annotated[Path | None, BasePath]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object")]

settings = typer.Typer(
    help="Show and change what is configured per model, in oMLX's files and words.", no_args_is_help=True
)
profile = typer.Typer(help="Named sets of settings of a model.", no_args_is_help=True)
settings.add_typer(profile, name="profile")


def _store(base_path: Path | None) -> Store:
    from ..settings.paths import find_base
    from ..settings.store import Store

    return Store(find_base(base_path))


@settings.command()
def show(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="One model; all without")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from")] = False,
    json: Json = False,
    base_path: Base = None,
) -> None:
    """Show the settings of one model, or which models have any."""
    from . import settings_view as view

    found = _store(base_path).load()
    with Output() as out:
        for note in found.notes:
            out.note(note)
        if model is None:
            if origin:
                raise UsageError("--origin: got it without a model, expected MODEL as well")
            _print(out, view.overview(found) if json else view.overview_lines(found))
            return
        named, effective, outlook = _look(found, model)
        for note in [*outlook["notes"], *(f"not used: {problem}" for problem in effective.problems)]:
            out.note(note)
        form = view.model_object if json else view.model_lines
        _print(out, form(found, named, effective, outlook, origins=origin))


def _print(out: Output, shown: dict[str, Any] | list[str]) -> None:
    if isinstance(shown, dict):
        out.json(shown)
    else:
        out.data("\n".join(shown) + "\n")


def _look(found: Settings, model: str) -> tuple[Named, Effective, dict[str, Any]]:
    """One model's settings, and what they lead to."""
    from ..engine.setup import outlook
    from ..settings.names import find_model

    named = find_model(found, model)
    effective, plan, notes = outlook(found, named, os.environ)
    shown = {
        "target": plan.target,
        "drafter": plan.drafter,
        "dflash_requested": plan.requested,
        "dflash_fallback_reason": plan.fallback_reason,
        "notes": notes,
    }
    return named, effective, shown


@settings.command("set")
def set_(
    model: ModelArgument,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="As in dflash_block_size=5")],
    base_path: Base = None,
) -> None:
    """Change settings of a model; `KEY=null` goes back to the default."""
    from ..manage.checks import check_values
    from ..settings.names import check_new, find_model
    from ..settings.store import parse_assignments

    given = parse_assignments(values)
    store = _store(base_path)
    found = store.load()
    named = _own(find_model(found, model))
    check_new(found, named)
    checked = check_values(found, named, given)
    _save(store, found, named, checked.values, checked.notes)


@settings.command()
def unset(
    model: ModelArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="As in dflash_block_size")],
    base_path: Base = None,
) -> None:
    """Take settings of a model back to their defaults."""
    from ..settings.keys import find_key
    from ..settings.names import find_model

    names = [find_key(key).name for key in keys]
    store = _store(base_path)
    found = store.load()
    named = _own(find_model(found, model))
    if not named.known and not found.extra(named.model_id):
        raise AppError(f"model: got {model!r}, expected one that has settings (`dflash2-mlx settings show` lists them)")
    _save(store, found, named, dict.fromkeys(names), [])


@settings.command()
def preset(
    name: Annotated[str, typer.Argument(metavar="PRESET", help="dflash2: the announcement's setup")],
    model: ModelArgument,
    base_path: Base = None,
) -> None:
    """Set up a model for DFlash 2 as announced: drafter, quantization, block size, verify mode."""
    from ..manage.checks import PRESET, preset_values
    from ..settings.names import check_new, find_model

    if name != PRESET:
        raise UsageError(f"preset: got {name!r}, expected {PRESET}")
    store = _store(base_path)
    found = store.load()
    named = _own(find_model(found, model))
    check_new(found, named)
    checked = preset_values(found, named)
    _save(store, found, named, checked.values, checked.notes)


@settings.command()
def recover(base_path: Base = None) -> None:
    """Keep settings files that cannot be read under another name, so that new ones can be written."""
    from ..manage.changes import recover as set_aside

    moved = set_aside(_store(base_path))
    with Output() as out:
        out.data("\n".join(moved or ["every file can be read: nothing to do"]) + "\n")


def _own(named: Named) -> Named:
    if named.profile is not None:
        raise UsageError(
            f"model: got {named.typed!r} and its profile {named.profile!r}, expected the model alone ({named.model_id})"
        )
    return named


def _save(store: Store, found: Settings, named: Named, values: dict[str, Any], notes: list[str]) -> None:
    from ..engine.setup import outlook
    from ..manage.changes import consequences, omlx_note
    from ..settings.names import is_folder
    from .settings_view import assignment_line

    source = str(Path(named.typed).expanduser().resolve()) if is_folder(named.typed) else None
    store.set_values(named.model_id, values, source=source)
    with Output() as out:
        out.data(f"{named.model_id}\n")
        for name, value in values.items():
            out.data(f"  {assignment_line(name, value)}\n")
        effective, plan, told = outlook(store.load(), named, os.environ)
        for note in [*notes, *consequences(values, effective, plan, told), *omlx_note(found)]:
            out.note(note)


@profile.command("list")
def list_(model: ModelArgument, json: Json = False, base_path: Base = None) -> None:
    """List the profiles of a model."""
    from ..settings.names import find_model
    from ..settings.profiles import is_modified, profiles_of
    from ..settings.store import ACTIVE_PROFILE

    found = _store(base_path).load()
    named = find_model(found, model)
    profiles = profiles_of(found, named.model_id)
    active = found.record(named.model_id).get(ACTIVE_PROFILE)
    modified = is_modified(found, named.model_id)
    with Output() as out:
        if json:
            out.json({"model": named.model_id, "active": active, "modified": modified, "profiles": dict(profiles)})
            return
        marks = {active: " (active, modified)" if modified else " (active)"}
        lines = [f"{name}{marks.get(name, '')}" for name in profiles]
        out.data("\n".join(lines or [f"{named.model_id} has no profiles"]) + "\n")


@profile.command("show")
def show_profile(
    model: ModelArgument,
    name: ProfileArgument,
    json: Json = False,
    base_path: Base = None,
) -> None:
    """Show what a profile holds."""
    from ..settings.keys import KEYS
    from ..settings.names import find_model
    from ..settings.profiles import profile_named, profile_values
    from .settings_view import assignment_line

    found = _store(base_path).load()
    held = profile_named(found, find_model(found, model).model_id, name)
    with Output() as out:
        if json:
            out.json(dict(held))
            return
        for key, value in profile_values(held).items():
            out.data(f"{assignment_line(key, value)}\n" if key in KEYS else f"{key:34} {value}\n")


def _change_profile(
    model: str, base_path: Path | None, name: str, done: str, change: Callable[[Store, str], object]
) -> None:
    """Change a profile of a model and say what was done."""
    from ..manage.changes import omlx_note
    from ..settings.names import find_model

    store = _store(base_path)
    found = store.load()
    named = _own(find_model(found, model))
    change(store, named.model_id)
    with Output() as out:
        out.data(f"{named.model_id}: profile {name} {done}\n")
        for note in omlx_note(found):
            out.note(note)


@profile.command("save")
def save_profile(model: ModelArgument, name: ProfileArgument, base_path: Base = None) -> None:
    """Keep the model's present settings under a name."""
    from ..settings import profiles

    _change_profile(model, base_path, name, "saved", lambda store, owner: profiles.save_profile(store, owner, name))


@profile.command("apply")
def apply_profile(model: ModelArgument, name: ProfileArgument, base_path: Base = None) -> None:
    """Give the model the settings of a profile."""
    from ..settings import profiles

    _change_profile(model, base_path, name, "applied", lambda store, owner: profiles.apply_profile(store, owner, name))


@profile.command("remove")
def remove_profile(model: ModelArgument, name: ProfileArgument, base_path: Base = None) -> None:
    """Forget a profile; the model keeps its settings."""
    from ..settings import profiles

    _change_profile(model, base_path, name, "removed", lambda store, owner: profiles.remove_profile(store, owner, name))


@profile.command("rename")
def rename_profile(
    model: ModelArgument,
    name: ProfileArgument,
    new: Annotated[str, typer.Argument(metavar="NEW")],
    base_path: Base = None,
) -> None:
    """Call a profile something else."""
    from ..settings import profiles

    done = f"renamed to {new}"
    _change_profile(model, base_path, name, done, lambda store, owner: profiles.rename_profile(store, owner, name, new))


@profile.command("expose")
def expose_profile(
    model: ModelArgument,
    name: ProfileArgument,
    api_name: Annotated[
        str | None,
        typer.Option("--as", metavar="API_NAME", help="What stands behind the colon (NAME without)"),
    ] = None,
    base_path: Base = None,
) -> None:
    """Have `serve` offer a profile as a model of its own, MODEL:API_NAME."""
    from ..settings import profiles

    def change(store: Store, owner: str) -> None:
        profiles.expose_profile(store, owner, name, exposed=True, api_name=api_name)

    _change_profile(model, base_path, name, "exposed", change)


@profile.command("hide")
def hide_profile(model: ModelArgument, name: ProfileArgument, base_path: Base = None) -> None:
    """No longer offer a profile as a model of its own; the model keeps it."""
    from ..settings import profiles

    def change(store: Store, owner: str) -> None:
        profiles.expose_profile(store, owner, name, exposed=False)

    _change_profile(model, base_path, name, "hidden", change)

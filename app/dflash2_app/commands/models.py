"""`dflash2-mlx models`: what is on this machine and on the Hub, and taking it out again (`pull` has its own file)."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from ..console.output import Output, is_terminal
from ..errors import AppError, UsageError
from .models_pull import pull
from .options import DEFAULT_CONTEXT, BaseFolder, Context, Json, ModelName, valued
from .parsers import filled, integer, one_of

SORT_NAMES = ("trending", "downloads", "likes", "created", "updated")  # the keys of models.hub.SORTS


_KINDS = ("all", "target", "drafter", "other")


_chosen = valued("Selection")

models = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Find, fetch, check and remove models; one store, the Hub cache."
)

ModelNames = Annotated[list[str], typer.Argument(metavar="MODEL", help="Hub ids like owner/name", parser=filled)]


@models.command("list")
def list_models(
    kind: Annotated[str, _chosen("--kind", "|".join(_KINDS), "Only these", one_of(*_KINDS))] = "all",
    context: Context = DEFAULT_CONTEXT,
    base_path: BaseFolder = None,
    json: Json = False,
) -> None:
    """Show the models on this machine: the Hub cache and the configured folders."""
    with Output() as out:
        out.status("looking through the models")
        from ..manage.listing import listed
        from ..models.discover import discover
        from ..models.places import find_places

        places = find_places(base_path)
        found = discover(places)
        chosen = [model for model in found.models if kind in ("all", model.facts.kind)]
        shown = [listed(model, context) for model in chosen]
        for note in found.notes:
            out.note(note)
        if json:
            own = [str(folder) for folder in places.folders]
            out.json({"models": shown, "notes": found.notes, "hub_cache": str(places.hub_cache), "folders": own})
            return
        _print_list(out, shown)
        if not shown:
            folders = ", ".join(str(folder) for folder in (places.hub_cache, *places.folders))
            out.info(f"no models in {folders}; `dflash2-mlx models search` finds some")


def _print_list(out: Output, shown: list[dict[str, Any]]) -> None:
    from ..models.pull import gigabytes
    from .models_view import show_table

    headers = ("model", "kind", "family", "weights", "size", "drafter", "fits")
    rows = [
        (
            item["name"], item["kind"], item["family"], item["quantization"] or "full", gigabytes(item["size_bytes"]),
            _drafter_cell(item), _fits_cell(item["memory"]),
        )
        for item in shown
    ]  # fmt: skip
    show_table(out, headers, rows)
    for item in shown:
        if item["problem"]:
            out.note(f"{item['name']}: {item['problem']}")


def _drafter_cell(item: dict[str, Any]) -> str | None:
    if item["drafter"] is None:
        return None
    return item["drafter"] + ("" if item["drafter_is_here"] else " (not here)")


def _fits_cell(memory: dict[str, Any] | None) -> str | None:
    if memory is None or memory["fits"] is None:
        return None
    if memory["fits"]:
        return "yes"
    return f"up to {memory['longest_context']} tokens" if memory["longest_context"] else "no"


@models.command("search")
def search(
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Words of the name", show_default=False)] = None,
    author: Annotated[str | None, _chosen("--author", "NAME", "Only of this owner", filled)] = None,
    tag: Annotated[list[str] | None, _chosen("--tag", "TAG", "Only with this tag; repeatable", filled)] = None,
    any_format: Annotated[
        bool, typer.Option("--any-format", help="Also models not marked for MLX", rich_help_panel="Selection")
    ] = False,
    sort: Annotated[str, _chosen("--sort", "|".join(SORT_NAMES), "Best first by", one_of(*SORT_NAMES))] = "downloads",
    limit: Annotated[int, _chosen("--limit", "N", "Most lines", integer(1, 1000))] = 20,
    json: Json = False,
) -> None:
    """Search the Hub for models that MLX can read."""
    with Output() as out:
        from ..models import hub
        from .models_view import show_table

        out.status(f"asking {hub.endpoint()}")
        tags = [*(tag or ()), *([] if any_format else ["mlx"])]
        found = hub.search(text, author=author, tags=tags, sort=sort, limit=limit)
        if json:
            out.json({"models": [dataclasses.asdict(item) for item in found], "endpoint": hub.endpoint()})
            return
        rows = [
            (item.repo_id, item.downloads, item.likes, item.updated, item.license, "asks first" if item.gated else "")
            for item in found
        ]
        show_table(out, ("model", "downloads", "likes", "updated", "licence", "gated"), rows)
        if not found:
            out.info("nothing found" + ("" if any_format else "; --any-format also shows models not marked for MLX"))


@models.command("info")
def info(
    model: ModelName, context: Context = DEFAULT_CONTEXT, base_path: BaseFolder = None, json: Json = False
) -> None:
    """Show one model: what it is, what it takes, and whether it fits this machine."""
    with Output() as out:
        out.status(f"looking for {model}")
        from ..manage.details import facts_of, look
        from ..models.discover import discover
        from ..models.places import find_places

        looked = look(model, discover(find_places(base_path)).find(model))
        for note in looked.notes:
            out.note(note)
        facts = facts_of(looked, context)
        if json:
            out.json(facts)
        else:
            _print_info(out, facts)


models.command("pull")(pull)


@models.command("remove")
def remove(
    model: ModelNames,
    revision: Annotated[
        str | None, _chosen("--revision", "COMMIT", "Only this commit, or its beginning", filled)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    json: Json = False,
) -> None:
    """Remove models from the Hub cache; files that another commit needs stay."""
    with Output() as out:
        from ..models.pull import gigabytes
        from ..models.remove import execute, plan_removal

        if revision is not None and len(model) > 1:
            raise UsageError(f"--revision: got it with {len(model)} models, expected one")
        plans = [plan_removal(name, revision) for name in dict.fromkeys(model)]
        names = ", ".join(planned.repo.repo_id for planned in plans)
        freed = sum(planned.size for planned in plans)
        if not yes:
            _ask(f"remove {names} ({gigabytes(freed)})?")
        for planned in plans:
            execute(planned)
        if json:
            removed = [{"name": one.repo.repo_id, "commits": one.commits, "freed_bytes": one.size} for one in plans]
            out.json({"removed": removed, "freed_bytes": freed})
        else:
            out.info(f"removed {names}: {gigabytes(freed)} are free again")


def _ask(question: str) -> None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageError("--yes: got no terminal to ask on, expected --yes")
    # Not typer.confirm, which makes one exception of Ctrl-C and Ctrl-D.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise AppError("nothing was removed")


@models.command("verify")
def verify(
    model: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Hub ids like owner/name; none checks all", show_default=False),
    ] = None,
    delete_damaged: Annotated[
        bool, typer.Option("--delete-damaged", help="Delete files with a wrong checksum: `pull` then fetches them")
    ] = False,
    json: Json = False,
) -> None:
    """Read models in the Hub cache and compare sizes and checksums."""
    with Output() as out:
        from ..manage.listing import hub_hashes
        from ..models import verify as checks
        from ..models.cache import cached_repos
        from ..models.pull import gigabytes

        names = model or [repo.repo_id for repo in cached_repos() if repo.current() is not None]
        results, deleted = [], 0
        for name in names:

            def told(file: str, done: int, size: int, name: str = name) -> None:
                out.status(f"{name}  {file}  {100 * done // max(size, 1)} %")

            result = checks.verify(name, told, hub_hashes(name))
            results.append(result)
            if not json:
                state = "good" if result.good else "damaged"
                out.data(f"{name}\t{state}\t{result.files} files\t{gigabytes(result.size)}\n")
            for bad in result.bad:
                out.note(f"{name}: {bad.name}: {bad.problem}")
            if result.unknown:
                out.note(f"{name}: got no checksum for {', '.join(result.unknown)}: sizes and hashes are not compared")
            if delete_damaged and not result.good:
                deleted += checks.delete_damaged(result)
        if json:
            out.json({"models": [result.to_dict() for result in results], "deleted_files": deleted})
        damaged = [result.repo_id for result in results if not result.good]
        if damaged:
            raise AppError(
                f"{', '.join(damaged)}: damaged or incomplete" + (f"; {deleted} files were deleted" if deleted else ""),
                hint=("" if delete_damaged else "--delete-damaged removes wrong files; ")
                + "`dflash2-mlx models pull` fetches what is missing",
            )


def _print_info(out: Output, facts: dict[str, Any]) -> None:
    from ..models.pull import gigabytes
    from .models_view import show_facts

    size, left = facts["size_bytes"], facts["download_bytes"]
    show_facts(
        out,
        [
            ("model", facts["name"]),
            ("kind", facts["kind"]),
            ("family", facts["family"]),
            ("weights", None if facts["kind"] in ("other", "unknown") else facts["quantization"] or "full"),
            ("context", facts["context_length"]),
            ("block size", facts["block_size"]),
            ("size", None if size is None else gigabytes(size)),
            ("to fetch", None if left is None else (gigabytes(left) if left else "nothing, it is here")),
            ("path", facts["path"]),
            ("licence", facts["license"]),
            ("gated", "its owner asks for an agreement before download" if facts["gated"] else None),
            ("updated", facts["updated"]),
            ("newer", "the Hub has a newer commit; `models pull` fetches it" if facts["newer_on_hub"] else None),
            ("drafter", facts["drafter"] and f"{facts['drafter']} ({facts['drafter_reason']})"),
            ("memory", facts["memory_text"]),
            ("problem", facts["problem"]),
        ],
    )

"""`dflash2-mlx models pull`: a target and its drafter, from the Hub into the cache."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

from ..console.output import Output
from .options import DEFAULT_CONTEXT, Context, Json, ModelName, valued
from .parsers import filled

if TYPE_CHECKING:
    from ..manage.fetching import Asked

_chosen = valued("Selection")


def pull(
    model: ModelName,
    drafter: Annotated[
        str | None,
        _chosen("--drafter", "ID|none", "Its drafter; none fetches the target alone", filled, default="the one known"),
    ] = None,
    context: Context = DEFAULT_CONTEXT,
    json: Json = False,
) -> None:
    """Fetch a target and its drafter; an interrupted pull goes on where it stood."""
    with Output() as out:
        from ..manage.fetching import terms

        asked = _ask(model, drafter, out)
        target = asked[0]
        for one in asked:
            for note in terms(one.page):
                out.note(note)
        if target.facts.kind == "target":
            _tell_fit(asked, context, out)
        shown = _fetch(asked, out, json)
        if json:
            out.json({"models": shown})


def fetch_pair(target: str, drafter: str, out: Output) -> None:
    """Fetch a target and a drafter that belong together.

    Raises:
        AppError: one line, such as for a gated repository or too little room on disk.
    """
    _fetch(_ask(target, drafter, out), out, json=True)


def _ask(model: str, drafter: str | None, out: Output) -> list[Asked]:
    """The repositories to be fetched, looked at on the Hub."""
    from ..manage.fetching import ask_pair

    asked, notes = ask_pair(model, drafter, tell=out.status)
    for note in notes:
        out.note(note)
    return asked


def _tell_fit(asked: list[Asked], context: int, out: Output) -> None:
    from ..models.memory import check_fit, needs, what_fits

    fit = check_fit(asked[0].config, asked[1].config if len(asked) > 1 else None, context)
    if fit.fits is False:
        out.note(f"{asked[0].page.repo_id} does not fit this machine: {needs(fit)}; {what_fits(fit)}")


def _fetch(asked: list[Asked], out: Output, json: bool) -> list[dict[str, Any]]:
    from ..models.pull import check_disk, gigabytes, plan
    from ..models.pull import pull as fetch_all
    from .models_view import PullView

    plans = [plan(one.page) for one in asked]
    missing = [one.missing for one in plans]
    check_disk(plans)
    for one, left in zip(plans, missing, strict=True):
        begun = sum(job.file.size for job in one.jobs) - left
        state = f"{gigabytes(left)} of {gigabytes(one.size)} to fetch" if one.jobs else "everything is here"
        out.info(f"{one.page.repo_id}: {state}" + (f", going on after {gigabytes(begun)}" if begun else ""))
    try:
        with PullView(out, [job for one in plans for job in one.jobs]) as view:
            folders = fetch_all(plans, view, threading.Event())
    except KeyboardInterrupt:
        out.note("stopped; what has come is kept: the same command goes on from there")
        raise
    shown = []
    for one, left, folder in zip(plans, missing, folders, strict=True):
        shown.append({
            "name": one.page.repo_id, "commit": one.page.commit, "path": str(folder), "size_bytes": one.size,
            "fetched_bytes": left, "license": one.page.license,
        })  # fmt: skip
        if not json:
            out.data(f"{one.page.repo_id}\t{folder}\n")
    return shown

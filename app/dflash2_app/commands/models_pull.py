"""`dflash2-mlx models pull`: a target and its drafter, from the Hub into the cache."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import AppError, UsageError
from ..output import Output
from .models_options import DEFAULT_CONTEXT, Context, Json, ModelName
from .options import NO_DRAFTER, valued
from .parsers import filled

if TYPE_CHECKING:
    import dflash2_mlx as d2

    from ..models.hub import Page

_chosen = valued("Selection")


@dataclass(frozen=True)
class _Asked:
    """One repository: its page on the Hub, its config and what that says."""

    page: Page
    config: Mapping[str, Any]
    facts: d2.ModelFacts


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
        target = _ask(model, out)
        asked = [target, *_drafter(target, drafter, out)]
        for one in asked:
            _tell_terms(one.page, out)
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
    asked = _ask(target, out)
    _fetch([asked, *_drafter(asked, drafter, out)], out, json=True)


def _ask(repo_id: str, out: Output) -> _Asked:
    """Look at a repository on the Hub; what cannot be used here is refused before it is fetched."""
    from ..models import hub
    from ..models.cache import is_hub_id

    if not is_hub_id(repo_id):
        raise UsageError(f"MODEL: got {repo_id!r}, expected a Hub id like owner/name")
    out.status(f"asking {hub.endpoint()} about {repo_id}")
    page = hub.read_page(repo_id)
    from ..models.pull import wanted

    wanted(page)  # refuses what has no weights MLX reads
    config = hub.read_config(page) or {}
    import dflash2_mlx as d2

    facts = d2.describe_config(config)
    if facts.reason is not None:
        raise AppError(f"{repo_id}: {facts.reason}", hint="it could not be loaded here, so it is not fetched")
    return _Asked(page, config, facts)


def _drafter(target: _Asked, named: str | None, out: Output) -> list[_Asked]:
    """The drafter that comes along: the one named, else the one known for this target, else none."""
    from ..models.suggestions import drafter_for

    name = target.page.repo_id
    if target.facts.kind != "target":
        if named not in (None, NO_DRAFTER):
            raise UsageError(f"--drafter: got {named!r}, expected none: {name} is a drafter itself")
        return []
    if named == NO_DRAFTER:
        return []
    if named is None:
        known = drafter_for(name, target.config)
        if known is None:
            out.note(f"no drafter is known for {name}: it decodes plainly; --drafter names one")
            return []
        out.note(f"with it comes {known.repo_id}: {known.reason}")
        named = known.repo_id
    import dflash2_mlx as d2

    drafter = _ask(named, out)
    if drafter.facts.kind != "drafter":
        raise AppError(f"{named}: got a target, expected a drafter")
    try:
        d2.check_pair(d2.DrafterConfig.from_dict(drafter.config), target.config)
    except d2.PairError as error:
        raise AppError(f"{named} for {name}: {error}", hint="a drafter works with the target it was made for") from None
    return [drafter]


def _tell_terms(page: Page, out: Output) -> None:
    from ..models.suggestions import is_non_commercial

    if is_non_commercial(page.license):
        out.note(f"{page.repo_id}: its licence is {page.license}: not for commercial use")
    elif page.license is None:
        out.note(f"{page.repo_id}: its page names no licence")


def _tell_fit(asked: list[_Asked], context: int, out: Output) -> None:
    from ..models.memory import check_fit, needs, what_fits

    fit = check_fit(asked[0].config, asked[1].config if len(asked) > 1 else None, context)
    if fit.fits is False:
        out.note(f"{asked[0].page.repo_id} does not fit this machine: {needs(fit)}; {what_fits(fit)}")


def _fetch(asked: list[_Asked], out: Output, json: bool) -> list[dict[str, Any]]:
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

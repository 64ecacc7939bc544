"""One model from this machine and the Hub together: what `models info` and the web app's card show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dflash2_mlx as d2

from ..errors import AppError, UsageError
from ..models import hub, registry
from ..models.cache import is_hub_id
from ..models.discover import LocalModel, local_config
from ..models.hub import Page
from ..models.memory import DEFAULT_CONTEXT, Fit, check_fit, needs, what_fits
from ..models.pull import RepoPlan, plan


@dataclass(frozen=True)
class Looked:
    """What was found of one model; `config` is None where nobody may read it, `problem` says what is wrong."""

    name: str
    local: LocalModel | None
    page: Page | None
    config: Mapping[str, Any] | None
    problem: str | None = None
    notes: tuple[str, ...] = ()


def look(name: str, local: LocalModel | None) -> Looked:
    """Ask the Hub as well; what is here can be shown without it.

    Raises:
        UsageError: a name that is neither here nor the Hub's.
        HubError: it is not here, and the Hub does not tell.
    """
    here = None if local is None else local.config
    if not is_hub_id(name):
        if local is None:
            raise UsageError(f"MODEL: got {name!r}, expected a Hub id, or a model that `models list` shows")
        return Looked(name, local, None, here, local.problem)
    try:
        page = hub.read_page(name)
    except hub.HubError as error:
        if local is None:
            raise
        alone = f"shown from this machine alone: {error}"
        return Looked(name, local, None, here, local.problem, (alone,))
    if local is not None:
        return Looked(name, local, page, here, local.problem)
    try:
        return Looked(name, None, page, hub.read_config(page))
    except hub.HubError as error:
        return Looked(name, None, page, None, str(error))


def facts_of(looked: Looked, context: int = DEFAULT_CONTEXT) -> dict[str, Any]:
    """Plain JSON; may ask the Hub for the config of the drafter that is suggested."""
    page, local, config = looked.page, looked.local, looked.config
    described = None if config is None else d2.describe_config(config)
    problem = looked.problem or (described.reason if described else None)
    planned: RepoPlan | None = None
    if page is not None and problem is None:
        try:
            planned = plan(page)
        except AppError as error:
            problem = str(error)
    suggested, fit = None, None
    if config is not None and described is not None and described.kind == "target":
        suggested = registry.drafter_for(looked.name, config)
        fit = check_fit(config, _config_anywhere(suggested.repo_id) if suggested else None, context)
    return {
        "name": looked.name,
        **(described or d2.ModelFacts("unknown")).to_dict(),
        "size_bytes": local.size if local else (planned.size if planned else None),
        "download_bytes": planned.missing if planned else None,
        "path": str(local.path) if local else None,
        "problem": problem,
        "license": page.license if page else None,
        "gated": page.gated if page else None,
        "updated": page.updated if page else None,
        "downloads": page.downloads if page else None,
        "likes": page.likes if page else None,
        "commit": page.commit if page else None,
        "newer_on_hub": None if page is None or local is None else page.commit != local.path.name,
        "drafter": suggested.repo_id if suggested else None,
        "drafter_reason": suggested.reason if suggested else None,
        "memory": fit.to_dict() if fit else None,
        "memory_text": _memory_text(fit),
    }


def _memory_text(fit: Fit | None) -> str | None:
    if fit is None:
        return None
    return needs(fit) + (f"; {what_fits(fit)}" if fit.fits is False else "")


def _config_anywhere(repo_id: str) -> Any:
    """A drafter's config from this machine, else from the Hub; None when neither has it."""
    config = local_config(repo_id)
    if config is not None:
        return config
    try:
        return hub.read_config(hub.read_page(repo_id))
    except hub.HubError:
        return None

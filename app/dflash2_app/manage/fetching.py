"""Before a download: what is asked of the Hub, which drafter comes along, and the terms to tell.

Owns: the refusals that come before the first byte. The bytes are `models.pull`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dflash2_mlx as d2

from ..errors import AppError, UsageError
from ..models import hub, registry
from ..models.cache import is_hub_id
from ..models.hub import Page
from ..models.pull import wanted

NO_DRAFTER = "none"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """One repository: its page on the Hub, its config and what that says."""

    page: Page
    config: Mapping[str, Any]
    facts: d2.ModelFacts


def ask_pair(repo_id: str, drafter: str | None, *, tell: Tell = lambda _: None) -> tuple[list[Asked], list[str]]:
    """What is to be fetched, the model first, and notes for the user.

    Args:
        drafter: a Hub id, "none" for the model alone, None for the drafter that is known for it, if any.
        tell: is told what is going on.
    Raises:
        UsageError, AppError: one line; it could not be used here, or the Hub refuses.
    """
    model = ask(repo_id, tell)
    if model.facts.kind != "target":
        if drafter not in (None, NO_DRAFTER):
            raise UsageError(f"--drafter: got {drafter!r}, expected none: {repo_id} is a drafter itself")
        return [model], []
    if drafter == NO_DRAFTER:
        return [model], []
    notes = []
    if drafter is None:
        known = registry.drafter_for(repo_id, model.config)
        if known is None:
            return [model], [f"no drafter is known for {repo_id}: it decodes plainly; --drafter names one"]
        notes.append(f"with it comes {known.repo_id}: {known.reason}")
        drafter = known.repo_id
    return [model, _drafter_of(model, drafter, tell)], notes


def ask(repo_id: str, tell: Tell) -> Asked:
    """Look at a repository on the Hub; what cannot be used here is refused before it is fetched."""
    if not is_hub_id(repo_id):
        raise UsageError(f"MODEL: got {repo_id!r}, expected a Hub id like owner/name")
    tell(f"asking {hub.endpoint()} about {repo_id}")
    page = hub.read_page(repo_id)
    wanted(page)  # refuses what has no weights MLX reads
    config = hub.read_config(page) or {}

    facts = d2.describe_config(config)
    if facts.reason is not None:
        raise AppError(f"{repo_id}: {facts.reason}", hint="it could not be loaded here, so it is not fetched")
    return Asked(page, config, facts)


def _drafter_of(target: Asked, name: str, tell: Tell) -> Asked:
    drafter = ask(name, tell)
    if drafter.facts.kind != "drafter":
        raise AppError(f"{name}: got a target, expected a drafter")
    try:
        d2.check_pair(d2.DrafterConfig.from_dict(drafter.config), target.config)
    except d2.PairError as error:
        hint = "a drafter works with the target it was made for"
        raise AppError(f"{name} for {target.page.repo_id}: {error}", hint=hint) from None
    return drafter


def terms(page: Page) -> list[str]:
    """What a person should know of a repository's licence before it is fetched."""
    if registry.is_non_commercial(page.license):
        return [f"{page.repo_id}: its licence is {page.license}: not for commercial use"]
    return [f"{page.repo_id}: its page names no licence"] if page.license is None else []

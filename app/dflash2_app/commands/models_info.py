"""`dflash2-mlx models info`: one model, from this machine and the Hub together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import AppError, UsageError
from ..output import Output
from .models_options import DEFAULT_CONTEXT, BasePath, Context, Json, ModelName

if TYPE_CHECKING:
    from ..models.discover import LocalModel
    from ..models.hub import Page
    from ..models.memory import Fit


def info(model: ModelName, context: Context = DEFAULT_CONTEXT, base_path: BasePath = None, json: Json = False) -> None:
    """Show one model: what it is, what it takes, and whether it fits this machine."""
    with Output() as out:
        out.status(f"looking for {model}")
        from ..models.discover import discover
        from ..models.places import find_places

        found = discover(find_places(base_path))
        local = found.find(model)
        facts = _facts(_look(model, local, out), context)
        if json:
            out.json(facts)
        else:
            _print_info(out, facts)


@dataclass(frozen=True)
class _Looked:
    """What was found of one model; `config` is None where nobody may read it, `problem` says what is wrong."""

    name: str
    local: LocalModel | None
    page: Page | None
    config: Mapping[str, Any] | None
    problem: str | None = None


def _look(name: str, local: LocalModel | None, out: Output) -> _Looked:
    """Ask the Hub as well; what is here can be shown without it."""
    from ..models import hub
    from ..models.cache import is_hub_id

    here = None if local is None else local.config
    if not is_hub_id(name):
        if local is None:
            raise UsageError(f"MODEL: got {name!r}, expected a Hub id, or a model that `models list` shows")
        return _Looked(name, local, None, here, local.problem)
    try:
        page = hub.read_page(name)
    except hub.HubError as error:
        if local is None:
            raise
        out.note(f"shown from this machine alone: {error}")
        return _Looked(name, local, None, here, local.problem)
    if local is not None:
        return _Looked(name, local, page, here, local.problem)
    try:
        return _Looked(name, None, page, hub.read_config(page))
    except hub.HubError as error:
        return _Looked(name, None, page, None, str(error))


def _facts(looked: _Looked, context: int) -> dict[str, Any]:
    import dflash2_mlx as d2

    from ..models.memory import check_fit
    from ..models.pull import RepoPlan, plan
    from ..models.suggestions import drafter_for

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
        suggested = drafter_for(looked.name, config)
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
    from ..models.memory import needs, what_fits

    if fit is None:
        return None
    return needs(fit) + (f"; {what_fits(fit)}" if fit.fits is False else "")


def _config_anywhere(repo_id: str) -> Any:
    """A drafter's config from this machine, else from the Hub; None when neither has it."""
    from ..models import hub
    from ..models.discover import local_config

    config = local_config(repo_id)
    if config is not None:
        return config
    try:
        return hub.read_config(hub.read_page(repo_id))
    except hub.HubError:
        return None


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

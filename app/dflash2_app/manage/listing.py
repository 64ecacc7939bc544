"""One model of this machine as a line of a list: what it is, its drafter, and whether the two fit.

Owns: the facts that `models list` and the web app's table share. Reads configs, never weights.
"""

from __future__ import annotations

from typing import Any

from ..models import hub, registry
from ..models.cache import cached_repo
from ..models.discover import LocalModel, local_config
from ..models.memory import DEFAULT_CONTEXT, check_fit


def listed(model: LocalModel, context: int = DEFAULT_CONTEXT) -> dict[str, Any]:
    """Plain JSON; `context` is what the memory estimate is for, in tokens."""
    suggested = registry.drafter_for(model.name, model.config) if model.facts.kind == "target" else None
    fit = None
    if model.facts.kind == "target":
        fit = check_fit(model.config, local_config(suggested.repo_id) if suggested else None, context)
    return {
        "name": model.name,
        "id": model.model_id,
        "source": model.source,
        "path": str(model.path),
        **model.facts.to_dict(),
        "size_bytes": model.size,
        "drafter": suggested.repo_id if suggested else None,
        "drafter_is_here": suggested is not None and local_config(suggested.repo_id) is not None,
        "memory": None if fit is None else fit.to_dict(),
        "problem": model.problem,
    }


def hub_hashes(name: str) -> dict[str, str] | None:
    """Hashes from the Hub, asked only for a cache without links, whose file names do not say them."""
    folder = cached_repo(name).current()
    if folder is None or all(path.is_symlink() for path in folder.iterdir() if path.is_file()):
        return None
    try:
        page = hub.read_page(name)
    except hub.HubError:
        return None
    return {file.name: file.etag for file in page.files} if page.commit == folder.name else None

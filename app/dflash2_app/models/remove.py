"""Taking models out of the Hub cache.

Owns: what a removal would free, and doing it. huggingface_hub decides which blobs no other revision needs. Folders of
the user's own are never touched.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AppError
from .cache import CachedRepo, cached_repo
from .places import hub_cache

if TYPE_CHECKING:
    from huggingface_hub import DeleteCacheStrategy


@dataclass(frozen=True)
class Removal:
    """What would go: commits, and bytes. Without a strategy the whole folder of a damaged or unfinished pull."""

    repo: CachedRepo
    commits: list[str]
    size: int
    strategy: DeleteCacheStrategy | None


def plan_removal(repo_id: str, commit: str | None = None) -> Removal:
    """What removing a repository, or one of its commits, would free.

    Raises:
        AppError: it is not in the cache, or has no such commit.
    """
    repo = cached_repo(repo_id)
    if not repo.folder.is_dir():
        raise AppError(
            f"{repo_id}: got no such model in {hub_cache()}, expected one of those `models list` shows",
            hint="folders of your own are yours to delete",
        )
    from huggingface_hub import scan_cache_dir

    scanned = scan_cache_dir(hub_cache())
    # Only this repository: a commit may lie in two of them, and deletion would take it out of either.
    mine = dataclasses.replace(scanned, repos=frozenset(one for one in scanned.repos if one.repo_path == repo.folder))
    commits = sorted(revision.commit_hash for one in mine.repos for revision in one.revisions)
    if commit is not None:
        chosen = [one for one in commits if one.startswith(commit)]
        if len(chosen) != 1:
            raise AppError(f"--revision: got {commit!r}, expected one of {', '.join(commits) or 'none'}")
        strategy = mine.delete_revisions(*chosen)
        return Removal(repo, chosen, strategy.expected_freed_size, strategy)
    if not commits:
        return Removal(repo, [], _folder_size(repo.folder), None)
    strategy = mine.delete_revisions(*commits)
    partial = sum(path.stat().st_size for path in repo.partials())
    return Removal(repo, commits, strategy.expected_freed_size + partial, strategy)


def execute(removal: Removal) -> None:
    """Remove what was planned.

    Raises:
        AppError: somebody is pulling it, or it is still there afterwards.
    """
    with removal.repo.locked():
        if removal.strategy is None:
            shutil.rmtree(removal.repo.folder, ignore_errors=True)
        else:
            removal.strategy.execute()
    left = [removal.repo.snapshot(commit) for commit in removal.commits] or [removal.repo.folder]
    for path in left:
        if path.exists():
            raise AppError(f"{path}: it could not be removed; is the disk writable?")


def _folder_size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())

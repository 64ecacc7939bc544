"""Whether what lies in the Hub cache is what the Hub gave.

Owns: comparing every file of a snapshot with the hash that is its blob's name, which needs no network, and the list of
weight files with what is there. Where links are impossible the hashes are asked of the Hub.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import AppError
from .cache import CachedRepo, cached_repo
from .discover import missing_weights
from .hub import HASH
from .transfer import file_hash


@dataclass(frozen=True)
class Bad:
    """One file that is not as it should be."""

    name: str
    problem: str


@dataclass(frozen=True)
class Verified:
    """The result for one snapshot; `unknown` are files whose hash is not known here."""

    repo_id: str
    commit: str
    files: int
    size: int
    bad: list[Bad]
    unknown: list[str]

    @property
    def good(self) -> bool:
        return not self.bad

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "good": self.good}


Watch = Callable[[str, int, int], None]


def verify(repo_id: str, watch: Watch, hashes: Mapping[str, str] | None = None) -> Verified:
    """Read every file of a repository's current snapshot.

    Args:
        watch: told (file, bytes read, bytes of the file).
        hashes: by file name, for a cache without links; else the names of the blobs say them.
    Raises:
        AppError: there is no snapshot.
    """
    repo = cached_repo(repo_id)
    folder = repo.current()
    if folder is None:
        interrupted = " (an interrupted pull)" if repo.partials() else ""
        raise AppError(
            f"{repo_id}: got no finished model in the cache{interrupted}, expected one",
            hint=f"`dflash2-mlx models pull {repo_id}` fetches it",
        )
    bad: list[Bad] = []
    unknown: list[str] = []
    count = total = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            continue
        if not path.exists():
            bad.append(Bad(name, f"got no file {path.readlink().name}, expected it among the blobs"))
            continue
        etag = _expected(repo, path) or (hashes or {}).get(name)
        size = path.stat().st_size
        count, total = count + 1, total + size
        if etag is None:
            unknown.append(name)
            continue

        def told(done: int, name: str = name, size: int = size) -> None:
            watch(name, done, size)

        with path.open("rb") as file:
            got = file_hash(file, size, etag, told)
        if got != etag:
            bad.append(Bad(name, f"got checksum {got}, expected {etag}"))
    missing = missing_weights(folder)
    if missing is not None:
        bad.append(Bad("weights", missing))
    return Verified(repo_id, folder.name, count, total, bad, unknown)


def _expected(repo: CachedRepo, path: Path) -> str | None:
    """The hash a file must have: the name of the blob it links to."""
    if not path.is_symlink():
        return None
    name = path.readlink().name
    return name if HASH.fullmatch(name) else None


def delete_damaged(result: Verified) -> int:
    """Delete files with a wrong checksum, so that the next pull fetches them; returns how many."""
    repo = cached_repo(result.repo_id)
    with repo.locked():
        found = [repo.snapshot(result.commit) / one.name for one in result.bad]
        damaged = [path for path in found if path.is_symlink()]
        for path in damaged:
            blob = path.parent / path.readlink()
            path.unlink()
            blob.unlink(missing_ok=True)
    return len(damaged)

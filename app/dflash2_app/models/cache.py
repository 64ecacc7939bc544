"""One repository in the Hub cache: where its files lie, and how finished ones become a snapshot.

Owns: the published layout (`blobs/<hash>`, `snapshots/<commit>/<file>` as links, `refs/<branch>`), shared with every
program that uses huggingface_hub. Invariant: a snapshot appears only when all its files are there and checked; what
is still coming lies in `blobs` as `<hash>.incomplete`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import AppError, UsageError
from .places import hub_cache

PARTIAL = ".incomplete"
_OURS = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\.incomplete")  # other programs put a random part in between
_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class CachedRepo:
    """A model repository's place in the cache; it need not exist."""

    repo_id: str
    folder: Path

    @property
    def blobs(self) -> Path:
        return self.folder / "blobs"

    @property
    def snapshots(self) -> Path:
        return self.folder / "snapshots"

    def blob(self, etag: str) -> Path:
        return self.blobs / etag

    def partial(self, etag: str) -> Path:
        return self.blobs / (etag + PARTIAL)

    def snapshot(self, commit: str) -> Path:
        return self.snapshots / commit

    def current(self) -> Path | None:
        """The snapshot of the main branch, else the newest one; None when there is none."""
        for branch in ("main", "master"):
            ref = self.folder / "refs" / branch
            if ref.is_file() and (found := self.snapshot(ref.read_text(encoding="utf-8").strip())).is_dir():
                return found
        every = [path for path in self.snapshots.glob("*") if path.is_dir()]
        return max(every, key=lambda path: path.stat().st_mtime, default=None)

    def partials(self) -> list[Path]:
        """Files of interrupted pulls."""
        return sorted(path for path in self.blobs.glob("*" + PARTIAL) if path.is_file())

    def publish(self, commit: str, etags: Mapping[str, str]) -> Path:
        """Make a snapshot of finished blobs (names to hashes), and the main branch point to it."""
        folder = self.snapshot(commit)
        left = Counter(etags.values())
        # The config comes last: without it nobody takes a folder for a model.
        for name, etag in sorted(etags.items(), key=lambda item: item[0] == "config.json"):
            left[etag] -= 1
            _link(self.blob(etag), folder / name, last=left[etag] == 0)
        ref = self.folder / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        fresh = ref.with_name(f"main.{os.getpid()}")
        fresh.write_text(commit, encoding="utf-8")
        fresh.replace(ref)
        for path in self.partials():
            if _OURS.fullmatch(path.name):
                path.unlink()  # of files that this commit no longer has
        return folder

    def has(self, commit: str, name: str, size: int, etag: str) -> bool:
        """Whether a checked file of this size is there already, as a blob or in the snapshot."""
        return any(
            path.is_file() and path.stat().st_size == size for path in (self.blob(etag), self.snapshot(commit) / name)
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the repository against a second pull or removal; a busy one is an error at once."""
        import filelock

        path = self.folder.parent / ".locks" / self.folder.name / "dflash2.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with filelock.FileLock(path, timeout=0):
                yield
        except filelock.Timeout:
            raise AppError(
                f"{self.repo_id}: another process is working on it", hint="wait for it, then run the command again"
            ) from None


def cached_repo(repo_id: str) -> CachedRepo:
    """The place of a Hub id.

    Raises:
        UsageError: not of the form owner/name.
    """
    if not is_hub_id(repo_id):
        raise UsageError(f"MODEL: got {repo_id!r}, expected a Hub id like owner/name")
    return CachedRepo(repo_id, hub_cache() / ("models--" + repo_id.replace("/", "--")))


def cached_repos() -> list[CachedRepo]:
    """All model repositories of the cache, by name."""
    folders = sorted(path for path in hub_cache().glob("models--*") if path.is_dir())
    return [CachedRepo(path.name.removeprefix("models--").replace("--", "/", 1), path) for path in folders]


def is_hub_id(text: str) -> bool:
    """Whether a text has the form owner/name."""
    return _ID.fullmatch(text) is not None and not text.startswith((".", "~")) and ".." not in text


def _link(blob: Path, pointer: Path, *, last: bool) -> None:
    pointer.parent.mkdir(parents=True, exist_ok=True)
    if pointer.exists():
        return
    if not blob.exists():  # a file system without links moved it to another name or snapshot
        raise AppError(f"{blob}: the file went away while it was being pulled")
    pointer.unlink(missing_ok=True)  # a link whose blob was deleted
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:  # no links here (an exFAT disk): files lie in the snapshot itself, as huggingface_hub does it
        if last:
            blob.replace(pointer)
        else:
            shutil.copyfile(blob, pointer)

"""Repositories in memory, with their history and what the Hub's pages say of them."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

LARGE = (".safetensors", ".bin", ".gguf")  # what a repository keeps in large-file storage


@functools.cache
def blob_id(content: bytes) -> str:
    """Git's name of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@functools.cache
def sha256(content: bytes) -> str:
    """What large-file storage calls it."""
    return hashlib.sha256(content).hexdigest()


@dataclass
class Repo:
    """One repository: its newest files last, and what its page says."""

    id: str
    history: list[dict[str, bytes]]
    gated: bool = False
    license: str | None = None
    tags: list[str] = field(default_factory=list)
    downloads: int = 0
    likes: int = 0
    last_modified: str = "2026-10-01T00:00:00.000Z"

    def commit(self, number: int = -1) -> str:
        names = "".join(f"{name}{sha256(content)}" for name, content in sorted(self.history[number].items()))
        return hashlib.sha1(f"{self.id}{names}".encode()).hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Commit and files of a branch or commit; None where there is no such revision."""
        if revision == "main":
            return self.commit(), self.history[-1]
        for number in range(len(self.history)):
            if self.commit(number) == revision:
                return revision, self.history[number]
        return None

    def config(self) -> dict[str, Any]:
        """What the page shows of `config.json`; nothing when it cannot be read."""
        try:
            return json.loads(self.history[-1].get("config.json", b""))
        except ValueError:
            return {}


def page_of(repo: Repo) -> dict[str, Any]:
    tags = [*repo.tags, *([f"license:{repo.license}"] if repo.license else [])]
    return {
        "id": repo.id, "modelId": repo.id, "author": repo.id.split("/")[0], "sha": repo.commit(), "private": False,
        "gated": "manual" if repo.gated else False, "disabled": False, "downloads": repo.downloads,
        "likes": repo.likes, "tags": tags, "lastModified": repo.last_modified, "createdAt": repo.last_modified,
        "trendingScore": repo.likes, "pipeline_tag": "text-generation", "library_name": "mlx",
        "cardData": {"license": repo.license} if repo.license else {},
    }  # fmt: skip


def sibling(name: str, content: bytes, blobs: bool) -> dict[str, Any]:
    if not blobs:
        return {"rfilename": name}
    found: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob_id(content)}
    if name.endswith(LARGE):
        found["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
    return found


def tree_entry(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": blob_id(content)}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
    return entry

"""A name for loaded models that changes whenever their numbers may.

Owns: what counts: the files of the weights, both configs, how they were loaded, and the versions that computed. Used
as the key of what is kept beyond a session, where a wrong match would be wrong text and a missed one only costs time.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

_SAMPLES = 8  # stretches of each weight file that are looked at
_STRETCH = 4096


def unique_fingerprint() -> str:
    """For models that did not come from files: equal to no other."""
    return f"unnamed-{uuid.uuid4().hex}"


def fingerprint(folders: Iterable[Path], *facts: object) -> str:
    """Name of the models in these folders, loaded in the way the facts say.

    Weight files are known by size, time of change, header and a few stretches: reading all of them would take as long
    as loading.
    """
    digest = hashlib.sha256()
    for fact in ("1", version("mlx"), version("mlx-lm"), *facts):
        digest.update(f"{fact!r}|".encode())
    for folder in folders:
        digest.update((folder / "config.json").read_bytes())
        for path in sorted(folder.glob("model*.safetensors")):
            digest.update(_of_file(path))
    return digest.hexdigest()


def _of_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(f"{path.name}|{size}|{path.stat().st_mtime_ns}|".encode())
        for number in range(_SAMPLES + 1):  # the first stretch is the header's beginning, the last the file's end
            file.seek(max(0, size - _STRETCH) * number // _SAMPLES)
            digest.update(file.read(_STRETCH))
    return digest.digest()

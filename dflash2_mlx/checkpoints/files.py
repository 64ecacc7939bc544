"""Where a checkpoint's files are, and what names them: a folder, a Hub repository, or the embedded pair.

Owns: the difference between a folder and a Hub id, the reading of JSON files, the embedded pair's name and folder, and
the fingerprint of loaded models: it changes whenever their numbers may, as it is the key of what is kept beyond a
session (the files of the weights, both configs, how they were loaded, the versions that computed).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from ..errors import CheckpointError

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken"]


_CARD = ["README.md", "LICENSE*", "NOTICE*"]


def find_config(source: str | Path, what: str = "model") -> Path:
    """Folder that holds `config.json`; of a Hub repository only that file is fetched. `what` names it in errors."""
    return _find(source, what, lambda: Path(hf_hub_download(str(source), "config.json")).parent)


def find_files(source: str | Path, what: str = "model") -> Path:
    """Folder that holds the whole checkpoint; a Hub repository is downloaded (or found in the cache)."""
    return _find(source, what, lambda: Path(snapshot_download(str(source), allow_patterns=_FILES)))


def find_card(source: str | Path, what: str = "model") -> Path:
    """Folder that holds the card and licence files of a checkpoint, as far as there are any."""
    return _find(source, what, lambda: Path(snapshot_download(str(source), allow_patterns=_CARD)))


def _find(source: str | Path, what: str, download: Callable[[], Path]) -> Path:
    folder, text = Path(source).expanduser(), str(source)
    if text and folder.is_dir():
        return folder
    looks_like_id = not isinstance(source, Path) and text.count("/") == 1 and not text.startswith((".", "~", "/"))
    if not looks_like_id:
        raise CheckpointError(f"{what}: got {text!r}, expected an existing folder or a Hub id like owner/name")
    try:
        return download()
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{what}: got {text!r}, expected a folder or a reachable Hub repository ({reason})"
        ) from None


def read_config(folder: Path) -> dict[str, Any]:
    """Parse `config.json` of a checkpoint folder.

    Raises:
        CheckpointError: there is none, or it is no JSON object.
    """
    config = read_object(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder}: got no config.json, expected a checkpoint folder")
    return config


def read_object(path: Path) -> dict[str, Any] | None:
    """Parse a file that holds a JSON object; None where there is no such file.

    Raises:
        CheckpointError: it holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: got an unreadable file ({error}), expected JSON") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: got {type(found).__name__}, expected a JSON object")
    return found


MINI = "mini"


_FOLDER = Path(__file__).parents[1] / "data" / "mini"


MINI_TARGET = _FOLDER / "target"


MINI_DRAFTER = _FOLDER / "drafter"


MINI_PROMPTS = _FOLDER / "prompts.jsonl"


def embedded_pair() -> tuple[Path, Path]:
    """Folders of the target and the drafter that `load("mini")` takes."""
    return MINI_TARGET, MINI_DRAFTER


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

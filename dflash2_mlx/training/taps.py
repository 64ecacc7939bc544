"""The target's hidden states of whole documents: computed, or read from a folder where they were kept.

Owns: padding of documents that share a pass, and the folder's layout: `taps.json` says whose taps they are, and one
safetensors file per document is named after its tokens. Several runs may share a folder, also at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError, ConfigError
from ..targets.base import Target
from .files import room, save_tensors
from .settings import Document

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
_PROBE = 12  # tokens of the sequence that tells targets of one shape apart


def document_taps(target: Target, documents: Sequence[Document], layers: Sequence[int]) -> mx.array:
    """Hidden states after `layers`: [N, S, T*D]; shorter documents are padded at their end, which nothing looks at."""
    ids = np.zeros((len(documents), max(len(document.tokens) for document in documents)), dtype=np.int32)
    for row, document in zip(ids, documents, strict=True):
        row[: len(document.tokens)] = document.tokens
    return _taps(target, mx.array(ids), layers)


def _taps(target: Target, ids: mx.array, layers: Sequence[int]) -> mx.array:
    out = target.forward(ids, target.new_state(ids.shape[0]), taps=layers, last_only=True)
    assert out.taps is not None
    taps = mx.stop_gradient(out.taps)
    mx.eval(taps)
    return taps


class TapsCache:
    """Taps of documents on disk; called like `document_taps` with documents alone.

    A document is computed alone, whatever it is asked for with, and is rounded before its first use: what a run learns
    does not depend on what lay in the folder.

    Args:
        folder: made if it is missing.
        layers: `target_layer_ids` of the drafter.
        dtype: "bfloat16" or "float32", how taps are stored.
    Raises:
        ConfigError: the folder holds taps of another target, of other layers or another dtype.
    """

    def __init__(self, folder: Path, target: Target, layers: Sequence[int], dtype: str = "bfloat16"):
        if dtype not in _DTYPES:
            raise ConfigError(f"cache_dtype: got {dtype!r}, expected bfloat16 or float32")
        self.folder, self.target, self.layers, self.dtype = folder, target, tuple(layers), _DTYPES[dtype]
        self._mine: dict[str, Any] = {"layers": list(layers), "dtype": dtype, "probe": self._probe()}
        self._check_folder()

    def __call__(self, documents: Sequence[Document]) -> mx.array:
        """Shapes: [N, S, T*D], padded as by `document_taps`."""
        each = [self._one(document) for document in documents]
        longest = max(taps.shape[1] for taps in each)
        return mx.concatenate([mx.pad(taps, [(0, 0), (0, longest - taps.shape[1]), (0, 0)]) for taps in each])

    def missing_bytes(self, documents: Sequence[Document]) -> int:
        """Disk that documents without a file will take."""
        unseen = {self._file(document): len(document.tokens) for document in documents}
        tokens = sum(length for file, length in unseen.items() if not file.exists())
        return tokens * len(self.layers) * self.target.spec.hidden_size * self.dtype.size

    def check_room(self, documents: Sequence[Document]) -> None:
        """Refuse before anything is written.

        Raises:
            ConfigError: with the room there is and the room that is needed.
        """
        needed, free = self.missing_bytes(documents), room(self.folder)
        if needed > free:
            raise ConfigError(
                f"cache_taps: got {free / 1e9:.2f} GB of free disk in {self.folder}, expected {needed / 1e9:.2f} GB"
            )

    def _one(self, document: Document) -> mx.array:
        file = self._file(document)
        if file.exists():
            return _read(file)
        taps = document_taps(self.target, [document], self.layers).astype(self.dtype)
        mx.eval(taps)
        self._claim()
        own = file.with_name(f"{os.getpid()}-{file.name}")
        save_tensors(own, {"taps": taps})
        own.replace(file)
        return taps

    def _file(self, document: Document) -> Path:
        name = hashlib.sha256(document.tokens.astype("<i4").tobytes()).hexdigest()[:32]
        return self.folder / f"{name}.safetensors"

    def _probe(self) -> list[float]:
        """A few numbers that another target of the same shape would not give."""
        ids = mx.arange(_PROBE, dtype=mx.int32)[None] % self.target.spec.vocab_size
        numbers: Any = _taps(self.target, ids, self.layers)[0, -1].astype(mx.float32)[:8].tolist()
        return [float(number) for number in numbers]

    def _check_folder(self) -> None:
        file, mine = self.folder / "taps.json", self._mine
        if not file.exists():
            return
        try:
            theirs = json.loads(file.read_text(encoding="utf-8"))
            probe = np.array(theirs["probe"], dtype=np.float64)
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(f"{file}: got an unreadable file, expected the description of cached taps") from None
        for name in ("layers", "dtype"):
            if theirs.get(name) != mine[name]:
                raise ConfigError(
                    f"cache_taps: got {name} {mine[name]}, expected {theirs.get(name)} as kept in {self.folder}"
                )
        if probe.shape != (len(mine["probe"]),) or not np.allclose(probe, mine["probe"], rtol=0.05, atol=0.02):
            raise ConfigError(f"cache_taps: got another target, expected the one whose taps are kept in {self.folder}")

    def _claim(self) -> None:
        """Say whose taps these are, before the first of them is written."""
        if not (self.folder / "taps.json").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            own = self.folder / f"{os.getpid()}-taps.json"
            own.write_text(json.dumps(self._mine), encoding="utf-8")
            own.replace(self.folder / "taps.json")


def _read(file: Path) -> mx.array:
    try:
        stored: Any = mx.load(str(file))
        taps: mx.array = stored["taps"]
        mx.eval(taps)
    except (RuntimeError, KeyError) as error:
        line = " ".join(str(error).split())
        raise CheckpointError(f"{file}: got unreadable taps ({line}), expected a whole file") from None
    return taps

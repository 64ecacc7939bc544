"""What the headers of safetensors files say, without their data.

Owns: the refusal of files that are damaged, cut short or missing, before anything large is read.

Reference: the safetensors format.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

_BYTES = {"U8": 1, "I8": 1, "BOOL": 1, "BF16": 2, "F16": 2, "F32": 4, "U32": 4, "I32": 4, "I64": 8, "F64": 8}


@dataclass(frozen=True)
class TensorInfo:
    """One entry of a safetensors header."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Names, dtypes and shapes of one safetensors file, without its data.

    Raises:
        CheckpointError: not a safetensors file, or cut short.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError("header longer than the file")
            header = json.loads(file.read(length))
        infos, end = {}, 0
        for name, entry in header.items():
            if name != "__metadata__":
                infos[name], stop = _read_entry(path, entry)
                end = max(end, stop)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: got a damaged file ({error}), expected a safetensors file") from None
    if size != 8 + length + end:
        raise CheckpointError(
            f"{path}: got {size} bytes, expected {8 + length + end}: the file is cut short or damaged"
        )
    return infos


def _read_entry(path: Path, entry: dict[str, Any]) -> tuple[TensorInfo, int]:
    """One header entry and where its data ends."""
    info = TensorInfo(path, entry["dtype"], tuple(entry["shape"]))
    start, stop = entry["data_offsets"]
    if not isinstance(info.dtype, str) or not all(isinstance(n, int) and n >= 0 for n in (*info.shape, start, stop)):
        raise ValueError("a header entry that makes no sense")
    width = _BYTES.get(info.dtype)
    if width is not None and stop - start != width * math.prod(info.shape):
        raise ValueError("a header entry whose data does not fill its shape")
    return info, stop


def read_headers(folder: Path) -> dict[str, TensorInfo]:
    """Headers of all `model*.safetensors` files of a checkpoint folder; missing shards are refused.

    Raises:
        CheckpointError: no weights, a missing shard, or a damaged file.
    """
    files = sorted(folder.glob("model*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = {str(file) for file in json.loads(index.read_text())["weight_map"].values()}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{index}: got an unreadable index ({error}), expected weight_map") from None
        missing = sorted(named - {file.name for file in files})
        if missing:
            raise CheckpointError(
                f"{folder}: missing weight files: got none of {', '.join(missing)}, expected every file of the index"
            )
    if not files:
        raise CheckpointError(f"{folder}: got no model*.safetensors, expected the checkpoint's weights")
    infos: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in read_header(file).items():
            if name in infos:
                raise CheckpointError(
                    f"{folder}: got tensor {name!r} twice ({infos[name].file.name}, {file.name}), expected once"
                )
            infos[name] = info
    return infos

"""One frozen snapshot in one safetensors file.

Owns: the file's form and its checks. A file is written under another name and renamed when it is whole, so a reader
meets all of it or none. Its header names the format's version, the models (a fingerprint) and the layout; a checksum
covers the data.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.headers import read_header
from ..decode.memory import Extent
from ..errors import CheckpointError
from .snapshot import FrozenSnapshot, HostTensor, Layout

VERSION = "1"
_TOKENS = "tokens"


@dataclass(frozen=True)
class FileHeader:
    """What can be known of a file without reading its tensors."""

    path: Path
    fingerprint: str
    layout: Layout
    extent: Extent
    checksum: int
    data_start: int
    entries: dict[str, Any]  # name -> the header's own entry


def write_file(path: Path, fingerprint: str, frozen: FrozenSnapshot) -> None:
    """Write a snapshot, atomically.

    Raises:
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    tokens = HostTensor("I32", frozen.tokens.shape, frozen.tokens.data.cast("B"))
    tensors = {_TOKENS: tokens, **frozen.tensors}
    entries, end, checksum = {}, 0, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.data.nbytes
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        checksum = zlib.crc32(tensor.data, checksum)
    metadata = {
        "format": VERSION,
        "fingerprint": fingerprint,
        "layout": json.dumps(asdict(frozen.layout)),
        "crc32": str(checksum),
    }
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    header += b" " * (-len(header) % 8)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for tensor in tensors.values():
                file.write(tensor.data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_file_header(path: Path) -> FileHeader:
    """Look at a file.

    Raises:
        CheckpointError: not a file of this form and version, or cut short; the message is one line.
        OSError: it is gone or cannot be read.
    """
    read_header(path)  # refuses what is no safetensors file, or not all of one
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
        metadata = entries.pop("__metadata__", {})
        if metadata.get("format") != VERSION:
            raise CheckpointError(f"{path}: got format {metadata.get('format')!r}, expected {VERSION!r}")
        try:
            start, end = entries[_TOKENS]["data_offsets"]
            file.seek(8 + length + start)
            tokens = np.frombuffer(file.read(end - start), dtype=np.int32)
            layout = _layout(json.loads(metadata["layout"]))
            if len(tokens) != layout.position:
                raise ValueError(f"{len(tokens)} tokens for {layout.position} rows")
            checksum, fingerprint = int(metadata["crc32"]), str(metadata["fingerprint"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path}: got a damaged header ({error}), expected a stored prefix") from None
    return FileHeader(path, fingerprint, layout, layout.extent(tokens), checksum, 8 + length, entries)


def read_file(header: FileHeader) -> FrozenSnapshot:
    """Read the tensors of a file whose header is known.

    Raises:
        CheckpointError: the data is not what was written.
        OSError: it is gone or cannot be read.
    """
    with header.path.open("rb") as file:
        file.seek(header.data_start)
        data = memoryview(file.read())
    if zlib.crc32(data) != header.checksum:
        raise CheckpointError(f"{header.path}: got data with another checksum, expected what was stored")
    tensors = {}
    for name, entry in header.entries.items():
        start, end = entry["data_offsets"]
        tensors[name] = HostTensor(entry["dtype"], tuple(entry["shape"]), data[start:end])
    del tensors[_TOKENS]
    return FrozenSnapshot(header.extent.tokens, header.layout, tensors)


def _layout(raw: dict[str, Any]) -> Layout:
    groups = {name: tuple(raw[name]) if raw[name] is not None else None for name in ("full", "sliding", "context")}
    layout = Layout(**{**raw, **groups})
    numbers = [layout.position, layout.recurrent, layout.context_floor]
    for group in groups.values():
        if group is not None and len(group) != 4:
            raise ValueError("a group of buffers that is not four numbers")
        numbers.extend(group or ())
    if not all(number is None or (type(number) is int and number >= 0) for number in numbers):
        raise ValueError("a layout that is not made of counts")
    return layout

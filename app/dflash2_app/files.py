"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(file: Path, content: str | bytes) -> None:
    """Write beside the file, make sure it is on disk, then put it in the old one's place; text is UTF-8.

    Only its owner can read it.

    Raises:
        OSError: it cannot be written; the old file stands, if there was one.
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

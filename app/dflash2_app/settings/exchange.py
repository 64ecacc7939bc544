"""Puts a finished file in another's place, and gets back what it replaced.

Owns: the one step in which a settings file changes. A plain rename throws away what was there, and with it an
edit that another program made a moment before; where the system can swap two names, nothing is thrown away
until it was looked at.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # Linux: renameat2
_RENAME_SWAP = 2  # macOS: renamex_np


def publish(new: Path, path: Path, expected: bytes | None) -> bool:
    """Let `new` take the place of `path`, provided that `path` holds `expected` (None: does not exist).

    Either way `path` holds a whole file at every moment. False: somebody else wrote it, their file stands,
    and `new` is still there.
    """
    if expected is None:
        return _create(new, path)
    if read_or_none(path) != expected:
        return False
    if not swap(new, path):
        new.replace(path)
        return True
    if new.read_bytes() == expected:
        new.unlink()
        return True
    swap(new, path)  # the edit came between the look and the swap: it goes back, and ours is made anew on it
    return False


def read_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _create(new: Path, path: Path) -> bool:
    try:
        os.link(new, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        new.replace(path)
        return True
    new.unlink()
    return True


def swap(one: Path, other: Path) -> bool:
    """Exchange two existing files in one step; False where the system or the file system cannot."""
    function = _system_swap()
    return function is not None and function(os.fsencode(one), os.fsencode(other)) == 0


@functools.cache
def _system_swap() -> Callable[[bytes, bytes], int] | None:
    """The C library's call, or None on a system without one."""
    name = {"linux": "renameat2", "darwin": "renamex_np"}.get(sys.platform)
    if name is None:
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True)[name]
    except (OSError, AttributeError):
        return None
    call.restype = ctypes.c_int
    if name == "renamex_np":
        return lambda one, other: call(one, other, _RENAME_SWAP)
    return lambda one, other: call(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)

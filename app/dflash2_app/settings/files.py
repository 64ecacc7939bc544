"""JSON files that other programs write too: read, change, write, and lose nothing.

Owns: parsing, the lock between our own processes, the check for edits by others, and the order of writing
(a temporary file, fsync, one exchange, fsync of the folder). Invariants: the file is whole at every moment;
everything that a change does not touch stays as it was; a file that cannot be read is never overwritten.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import AppError

LOCK_TIMEOUT_S = 20.0


LOCK_POLL_S = 0.005


MOST_RETRIES = 50  # edits by others between our read and our write


class SettingsError(AppError):
    """A settings file cannot be read, or must not be written."""


@dataclass(frozen=True)
class Document:
    """What a file holds: its parsed JSON, and what the user should know about it."""

    data: dict[str, Any]
    exists: bool
    notes: tuple[str, ...] = ()


class JsonFile:
    """One settings file: an object with a "version" and a section of named records.

    A missing file reads as an empty one. `section` None is a file that is only read (oMLX's global settings).
    """

    def __init__(self, path: Path, section: str | None, version: int | str = 1):
        self.path = path
        self.section = section
        self.version = version

    def read(self) -> Document:
        """Raises SettingsError: the file is there and is not what it should be."""
        raw = _read(self.path)
        data = self._parse(raw)
        return Document(data, raw is not None, tuple(self._version_notes(data)))

    def update(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Apply `change` to the section's records and write the file; returns the records.

        `change` is called again, on what is there then, when another program wrote in between. It may raise to
        write nothing. A change that changes nothing writes nothing.

        Raises:
            SettingsError: the file cannot be read or written, or somebody holds the lock for too long.
        """
        assert self.section is not None
        # A link stays a link: what it points to is replaced.
        path = self.path.resolve()
        with _locked(path):
            for _ in range(MOST_RETRIES):
                before = _read(path)
                data = self._parse(before)
                after = copy.deepcopy(data)
                change(after[self.section])
                if after == data and before is not None:
                    return after[self.section]
                if _write(path, _serialise(after), before):
                    return after[self.section]
        raise SettingsError(f"{self.path}: got an edit by another program before each of {MOST_RETRIES} tries to write")

    def set_aside(self) -> Path:
        """Move a file that cannot be read out of the way, under a name that says so; returns that name.

        Raises:
            SettingsError: there is no such file, or it can be read.
        """
        path = self.path.resolve()
        with _locked(path):
            try:
                self._parse(_read(path))
            except SettingsError:
                stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
                aside = path.with_name(f"{path.name}.damaged-{stamp}")
                path.rename(aside)
                return aside
        raise SettingsError(f"{self.path}: got a file that can be read, or none: nothing to set aside")

    def _parse(self, raw: bytes | None) -> dict[str, Any]:
        if raw is None:
            return {} if self.section is None else {"version": self.version, self.section: {}}
        try:
            data = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._unreadable(f"no JSON ({_reason(error)})") from None
        if not isinstance(data, dict):
            raise self._unreadable(f"a JSON {type(data).__name__}")
        if self.section is not None:
            if not isinstance(data.setdefault(self.section, {}), dict):
                raise self._unreadable(f"a {type(data[self.section]).__name__} under {self.section!r}")
            data.setdefault("version", self.version)
        return data

    def _unreadable(self, received: str) -> SettingsError:
        hint = "mend it by hand, or `dflash2-mlx settings recover` keeps it under another name and starts afresh"
        return SettingsError(f"{self.path}: got {received}, expected a JSON object; it was left as it is", hint=hint)

    def _version_notes(self, data: dict[str, Any]) -> Iterator[str]:
        found = data.get("version", self.version)
        if found != self.version:
            yield f"{self.path}: got version {found!r}, expected {self.version!r}: read as far as it is understood"


def _reason(error: BaseException) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"a byte that is not UTF-8 at {error.start}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python would keep the last of two equal keys and drop the other.
    found = dict(pairs)
    if len(found) != len(pairs):
        double = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
        raise ValueError(f"the key {double!r} twice")
    return found


def _serialise(data: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can say
        return (json.dumps(data, indent=2) + "\n").encode()


def _read(path: Path) -> bytes | None:
    try:
        return read_or_none(path)
    except OSError as error:
        raise SettingsError(f"{path}: {(error.strerror or str(error)).lower()}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; the kernel frees it when a process dies."""
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_TIMEOUT_S)
        with lock.acquire(poll_interval=LOCK_POLL_S):
            _remove_leftovers(path)
            yield
    except Timeout:
        raise SettingsError(f"{path}: another process has held its lock for {LOCK_TIMEOUT_S:g} s") from None
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        raise SettingsError(f"{where}: {(error.strerror or str(error)).lower()}") from None


def _temporary_prefix(path: Path) -> str:
    return f".{path.name}.new-"


def _remove_leftovers(path: Path) -> None:
    """Delete temporary files of processes that died while they wrote; only the holder of the lock may."""
    for left in path.parent.glob(f"{_temporary_prefix(path)}*"):
        left.unlink(missing_ok=True)


def _write(path: Path, content: bytes, before: bytes | None) -> bool:
    """Write `content` in place of `before`; False when the file no longer holds `before`."""
    handle, name = tempfile.mkstemp(prefix=_temporary_prefix(path), dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if before is not None:
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            os.fsync(file.fileno())
        done = publish(new, path, before)
        _sync_folder(path.parent)
    except FileNotFoundError:  # somebody removed it meanwhile
        return False
    finally:
        new.unlink(missing_ok=True)
    return done


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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

"""A folder of stored prefixes.

Owns: which files there are, the thread that writes them, and the folder's size. Several processes may share a folder:
a file that went away or changed is met with a note, never with an error. No MLX runs here.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..errors import CheckpointError, ConfigError
from .files import FileHeader, read_file, read_file_header, write_file
from .snapshot import FrozenSnapshot

_PATTERN = "prefix-*.safetensors"
_WAITING = 4  # snapshots that may wait to be written; each holds its memory until then

Note = Callable[[str], None]
Job = tuple[Path, str, FrozenSnapshot]


class DiskStore:
    """Stored prefixes of any number of models in one folder.

    Args:
        folder: made if need be.
        max_bytes: of all its files together; the least recently used go first.
        note: called with one line for everything that was skipped or failed, from any thread.
    Raises:
        ConfigError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path, max_bytes: int, note: Note):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError:
            writable = False
        if not writable:
            raise ConfigError(f"disk: got {str(folder)!r}, expected a folder that can be written")
        self._folder = folder
        self._note = note
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[tuple[int, int], FileHeader | None]] = {}  # by (mtime_ns, size)
        self._writer = _Writer(folder, max_bytes, note)
        # Not a method of this object, which must be free to go; also runs when the interpreter ends.
        self._finalizer = weakref.finalize(self, _Writer.stop, self._writer)

    def find(
        self, fingerprint: str, prompt: Sequence[int], first_visible: int | None, longer_than: int
    ) -> tuple[FileHeader, int] | None:
        """The stored prefix that serves most of `prompt`, and how much; None if nothing serves more than asked."""
        best, most = None, longer_than
        for header in self._headers():
            if header.fingerprint != fingerprint:
                continue
            kept = header.extent.kept(prompt, first_visible)
            if kept > most:
                best, most = header, kept
        return None if best is None else (best, most)

    def read(self, header: FileHeader) -> FrozenSnapshot | None:
        """Read a file that was found; None, with a note, if it is damaged or gone."""
        try:
            frozen = read_file(header)
            os.utime(header.path)  # the least recently used goes first
        except (CheckpointError, OSError, LookupError) as error:
            self._note(f"prefix cache: {header.path.name} was skipped ({error})")
            with self._lock:  # not found again, and written anew when there is something to write
                if header.path in self._known:
                    self._known[header.path] = (self._known[header.path][0], None)
            return None
        return frozen

    def write(self, fingerprint: str, frozen: FrozenSnapshot) -> None:
        """Have a snapshot written by and by; one more than may wait is left out, with a note."""
        path = self._path(fingerprint, frozen.tokens, frozen.layout.context is not None)
        with self._lock:
            _, header = self._known.get(path, ((0, 0), None))
        if header is None or not path.exists():
            self._writer.put((path, fingerprint, frozen))

    def remove(self, fingerprint: str, tokens: np.ndarray, drafts: bool) -> None:
        """Forget one prefix, once what waits has been written."""
        self._writer.remove(self._path(fingerprint, tokens, drafts))

    def flush(self) -> None:
        """Wait until everything is written."""
        self._writer.flush()

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(size for _, _, size in _files(self._folder))

    def _path(self, fingerprint: str, tokens: np.ndarray, drafts: bool) -> Path:
        what = hashlib.sha256(f"{fingerprint}|{drafts}|".encode() + tokens.tobytes()).hexdigest()
        return self._folder / f"prefix-{what[:40]}.safetensors"

    def _headers(self) -> list[FileHeader]:
        """Headers of all readable files; each is read when it is new or has changed."""
        with self._lock:
            present = {}
            for path, mtime, size in _files(self._folder):
                stamp = (mtime, size)
                known = self._known.get(path)
                present[path] = known if known is not None and known[0] == stamp else (stamp, self._look_at(path))
            self._known = present
            return [header for _, header in present.values() if header is not None]

    def _look_at(self, path: Path) -> FileHeader | None:
        try:
            return read_file_header(path)
        except (CheckpointError, OSError) as error:
            self._note(f"prefix cache: {path.name} was skipped ({error})")
            return None


class _Writer:
    """The thread that writes, started with the first file."""

    def __init__(self, folder: Path, max_bytes: int, note: Note):
        self._folder, self._max_bytes, self._note = folder, max_bytes, note
        self._queue: queue.Queue[Job | Path | None] = queue.Queue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._thread: threading.Thread | None = None

    def put(self, job: Job) -> None:
        with self._lock:
            if self._waiting >= _WAITING:
                self._note(f"prefix cache: the disk is behind: a prefix of {len(job[2].tokens)} tokens was not written")
                return
            self._waiting += 1
        self._send(job)

    def remove(self, path: Path) -> None:
        self._send(path)

    def flush(self) -> None:
        if self._thread is not None:
            self._queue.join()

    def stop(self) -> None:
        """Write what waits and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _send(self, item: Job | Path) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dflash2-prefixes", daemon=True)
                self._thread.start()
        self._queue.put(item)

    def _run(self) -> None:
        while self._take(self._queue.get()):
            self._queue.task_done()
        self._queue.task_done()

    def _take(self, item: Job | Path | None) -> bool:
        # A method of its own: while the thread waits, no local name may keep a snapshot's memory alive.
        try:
            if isinstance(item, Path):
                item.unlink(missing_ok=True)
            elif item is not None:
                self._write(item)
        except OSError as error:
            self._note(f"prefix cache: nothing was written to {self._folder} ({error.strerror or error})")
        return item is not None

    def _write(self, job: Job) -> None:
        path, fingerprint, frozen = job
        try:
            if frozen.nbytes > self._max_bytes:
                self._note(
                    f"prefix cache: a prefix of {frozen.nbytes} bytes was not written: disk_max_bytes is "
                    f"{self._max_bytes}"
                )
                return
            write_file(path, fingerprint, frozen)
            self._evict()
        finally:
            with self._lock:
                self._waiting -= 1

    def _evict(self) -> None:
        files = sorted(_files(self._folder), key=lambda file: file[1])
        total = sum(size for _, _, size in files)
        for path, _, size in files:
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def _files(folder: Path) -> list[tuple[Path, int, int]]:
    """Path, mtime in ns and size of every stored prefix; one that goes away meanwhile is left out."""
    found = []
    for path in folder.glob(_PATTERN):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path, status.st_mtime_ns, status.st_size))
    return found

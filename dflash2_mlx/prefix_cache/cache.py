"""The prefix cache: what was read is not read again, in this process or a later one.

Owns: the stored prefixes in memory, their limits, and the choice of the best one for a prompt. A prefix is what a
session knew at the border of a turn: the target's keys, values and recurrent states, and the drafter's context, so
that a hit drafts as well as a session that read everything itself. Equal tokens and equal models are the only key:
what a chat template makes of its arguments is in the tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..decode.memory import Extent, SessionSnapshot
from ..decode.session import Session
from ..validation import check_integer
from .disk import DiskStore
from .snapshot import FrozenSnapshot, freeze, thaw

GIB = 1 << 30
_MOST_NOTES = 32


@dataclass(frozen=True)
class _Entry:
    fingerprint: str
    snapshot: SessionSnapshot
    extent: Extent
    nbytes: int

    @property
    def drafts(self) -> bool:
        return self.snapshot.context is not None


@dataclass(frozen=True)
class Prepared:
    """A prefix read from disk for one prompt, of which it serves `kept` tokens."""

    frozen: FrozenSnapshot
    kept: int


class PrefixCache:
    """Prefixes of conversations, for any number of engines and sessions.

    Args:
        max_entries: prefixes in memory; the least recently used go first.
        max_bytes: of all of them together, counted exactly.
        disk: a folder; prefixes are also written there, and found again after a restart.
        disk_max_bytes: of all files in it.
    Raises:
        ConfigError: a limit below 1, or a folder that cannot be written.

    One cache may serve several threads and replies at once. On a hit, `stats.cached_tokens` says how much of the
    prompt was not read again.
    """

    def __init__(
        self,
        max_entries: int = 4,
        max_bytes: int = 8 * GIB,
        disk: str | Path | None = None,
        disk_max_bytes: int = 20 * GIB,
    ):
        for name, value in (
            ("max_entries", max_entries),
            ("max_bytes", max_bytes),
            ("disk_max_bytes", disk_max_bytes),
        ):
            check_integer(name, value, 1)
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[int, _Entry] = OrderedDict()  # oldest use first
        self._next = 0
        self._lock = threading.RLock()
        notes: deque[str] = deque(maxlen=_MOST_NOTES)
        self._notes = notes
        self._disk = None if disk is None else DiskStore(Path(disk).expanduser(), disk_max_bytes, notes.append)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def max_bytes(self) -> int:
        """What the prefixes in memory may take."""
        return self._max_bytes

    def resize(self, max_bytes: int) -> None:
        """Hold at most so many bytes in memory from now on; the least recently used prefixes go at once.

        Raises:
            ConfigError: below 1.
        """
        check_integer("max_bytes", max_bytes, 1)
        with self._lock:
            self._max_bytes = max_bytes
            self._evict()

    @property
    def nbytes(self) -> int:
        """Bytes of the prefixes in memory."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    @property
    def disk_nbytes(self) -> int:
        """Bytes of the files on disk; 0 without a folder."""
        return 0 if self._disk is None else self._disk.nbytes

    def clear(self) -> None:
        """Forget what is in memory; files stay."""
        with self._lock:
            self._entries.clear()

    def flush(self) -> None:
        """Wait until everything that was stored is on disk. Happens by itself when the process ends."""
        if self._disk is not None:
            self._disk.flush()

    def take_notes(self) -> list[str]:
        """What went wrong since the last call: files skipped, prefixes too large, writes that failed."""
        notes = []
        while self._notes:
            notes.append(self._notes.popleft())
        return notes

    # For a reply. `prepare` runs in the caller's thread, the others on the thread that owns MLX.

    def prepare(self, fingerprint: str, prompt: Sequence[int], first_visible: int | None) -> Prepared | None:
        """Read from disk what serves more of `prompt` than memory does, so that no other reply waits for the disk."""
        if self._disk is None:
            return None
        _, in_memory = self._best(fingerprint, prompt, first_visible)
        found = self._disk.find(fingerprint, prompt, first_visible, in_memory)
        if found is None:
            return None
        header, kept = found
        frozen = self._disk.read(header)
        return None if frozen is None else Prepared(frozen, kept)

    def adopt(self, fingerprint: str, session: Session, prompt: list[int], prepared: Prepared | None) -> None:
        """Give the session the longest prefix of `prompt` there is, if it does not hold a longer one itself."""
        key, kept = self._best(fingerprint, prompt, session.memory.first_visible(len(prompt)))
        if prepared is not None and prepared.kept > max(kept, session.memory.keeps(prompt)):
            try:
                snapshot = thaw(prepared.frozen)
            except (LookupError, ValueError) as error:
                self._notes.append(f"prefix cache: a stored prefix was skipped ({error})")
            else:
                self._add(fingerprint, snapshot)
                session.restore(snapshot)
                return
        if kept > session.memory.keeps(prompt) and key is not None:
            with self._lock:
                self._entries.move_to_end(key)
                session.restore(self._entries[key].snapshot)

    def store(self, fingerprint: str, session: Session) -> None:
        """Keep what the session knows now; between two prompt chunks, or when a reply has ended."""
        extent = session.memory.extent()
        if not len(extent.tokens) or self._served(fingerprint, extent):
            return
        taken = session.snapshot(packed=True)
        snapshot = SessionSnapshot(taken.tokens[: taken.position], taken.position, taken.state, taken.context)
        self._add(fingerprint, snapshot)
        if self._disk is not None:
            self._disk.write(fingerprint, freeze(snapshot))

    def _best(self, fingerprint: str, prompt: Sequence[int], first_visible: int | None) -> tuple[int | None, int]:
        """Key of the entry that serves most of a prompt, and how much; of equals the one used last."""
        best, most = None, 0
        with self._lock:
            for key, entry in self._entries.items():
                if entry.fingerprint != fingerprint:
                    continue
                kept = entry.extent.kept(prompt, first_visible)
                if kept >= max(most, 1):
                    best, most = key, kept
        return best, most

    def _served(self, fingerprint: str, extent: Extent) -> bool:
        """Whether an entry does all that this one would; it then counts as used."""
        with self._lock:
            for key, entry in self._entries.items():
                if entry.fingerprint == fingerprint and entry.extent.covers(extent):
                    self._entries.move_to_end(key)
                    return True
        return False

    def _add(self, fingerprint: str, snapshot: SessionSnapshot) -> None:
        entry = _Entry(fingerprint, snapshot, snapshot.extent, snapshot.nbytes)
        with self._lock:
            for key, old in list(self._entries.items()):
                if old.fingerprint == fingerprint and entry.extent.covers(old.extent):
                    del self._entries[key]
                    if self._disk is not None and len(old.extent.tokens) < len(entry.extent.tokens):
                        self._disk.remove(fingerprint, old.extent.tokens, old.drafts)
            if entry.nbytes > self._max_bytes:
                self._notes.append(
                    f"prefix cache: a prefix of {entry.nbytes} bytes was not kept: max_bytes is {self._max_bytes}"
                )
                return
            self._entries[self._next] = entry
            self._next += 1
            self._evict()

    def _evict(self) -> None:
        while len(self._entries) > self._max_entries or self.nbytes > self._max_bytes:
            self._entries.popitem(last=False)

"""Saved chats: one JSON file each, in `chats` of the base folder.

Owns: names, the order by age, revisions, and writing that leaves the old file or the new one, never half of one. A
chat may be open in a terminal and in a browser at once: who writes says which revision it replaces, and is refused when
the file holds another one. Chats are private: files and folders are readable by their owner only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import AppError
from ..files import write_whole
from .record import Chat

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
MOST_BYTES = 32 * 2**20  # of a file that is read as a chat
LOCK_TIMEOUT_S = 20.0
ANY = "any"  # the revision of whoever replaces whatever is there


class NoSuchChat(AppError):
    """There is no chat of that name."""


class ChangedElsewhere(AppError):
    """The file holds another revision than the one to be replaced."""


class NotSaved(AppError):
    """The file cannot be written."""


class ChatStore:
    """The saved chats of one base folder; makes folders only when something is written."""

    def __init__(self, base: Path):
        self.base = base
        self.folder = base / "chats"

    def path(self, name: str) -> Path:
        """The file of a chat.

        Raises:
            AppError: the name cannot be a file's.
        """
        if not _NAME.fullmatch(name):
            raise AppError(f"name: got {name!r}, expected {_NAME_RULE}")
        return self.folder / f"{name}.json"

    def names(self) -> list[str]:
        """All saved chats, the one written last first."""
        try:
            files = [(file.stat().st_mtime_ns, file.stem) for file in self.folder.glob("*.json")]
        except OSError:
            return []
        return [name for _, name in sorted(files, reverse=True) if _NAME.fullmatch(name)]

    def fresh_name(self) -> str:
        """A name from the time of day that no chat has yet."""
        stem = datetime.now().strftime("%Y-%m-%d-%H%M%S")
        name, number = stem, 2
        while (self.folder / f"{name}.json").exists():
            name, number = f"{stem}-{number}", number + 1
        return name

    def save(self, name: str, chat: Chat) -> Path:
        """Write a chat in place of whatever is there; returns its file. Raises as `write`."""
        self.write(name, chat, replaces=ANY)
        return self.path(name)

    def write(self, name: str, chat: Chat, *, replaces: str | None) -> str:
        """Write a chat, whole or not at all.

        Args:
            replaces: the revision that is there; None means that there is none; ANY replaces whatever is there.
        Returns:
            The new revision.
        Raises:
            ChangedElsewhere: another revision is there.
            NotSaved: it cannot be written.
        """
        file = self.path(name)
        content = (json.dumps(chat.to_dict(), indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked(file):
                _compare(file, name, replaces)
                write_whole(file, content)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise NotSaved(f"{file}: the chat could not be saved ({reason})") from None
        return _revision(content)

    def delete(self, name: str, *, replaces: str | None = ANY) -> None:
        """Take a chat away for good.

        Raises:
            NoSuchChat: there is none.
            ChangedElsewhere: another revision than `replaces` is there.
            NotSaved: the file cannot be removed.
        """
        file = self.path(name)
        if not file.exists():
            raise self._unknown(name)
        try:
            with self._locked(file):
                _compare(file, name, replaces)
                file.unlink()
        except FileNotFoundError:
            raise self._unknown(name) from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise NotSaved(f"{file}: the chat could not be deleted ({reason})") from None

    def load(self, name: str) -> Chat:
        """Read a chat.

        Raises:
            NoSuchChat: there is none of that name.
            AppError: the file is not a chat.
        """
        return self.read(name)[0]

    def read(self, name: str) -> tuple[Chat, str]:
        """Read a chat and its revision; raises as `load`."""
        file = self.path(name)
        try:
            if file.stat().st_size > MOST_BYTES:
                raise AppError(f"{file}: got {file.stat().st_size} bytes, expected at most {MOST_BYTES}")
            content = file.read_bytes()
            value = json.loads(content.decode("utf-8"))
        except FileNotFoundError:
            raise self._unknown(name) from None
        except (OSError, ValueError, RecursionError) as error:
            raise AppError(f"{file}: got an unreadable file ({error}), expected JSON") from None
        try:
            return Chat.from_dict(value), _revision(content)
        except AppError as error:
            raise AppError(f"{file}: {error}") from None

    def _unknown(self, name: str) -> NoSuchChat:
        known = ", ".join(self.names()[:8]) or "none"
        return NoSuchChat(f"chat: got {name!r}, expected a saved one (there are: {known})")

    @contextmanager
    def _locked(self, file: Path) -> Iterator[None]:
        try:
            with FileLock(self.base / ".chats.lock", timeout=LOCK_TIMEOUT_S, mode=0o600):
                yield
        except Timeout:
            raise NotSaved(f"{file}: the chat could not be saved (another program holds the chats' lock)") from None

    def history_file(self) -> Path | None:
        """The file that keeps what was typed, made if need be; None where that cannot be."""
        file = self.base / "chat_history"
        try:
            self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            with file.open("a", encoding="utf-8"):
                return file
        except OSError:
            return None


def _revision(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _compare(file: Path, name: str, replaces: str | None) -> None:
    """Refuse when the file is not what the writer believes."""
    if replaces == ANY:
        return
    found = _revision(file.read_bytes()) if file.exists() else None
    if found != replaces:
        what = "it was deleted" if found is None else "it was saved" if replaces is None else "it was changed"
        raise ChangedElsewhere(f"chat: got an older version of {name!r}, expected the newest: {what} elsewhere")

"""Saved chats: one JSON file each, in `chats` of the base folder.

Owns: names, the order by age, and writing that leaves the old file or the new one, never half of one. Chats are
private: files and folders are readable by their owner only.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from ..errors import AppError
from ..whole_file import write_whole
from .record import Chat

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"


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
        """Write a chat, whole or not at all.

        Raises:
            AppError: it cannot be written.
        """
        file = self.path(name)
        text = json.dumps(chat.to_dict(), indent=2, ensure_ascii=False) + "\n"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, text)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise AppError(f"{file}: the chat could not be saved ({reason})") from None
        return file

    def load(self, name: str) -> Chat:
        """Read a chat.

        Raises:
            AppError: there is none of that name, or the file is not a chat.
        """
        file = self.path(name)
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = ", ".join(self.names()[:8]) or "none"
            raise AppError(f"chat: got {name!r}, expected a saved one (there are: {known})") from None
        except (OSError, ValueError, RecursionError) as error:
            raise AppError(f"{file}: got an unreadable file ({error}), expected JSON") from None
        try:
            return Chat.from_dict(value)
        except AppError as error:
            raise AppError(f"{file}: {error}") from None

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

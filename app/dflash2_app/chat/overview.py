"""What saved chats there are, each in a few words, and the search through them.

Owns: the summary of a chat. A file that is no chat is listed with what is wrong with it, never left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import AppError, one_line
from .record import Chat
from .store import ChatStore, NoSuchChat


@dataclass(frozen=True)
class Summary:
    """One saved chat; `problem` says why it cannot be read, and the rest is empty then."""

    id: str
    title: str = ""
    heading: str = ""
    model: str = ""
    turns: int = 0
    created_at: str = ""
    updated_at: str = ""
    problem: str | None = None


class Overview:
    """Summaries of one folder's chats; a file that has not changed is not read again."""

    def __init__(self, store: ChatStore):
        self._store = store
        self._known: dict[str, tuple[tuple[int, int], Summary]] = {}

    def summaries(self) -> list[Summary]:
        """All chats, the one written last first."""
        found = {}
        for name in self._store.names():
            stamp = self._stamp(name)
            if stamp is None:
                continue
            known = self._known.get(name)
            found[name] = known if known is not None and known[0] == stamp else (stamp, summary(self._store, name))
        self._known = found
        return [one for _, one in found.values()]

    def search(self, words: str) -> list[Summary]:
        """The chats in whose title, name or messages all words occur, whatever their case."""
        wanted = words.casefold().split()
        return [one for one in self.summaries() if self._holds(one, wanted)]

    def _holds(self, one: Summary, wanted: list[str]) -> bool:
        text = f"{one.id}\n{one.title}\n{one.model}"
        if one.problem is None:
            try:
                text += "\n" + "\n".join(message.content for message in self._store.load(one.id).messages)
            except AppError:
                return False  # it went away, or was damaged, a moment ago
        text = text.casefold()
        return all(word in text for word in wanted)

    def _stamp(self, name: str) -> tuple[int, int] | None:
        try:
            state = self._store.path(name).stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size


def list_chats(store: ChatStore) -> list[Summary]:
    """All chats, the one written last first."""
    return Overview(store).summaries()


def summary(store: ChatStore, name: str) -> Summary:
    """What a chat is, in a few words."""
    try:
        chat = store.load(name)
    except NoSuchChat:
        return Summary(name, problem="it was deleted")
    except AppError as error:
        return Summary(name, problem=one_line(str(error)))
    return summarise(name, chat)


def summarise(name: str, chat: Chat) -> Summary:
    """The summary of a chat that was read already."""
    return Summary(name, chat.title, chat.heading, chat.model, chat.turns, chat.created_at, chat.updated_at)

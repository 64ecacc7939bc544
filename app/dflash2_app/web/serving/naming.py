"""Which offered model a request means: oMLX's order of looking a name up.

Owns: the order: a name or id, in any case, with the name of an exposed profile behind a colon; an alias; the same
without a prefix; a Hub id without its owner. Never looks at the disk: a request's name is only ever compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .source import Card, Source


class Names:
    """The names of some sources."""

    def __init__(self, sources: Sequence[Source]):
        self._exact: dict[str, str] = {}
        self._folded: dict[str, str] = {}
        for spellings in (_ids, _aliases):  # no alias hides another model's own name
            for source in sources:
                for spelling in spellings(source):
                    self._exact.setdefault(spelling, source.name)
                    self._folded.setdefault(spelling.lower(), source.name)
        bare = [(_bare(source.name).lower(), source.name) for source in sources]
        times = Counter(short for short, _ in bare)
        self._bare = {short: name for short, name in bare if times[short] == 1}

    def find(self, name: str) -> str | None:
        """The name of the source that is meant, None when there is none."""
        for spelling in (name, _bare(name)):
            found = self._exact.get(spelling) or self._folded.get(spelling.lower())
            if found is not None:
                return found
        return self._bare.get(name.lower())


def shown_name(source: Source) -> str:
    """What lists call a model: its alias where it has one, as in oMLX."""
    return next(_aliases(source), source.name)


def _ids(source: Source) -> Iterator[str]:
    yield source.name
    if source.card.model_id:
        yield source.card.model_id + _ending(source.name, source.card)


def _aliases(source: Source) -> Iterator[str]:
    if source.card.alias:
        yield source.card.alias + _ending(source.name, source.card)


def _ending(name: str, card: Card) -> str:
    """The profile's part of a name."""
    return name.removeprefix(card.base) if card.base is not None else ""


def _bare(name: str) -> str:
    """A name without what stands in front of its last slash."""
    return name.rpartition("/")[2]

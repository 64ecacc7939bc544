"""Reads the fields of a JSON object, each exactly once, and refuses what nobody asked for.

Owns: types and ranges of single values, and the wording of a wrong one. Knows no field by name. Invariant: after
`finish`, every field of the object was honoured, accepted knowingly, or refused. null counts as absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import ApiError, refuse, shown

MOST_DEPTH = 128  # lists and objects inside each other
_TOO_DEEP = f"more than {MOST_DEPTH} lists and objects inside each other"


def parse_json(body: bytes) -> Any:
    """Parse strict JSON.

    Raises:
        ApiError: what `strict_json` refuses.
    """
    try:
        return strict_json(body.decode("utf-8"))
    except UnicodeError:
        raise ApiError("body: got text that is not Unicode (UTF-8), expected JSON") from None
    except ValueError as error:
        raise ApiError(f"body: got text that is not JSON ({error}), expected a JSON object") from None


def strict_json(text: str) -> Any:
    """Parse JSON text without guessing.

    Raises:
        UnicodeError: an escape is half of a character.
        ValueError: not JSON, nested too deep, a field given twice, or a number JSON does not know.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # which of the two is meant, nobody can say
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the field {shown(name)} is given twice")
            seen.add(name)
    return found


def _check_depth(value: Any) -> None:
    """Whatever walks through a request later on may do so by calling itself."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


class Fields:
    """One object of a request; `path` is its name inside the request."""

    def __init__(self, raw: object, path: str = ""):
        if not isinstance(raw, Mapping):
            raise refuse(path or "body", raw, "a JSON object")
        self._raw = {name: value for name, value in raw.items() if value is not None}
        self._path = path

    def name(self, field: str) -> str:
        """The field's full name, for messages."""
        return f"{self._path}.{field}" if self._path else field

    def has(self, field: str) -> bool:
        return field in self._raw

    def take(self, field: str) -> Any:
        """The value as it came, None when absent; the field now counts as read."""
        return self._raw.pop(field, None)

    def peek(self, field: str) -> Any:
        """The value as it came, without taking it."""
        return self._raw.get(field)

    def text(self, field: str) -> str | None:
        value = self.take(field)
        if value is not None and not isinstance(value, str):
            raise refuse(self.name(field), value, "text")
        return value

    def required_text(self, field: str) -> str:
        value = self.text(field)
        if not value:
            raise refuse(self.name(field), value, "text")
        return value

    def one_of(self, field: str, *choices: str) -> str | None:
        value = self.take(field)
        if value is not None and value not in choices:
            raise refuse(self.name(field), value, " or ".join(map(repr, choices)))
        return value

    def boolean(self, field: str) -> bool | None:
        value = self.take(field)
        if value is not None and not isinstance(value, bool):
            raise refuse(self.name(field), value, "true or false")
        return value

    def integer(self, field: str, low: int, high: int | None = None) -> int | None:
        value = self.take(field)
        if value is None:
            return None
        wanted = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise refuse(self.name(field), value, wanted)
        return value

    def number(self, field: str, low: float, high: float) -> float | None:
        value = self.take(field)
        if value is None:
            return None
        wanted = f"a number in [{low:g}, {high:g}]"
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise refuse(self.name(field), value, wanted)
        if not math.isfinite(value):
            raise refuse(self.name(field), value, wanted)
        return float(value)

    def items(self, field: str) -> list[Any] | None:
        value = self.take(field)
        if value is not None and not isinstance(value, list):
            raise refuse(self.name(field), value, "a list")
        return value

    def mapping(self, field: str) -> dict[str, Any] | None:
        value = self.take(field)
        if value is not None and not isinstance(value, dict):
            raise refuse(self.name(field), value, "a JSON object")
        return value

    def inner(self, field: str) -> Fields | None:
        """The fields of an object inside this one, None when absent."""
        value = self.take(field)
        return None if value is None else Fields(value, self.name(field))

    def accept(self, *fields: str) -> None:
        """Take fields that cannot change the text of a reply."""
        for field in fields:
            self.take(field)

    def only(self, field: str, expected: Sequence[Any], why: str) -> None:
        """Take a field of which only some values can be honoured."""
        value = self.take(field)
        if value is not None and (type(value), value) not in [(type(item), item) for item in expected]:
            words = " or ".join(json.dumps(item) for item in expected) or "nothing"
            raise refuse(self.name(field), value, f"{words}: {why}")

    def finish(self) -> None:
        """Refuse what is left.

        Raises:
            ApiError: a field that no one knows.
        """
        for field, value in self._raw.items():
            raise refuse(self.name(field), value, "no such field", code="unknown_parameter")

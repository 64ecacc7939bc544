"""What one setting is: its type, range, default, clean-up, and the words users know it by.

Owns: the kinds of values with their wording of what is expected, and the null rules. Knows no setting by
name; `keys.py` lists them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class BadValue(ValueError):
    """A value outside its range; the text says what was received and what is expected."""


def refuse(given: object, expected: str) -> BadValue:
    return BadValue(f"got {given!r}, expected {expected}")


@dataclass(frozen=True)
class Kind:
    """A type with a range: `fits` judges a JSON value, `parse` reads what was typed at a command line.

    `form` says what a page asks for it with: "boolean", "integer", "number", "size", "choice", "text", "object" or
    "list"; `choices` are all values of a choice.
    """

    expected: str
    fits: Callable[[Any], bool]
    parse: Callable[[str], Any]
    form: str
    choices: tuple[Any, ...] = ()

    def check(self, value: Any) -> Any:
        """Return the value, a whole number in float form (5.0) as an integer.

        Raises:
            BadValue: it does not fit.
        """
        if isinstance(value, float) and value.is_integer() and not self.fits(value):
            value = int(value)
        if not self.fits(value):
            raise refuse(value, self.expected)
        return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parse_integer(text: str) -> Any:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def _parse_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


_WORDS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _parse_size(text: str) -> Any:
    """Read `8GiB`, `20 GB` or a plain count of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text)
    if match is None or match[2].lower() not in _UNITS:
        return text
    return round(float(match[1]) * _UNITS[match[2].lower()]) if match[2] else _parse_integer(text)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def boolean() -> Kind:
    return Kind(
        "true or false", lambda value: isinstance(value, bool), lambda text: _WORDS.get(text.strip().lower(), text),
        "boolean",
    )  # fmt: skip


def integer(low: int, high: int | None = None) -> Kind:
    """A whole number of low..high, both included."""
    expected = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"
    return Kind(
        expected,
        lambda value: _is_integer(value) and value >= low and (high is None or value <= high),
        _parse_integer,
        "integer",
    )


def size(low: int = 1) -> Kind:
    """A number of bytes."""
    return Kind(
        f"a number of bytes >= {low}, such as 8GiB", lambda value: _is_integer(value) and value >= low, _parse_size,
        "size",
    )  # fmt: skip


def one_integer_of(*choices: int) -> Kind:
    expected = " or ".join(map(str, choices))
    return Kind(expected, lambda value: _is_integer(value) and value in choices, _parse_integer, "choice", choices)


def number(expected: str, fits: Callable[[float], bool]) -> Kind:
    """A finite number of some range, described by `expected`."""
    return Kind(f"a number {expected}", lambda value: _is_number(value) and fits(value), _parse_number, "number")


def word(*choices: str) -> Kind:
    expected = " or ".join(choices)
    return Kind(expected, lambda value: isinstance(value, str) and value in choices, str.strip, "choice", choices)


def text(expected: str = "a text", fits: Callable[[str], bool] = bool) -> Kind:
    return Kind(expected, lambda value: isinstance(value, str) and fits(value), str, "text")


def mapping() -> Kind:
    expected = 'a JSON object such as {"enable_thinking": false}'
    return Kind(expected, lambda value: isinstance(value, dict), _parse_json, "object")


def names() -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(item, str) and item for item in value)

    return Kind('a JSON list of names such as ["enable_thinking"]', fits, _parse_json, "list")


# Clean-up rules: what oMLX makes of a value before it checks or saves it. None means "as if absent".


def keep(value: Any) -> Any:
    return value


def empty_is_null(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def not_positive_is_null(value: Any) -> Any:
    return None if _is_number(value) and value <= 0 else value


def negative_is_zero(value: Any) -> Any:
    return 0 if _is_number(value) and value < 0 else value


@dataclass(frozen=True)
class Key:
    """One setting.

    `default` is what absence means. `oddities` are values that oMLX allows and nothing here can run: read and
    kept, shown as a fallback where they would be used, refused when typed. `use` says what takes it up:
    "load", "reply" or "serve". `extra` keys live in our own side file.
    """

    name: str
    label: str
    group: str
    kind: Kind
    default: Any
    hint: str
    use: str = "reply"
    clean: Callable[[Any], Any] = keep
    oddities: tuple[Any, ...] = ()
    extra: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it for one process."""
        return "DFLASH2_" + self.name.removeprefix("dflash_").upper()

    def normalise(self, value: Any, *, typed: bool = False) -> Any:
        """Clean up and check a value; None stands for "as if absent".

        Args:
            typed: somebody is setting it now, so what only oMLX can run is refused.
        Raises:
            BadValue: got and expected, without the key's name.
        """
        value = self.clean(value)
        if value is None or (not typed and value in self.oddities and not isinstance(value, bool)):
            return value
        return self.kind.check(value)

    def parse(self, text: str) -> Any:
        """Read what was typed; `null`, and nothing at all, stand for "as if absent".

        Raises:
            BadValue: got and expected, without the key's name.
        """
        if text.strip() in ("", "null", "none"):
            return None
        return self.normalise(self.kind.parse(text), typed=True)

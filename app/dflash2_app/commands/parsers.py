"""Turns the text of one option into its value, or refuses it.

Owns: the wording of a bad value: what was received, what is expected (Typer adds the option's name). Knows
no option by name. Every parser also takes its own result, because Typer runs defaults through it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import typer


@dataclass(frozen=True)
class TokenBias:
    """One `--logit-bias`: what is added to one token's logit."""

    token: int
    value: float


def refuse(given: object, expected: str) -> typer.BadParameter:
    """Word a bad value."""
    return typer.BadParameter(f"got {given!r}, expected {expected}")


def number(expected: str, fits: Callable[[float], bool]) -> Callable[[str | float], float]:
    """Make a parser for a finite number of some range, described by `expected`."""

    def parse(given: str | float) -> float:
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and fits(value)):
            raise refuse(given, f"a number {expected}")
        return value

    return parse


def integer(low: int, high: int | None = None) -> Callable[[str | int], int]:
    """Make a parser for an integer of low..high, both included."""
    expected = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"

    def parse(given: str | int) -> int:
        try:
            value = int(given)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise refuse(given, expected)
        return value

    return parse


class Numbers(tuple[float, ...]):
    """Different numbers of one option, in the order they were given."""

    def __str__(self) -> str:
        return ",".join(f"{value:g}" for value in self)


def numbers(one: Callable[[str], float], example: str) -> Callable[[str | Numbers], Numbers]:
    """Make a parser for a list such as 1,4,8 whose items `one` parses."""

    def parse(given: str | Numbers) -> Numbers:
        if isinstance(given, Numbers):
            return given
        values = Numbers(one(part.strip()) for part in given.split(","))
        if len(set(values)) != len(values):
            raise refuse(given, f"different numbers such as {example}")
        return values

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    """Make a parser for one of a few words."""

    def parse(given: str) -> str:
        if given not in choices:
            raise refuse(given, " or ".join(choices))
        return given

    return parse


def one_integer_of(*choices: int) -> Callable[[str | int], int]:
    """Make a parser for one of a few numbers."""
    word = one_of(*map(str, choices))
    return lambda given: int(word(str(given)))


def filled(given: str) -> str:
    """Parse a text that must not be empty."""
    if not given:
        raise refuse(given, "at least one character")
    return given


def path(given: str | Path) -> Path:
    """Parse a file or folder; an empty text would be the current one."""
    return Path(filled(str(given)))


def token_bias(given: str) -> TokenBias:
    """Parse ID=VALUE."""
    token, _, value = given.partition("=")
    try:
        bias = TokenBias(int(token), float(value))
    except ValueError:
        bias = TokenBias(-1, math.nan)
    if bias.token < 0 or not math.isfinite(bias.value):
        raise refuse(given, "ID=VALUE: a token id >= 0 and a finite number")
    return bias


def json_object(given: str) -> dict[str, Any]:
    """Parse the text of a JSON object."""
    try:
        value = json.loads(given)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise refuse(given, 'a JSON object such as {"enable_thinking": false}')
    return value


KEYWORD = inspect.Parameter.KEYWORD_ONLY


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of every parameter whose type is a dataclass."""
    groups: dict[str, type] = {}
    spread: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            groups[parameter.name] = group
            spread += _parameters(group)
        else:
            spread.append(parameter.replace(kind=KEYWORD))

    @functools.wraps(command)
    def gather(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in dataclasses.fields(group)})
        command(**values)

    del gather.__wrapped__  # else `inspect.signature` would look through to the ungrouped one
    gather.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]  # every function may have one
    gather.__annotations__ = {parameter.name: parameter.annotation for parameter in spread}
    return gather


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(item.name, KEYWORD, default=_default(item), annotation=hints[item.name])
        for item in dataclasses.fields(group)
    ]


def _default(item: dataclasses.Field[Any]) -> Any:
    """A field without a default becomes an option that must be given."""
    return inspect.Parameter.empty if item.default is dataclasses.MISSING else item.default

"""Lets a command take a dataclass of options as one parameter.

Owns: the spreading of a dataclass's fields into Typer options and their gathering back. Uses only what
Python says about signatures; Typer sees an ordinary function.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

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

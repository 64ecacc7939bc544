"""The form every refusal of the library has: one line, `field: got received, expected what should have come`."""

from __future__ import annotations

import re

FORM = re.compile(r"(?P<field>[^\n]+?): got (?P<received>[^\n]+), expected (?P<expected>[^\n]+)")


def says(error: Exception, field: str, received: object, expected: str = "") -> None:
    """The message names exactly this field and this value, and mentions `expected`."""
    match = FORM.fullmatch(str(error))
    assert match, f"not of the form 'field: got x, expected y': {error}"
    assert match["field"] == field
    assert match["received"] == repr(received)
    assert expected in match["expected"]


def mentions(error: Exception, *parts: object) -> None:
    """The message has the form and contains all these parts."""
    assert FORM.fullmatch(str(error)), f"not of the form 'field: got x, expected y': {error}"
    for part in parts:
        assert str(part) in str(error), f"{part!r} is not in: {error}"

"""The strict reading of one value: its type and range, or an error that names what came and what was expected.

Used wherever values come from callers or files, so that the same fault is told in the same words everywhere.
"""

from __future__ import annotations

import math
import sys

from .errors import ConfigError


def refusal(name: str, received: object, expected: str) -> ConfigError:
    """The error for a value that is not what was expected; to be raised by the caller."""
    return ConfigError(f"{name}: got {received!r}, expected {expected}")


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value, once it is an integer (no bool) in low..high.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        raise refusal(name, value, f"an integer >= {low}" if high is None else f"an integer in {low}..{high}")
    return value


def check_number(name: str, value: object, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """The value as a float, once it is a finite number (no bool) > above and >= least.

    Raises:
        ConfigError: it is something else.
    """
    expected = f"a number > {above:g}" if above > -math.inf else f"a number >= {least:g}"
    expected = "a finite number" if above == least == -math.inf else expected
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(name, value, expected)
    # Asked of the number as it is: JSON can state whole ones that no float holds.
    if not (abs(value) <= sys.float_info.max and above < value and least <= value):
        raise refusal(name, value, expected)
    return float(value)

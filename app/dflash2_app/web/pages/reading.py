"""What the web app's own endpoints share: reading a request strictly, working in a thread, and wording refusals.

Owns: the table from the application's errors to HTTP's. Knows no endpoint. Invariant: what is wrong with a request, a
file or the Hub is a 4xx of one line, never a fault of the server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from starlette.requests import Request

from ...errors import AppError, UsageError, one_line
from ...models.hub import HubError
from ..http.errors import BAD_REQUEST, CONFLICT, NOT_FOUND, ApiError, refuse
from ..http.fields import Fields, parse_json
from ..http.wire import Limits, read_body

HUB_FAILED = 424  # the Hub, not this server, could not do it
LONGEST_NAME = 1000
LONGEST_PART = 255  # of a path, in bytes: what file systems take
_FIELD = re.compile(r"(?:--)?([a-z][a-z_]*): got ")
T = TypeVar("T")


@contextmanager
def refusals(*, missing: bool = False) -> Iterator[None]:
    """Turn the application's errors into refusals.

    Args:
        missing: a wrong name means that there is no such thing (404).
    """
    import dflash2_mlx as d2

    try:
        yield
    except HubError as error:
        raise _refusal(error, HUB_FAILED, code="hub_failed") from None
    except UsageError as error:
        raise _refusal(error, NOT_FOUND if missing else BAD_REQUEST) from None
    except AppError as error:
        raise _refusal(error, CONFLICT) from None
    except d2.Dflash2Error as error:
        raise ApiError(one_line(str(error))) from None
    except OSError as error:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        raise ApiError(f"{where}{(error.strerror or str(error)).lower()}", status=CONFLICT) from None


def _refusal(error: AppError, status: int, code: str | None = None) -> ApiError:
    text = one_line(str(error))
    named = _FIELD.match(text)
    param = named[1] if named is not None else None
    return ApiError(text + (f" ({error.hint})" if error.hint else ""), status=status, param=param, code=code)


async def in_thread(work: Callable[[], T], *, missing: bool = False) -> T:
    """The work's result; its errors become refusals."""
    with refusals(missing=missing):
        return await asyncio.to_thread(work)


async def body_fields(request: Request, limits: Limits) -> Fields:
    """The fields of a JSON body; none for an empty one."""
    body = await read_body(request, limits)
    return Fields(parse_json(body) if body else {})


class Query:
    """The parameters of an address, each read once; what is left is refused by `finish`."""

    def __init__(self, request: Request):
        self._items = list(request.query_params.multi_items())

    def text(self, name: str) -> str | None:
        """The value, None when absent or empty."""
        found = self.texts(name)
        if len(found) > 1:
            raise refuse(name, found, "it once")
        return found[0] if found else None

    def texts(self, name: str) -> list[str]:
        """All values of a parameter that may be repeated."""
        found = [value for key, value in self._items if key == name and value]
        self._items = [item for item in self._items if item[0] != name]
        for value in found:
            if len(value) > LONGEST_NAME or not value.isprintable():
                raise refuse(name, value, f"a text of at most {LONGEST_NAME} printable characters")
        return found

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and len(value) < 12 and low <= int(value) <= high):
            raise refuse(name, value, f"an integer in {low}..{high}")
        return int(value)

    def boolean(self, name: str) -> bool:
        value = self.text(name)
        if value not in (None, "true", "false"):
            raise refuse(name, value, "true or false")
        return value == "true"

    def one_of(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(name) or default
        if value not in choices:
            raise refuse(name, value, " or ".join(choices))
        return value

    def finish(self) -> None:
        """Refuse what nobody asked for."""
        for name, value in self._items:
            raise refuse(name, value, "no such parameter", code="unknown_parameter")


def model_name(given: str | None, field: str = "model") -> str:
    """A model's name as a request gives it: fit to be looked for among folders.

    Raises:
        ApiError: none, or one that no folder and no Hub id can have.
    """
    if not given:
        raise refuse(field, given, "a folder, a Hub id like owner/name or a configured name")
    long = len(given) > LONGEST_NAME or any(len(part.encode()) > LONGEST_PART for part in given.split("/"))
    if long or not given.isprintable():
        raise refuse(field, given, f"at most {LONGEST_NAME} printable characters, {LONGEST_PART} between two /")
    if given.startswith("~"):
        try:
            Path(given).expanduser()
        except RuntimeError:
            raise refuse(field, given, "a folder (no such user)") from None
    return given

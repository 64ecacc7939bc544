"""What a client is told when its request cannot be served.

Owns: ApiError and how it reads in the OpenAI and the Anthropic form. Knows no endpoint. Invariant: a message is one
line; it names the field, what came and what was expected.
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import one_line

BAD_REQUEST, NOT_FOUND, CONFLICT = 400, 404, 409
TIMEOUT, TOO_LARGE, PACKED, QUEUE_FULL = 408, 413, 415, 429
INTERNAL, UNAVAILABLE = 500, 503
MOST_SHOWN = 120  # characters of a received value that a message repeats

ANTHROPIC_PATH = "/v1/messages"
TOO_LONG = "context_length_exceeded"  # OpenAI's word; agents that see it make the conversation shorter
OTHERWISE = "invalid_request_error"
# status -> the word each interface has for it
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", NOT_FOUND: "not_found_error",
                QUEUE_FULL: "rate_limit_error", INTERNAL: "server_error", UNAVAILABLE: "server_error"}  # fmt: skip
ANTHROPIC_TYPES = {401: "authentication_error", 403: "permission_error", NOT_FOUND: "not_found_error",
                   TOO_LARGE: "request_too_large", QUEUE_FULL: "rate_limit_error", INTERNAL: "api_error",
                   UNAVAILABLE: "overloaded_error"}  # fmt: skip


class ApiError(Exception):
    """A request that is refused, or a reply that failed.

    Args:
        message: one line; a field's name, a colon, what came and what was expected.
        param: the field's name, where one is at fault.
        code: a word for programs, such as "model_not_found".
    """

    def __init__(self, message: str, *, status: int = BAD_REQUEST, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def message(self) -> str:
        return one_line(str(self))

    def openai(self) -> dict[str, Any]:
        kind = OPENAI_TYPES.get(self.status, OTHERWISE)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        kind, message = ANTHROPIC_TYPES.get(self.status, OTHERWISE), self.message
        if self.code == TOO_LONG:  # there is no code: agents know it by Anthropic's words
            message = message.replace("prompt: ", "prompt is too long: ", 1)
        return {"type": "error", "error": {"type": kind, "message": message}}

    def of(self, path: str) -> dict[str, Any]:
        """In the form of the interface that a path belongs to."""
        return self.anthropic() if path.startswith(ANTHROPIC_PATH) else self.openai()


def shown(value: object) -> str:
    """A received value as a message repeats it: short, on one line."""
    text = one_line(repr(value))
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… ({len(text)} characters)"


def refuse(param: str, received: object, expected: str, **more: Any) -> ApiError:
    """Word the refusal of one field."""
    return ApiError(f"{param}: got {shown(received)}, expected {expected}", param=param, **more)


_NAMED = re.compile(r"([A-Za-z_][\w.\[\]]*): ")
_TOO_LONG = re.compile(r"prompt: got \d+ tokens, expected fewer than ")


def from_library(error: Exception) -> ApiError:
    """An error of the library about this very request; its text begins with the field's name."""
    text = one_line(str(error))
    named = _NAMED.match(text)
    return ApiError(text, param=named.group(1) if named else None, code=TOO_LONG if _TOO_LONG.match(text) else None)

"""What the endpoints that make text ask of an interface (OpenAI chat, completions, Anthropic, Responses).

Owns: the protocols only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..http import Frame
from ..served import Served
from .ask import Ask
from .errors import ApiError
from .parts import Part

if TYPE_CHECKING:
    import dflash2_mlx as d2

    from ..reply import Outcome


class Writer(Protocol):
    """Makes the events of one streamed reply."""

    def start(self, outcome: Outcome) -> list[Frame]:
        """With the first event: the outcome's statistics know the prompt."""

    def parts(self, parts: Sequence[Part], logprobs: Sequence[d2.TokenLogprob]) -> list[Frame]: ...

    def finish(self, outcome: Outcome) -> list[Frame]: ...

    def failed(self, error: ApiError) -> list[Frame]: ...


class Call(Protocol):
    """One request, read as far as it can be without its model."""

    model: str
    stream: bool

    def ask(self, served: Served) -> Ask:
        """The request against its model; reads the remaining fields.

        Raises:
            ApiError: a field is wrong, unknown, or beyond this model.
        """

    def whole(self, served: Served, outcome: Outcome) -> dict[str, Any]:
        """The reply that is not streamed."""

    def writer(self, served: Served) -> Writer:
        """For a streamed reply."""


class Interface(Protocol):
    """One way to ask for text."""

    def read(self, body: object) -> Call: ...

    def error(self, error: ApiError) -> Mapping[str, Any]: ...

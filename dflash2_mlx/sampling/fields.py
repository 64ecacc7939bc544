"""The table of sampling: one row per field, with all that a face of the project has to know of it.

Owns: names, neutral values and ranges, in the library and in a request of the server; under which keys settings keep a
field; whether it acts at temperature 0; the sentence of help texts and settings. The command line, settings, the chat,
the server and its description read it, so that a range stands in one place. Imports no MLX.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..validation import check_integer, check_number, refusal

# Where settings keep a field, as oMLX does: with a model; for all models; what `force_sampling` takes from a request.
MODEL_KEY, GLOBAL_KEY, FORCED_KEY = "model", "global", "forced"
EXTRA_KEY = "extra"  # with a model, in our own file beside oMLX's


@dataclass(frozen=True, kw_only=True)
class Field(ABC):
    """One attribute of `SamplingConfig`.

    `default` changes nothing. `settings` is where settings keep it; no setting holds a field without any.
    """

    name: str
    default: Any
    about: str
    settings: tuple[str, ...] = ()
    greedy: bool  # whether it acts at temperature 0

    def check(self, value: object) -> None:
        """See that sampling can have this value.

        Raises:
            ConfigError: it cannot.
        """
        if value is not None or self.default is not None:
            self._check(value)

    @abstractmethod
    def _check(self, value: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Number(Field):
    """A number of least..most. `request_most` is what the server takes; from below it leaves the check to us."""

    least: float
    most: float | None = None
    open_least: bool = False  # the number `least` itself is too small
    request_most: float

    @property
    def range(self) -> str:
        """The range in words, for after "a number"."""
        if self.most is None:
            return f"{'>' if self.open_least else '>='} {self.least:g}"
        return f"in {'(' if self.open_least else '['}{self.least:g}, {self.most:g}]"

    def fits(self, value: float) -> bool:
        """Whether a finite number is in the range."""
        if value < self.least or (self.open_least and value == self.least):
            return False
        return self.most is None or value <= self.most

    def _check(self, value: object) -> None:
        if self.most is not None:
            if not self.fits(check_number(self.name, value)):
                raise refusal(self.name, value, f"a number {self.range}")
        elif self.open_least:
            check_number(self.name, value, above=self.least)
        else:
            check_number(self.name, value, least=self.least)


@dataclass(frozen=True, kw_only=True)
class Integer(Field):
    """An integer of least..most; `request_most` is what the server takes."""

    least: int
    most: int | None = None
    request_most: int

    def _check(self, value: object) -> None:
        check_integer(self.name, value, self.least, self.most)


@dataclass(frozen=True, kw_only=True)
class Word(Field):
    """One of a few words."""

    choices: tuple[str, ...]

    def _check(self, value: object) -> None:
        if value not in self.choices:
            raise refusal(self.name, value, " or ".join(map(repr, self.choices)))


@dataclass(frozen=True, kw_only=True)
class Biases(Field):
    """A number by token id; the server takes those of -request_most..request_most."""

    request_most: int

    def _check(self, value: object) -> None:
        if not isinstance(value, Mapping):
            raise refusal(self.name, value, "a mapping from token id to bias")
        for token, bias in value.items():
            check_integer(self.name, token, 0)
            check_number(self.name, bias)


TEMPERATURE = Number(
    name="temperature", default=0.0, least=0, request_most=2.0, greedy=True,
    settings=(MODEL_KEY, GLOBAL_KEY, FORCED_KEY), about="0 takes the likeliest token",
)  # fmt: skip
TOP_P = Number(
    name="top_p", default=1.0, least=0, open_least=True, most=1, request_most=1, greedy=False,
    settings=(MODEL_KEY, GLOBAL_KEY, FORCED_KEY), about="Keep the likeliest tokens that hold this share",
)  # fmt: skip
TOP_K = Integer(
    name="top_k", default=0, least=0, request_most=2**31 - 1, greedy=False,
    settings=(MODEL_KEY, GLOBAL_KEY, FORCED_KEY), about="Keep the K likeliest tokens; 0 keeps all",
)  # fmt: skip
MIN_P = Number(
    name="min_p", default=0.0, least=0, most=1, request_most=1, greedy=False,
    settings=(MODEL_KEY,), about="Drop tokens below this share of the likeliest",
)  # fmt: skip
PRESENCE_PENALTY = Number(
    name="presence_penalty", default=0.0, least=-2, most=2, request_most=2, greedy=True,
    settings=(MODEL_KEY,), about="Taken once off what the reply holds",
)  # fmt: skip
FREQUENCY_PENALTY = Number(
    name="frequency_penalty", default=0.0, least=-2, most=2, request_most=2, greedy=True,
    settings=(EXTRA_KEY,), about="Taken off per time the reply holds it",
)  # fmt: skip
REPETITION_PENALTY = Number(
    name="repetition_penalty", default=1.0, least=0, open_least=True, request_most=10, greedy=True,
    settings=(MODEL_KEY, GLOBAL_KEY), about="Damps what prompt and reply hold; 1 is off",
)  # fmt: skip
LOGIT_BIAS = Biases(
    name="logit_bias", default=None, request_most=100, greedy=True,
    about="Add VALUE to a token's logit; repeatable",
)  # fmt: skip
SEED = Integer(
    name="seed", default=None, least=0, most=2**64 - 1, request_most=2**64 - 1, greedy=False,
    about="The same seed gives the same text",
)  # fmt: skip
LOSSLESS_MODE = Word(
    name="lossless_mode", default=None, choices=("rejection", "coupled"), greedy=False,
    about="How drafting keeps the target's law: rejection accepts more, coupled gives plain decoding's very text",
)  # fmt: skip

FIELDS: tuple[Field, ...] = (
    TEMPERATURE, TOP_P, TOP_K, MIN_P, PRESENCE_PENALTY, FREQUENCY_PENALTY, REPETITION_PENALTY, LOGIT_BIAS, SEED,
    LOSSLESS_MODE,
)  # fmt: skip
NUMBERS = tuple(field for field in FIELDS if isinstance(field, Number))
INTEGERS = tuple(field for field in FIELDS if isinstance(field, Integer))
# Names, in the table's order.
NAMES = tuple(field.name for field in FIELDS)
SETTINGS = tuple(field.name for field in FIELDS if field.settings)
IDLE_AT_ZERO = tuple(field.name for field in FIELDS if not field.greedy)  # they do nothing at temperature 0

"""What `/set` changes: how replies are drawn, how long they may be, how wide a block is.

Owns: the names, their defaults and the way to the library's settings, which checks the values. Knows nothing of
screens. Invariant: a value that was refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import IDLE_AT_ZERO, INTEGERS, LOSSLESS_MODE, NAMES

from ..errors import AppError

NONE = "default"  # the word that takes a setting back
DEFAULT_MAX_TOKENS = 4096


@dataclass(frozen=True)
class ReplySettings:
    """All that `/set` knows; the names are those of the library and of the options.

    `logit_bias` comes from the command line only: `/set` neither shows nor saves it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    lossless_mode: str | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    block_size: int | None = None
    verify_mode: str = "dflash"
    logit_bias: Mapping[int, float] | None = None

    def changed(self, name: str, text: str) -> ReplySettings:
        """These settings with one of them read from text.

        Raises:
            AppError: no such setting, or not a value.
            ConfigError: a value out of range, in the library's words.
        """
        default = DEFAULTS.get(name, ...)
        if default is ...:
            raise AppError(f"/set: got {name!r}, expected one of {', '.join(DEFAULTS)}")
        settings = replace(self, **{name: default if text == NONE else _parse(name, text)})
        settings.sampling()  # raises what the library does not take
        settings.config("auto")
        return settings

    def sampling(self) -> d2.SamplingConfig:
        """The library's form of how tokens are drawn."""
        return d2.SamplingConfig(**{name: getattr(self, name) for name in NAMES})

    def config(self, mode: str, most_tokens: int | None = None) -> d2.GenerationConfig:
        """The library's form of one reply; `most_tokens` is what the model's context leaves."""
        limit = self.max_tokens if most_tokens is None else min(self.max_tokens, most_tokens)
        return d2.GenerationConfig(
            max_tokens=limit,
            sampling=self.sampling(),
            block_size=self.block_size,
            verify_mode=self.verify_mode,
            mode=mode,
        )

    def saved(self) -> dict[str, Any]:
        """What differs from the defaults, for a file."""
        return {name: value for name, value in self.listed() if value != DEFAULTS[name]}

    def listed(self) -> list[tuple[str, Any]]:
        """All names and values."""
        return [(name, getattr(self, name)) for name in DEFAULTS]

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> ReplySettings:
        """From a file.

        Raises:
            AppError, ConfigError: it holds what `/set` would refuse.
        """
        settings = cls()
        for name, value in saved.items():
            settings = settings.changed(name, str(value))
        return settings

    @classmethod
    def from_config(cls, config: d2.GenerationConfig) -> ReplySettings:
        """From the library's form, for instance of a model's configured settings."""
        drawn = {name: getattr(config.sampling, name) for name in NAMES}
        return cls(**drawn, **{name: getattr(config, name) for name in _OF_REPLY})

    def without_effect(self, name: str, *, drafts: bool) -> str | None:
        """Why a setting that was just given does nothing, if so."""
        if name in IDLE_AT_ZERO and self.temperature == 0:
            return f"{name} has no effect at temperature 0"
        if name in ("block_size", "lossless_mode") and not drafts:
            return f"{name} has no effect without drafting"
        return None


DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(ReplySettings) if item.name != "logit_bias"}
_WHOLE = {*(field.name for field in INTEGERS), "max_tokens", "block_size"}
_OF_REPLY = {"max_tokens", "block_size", "verify_mode"}
_WORDS = {LOSSLESS_MODE.name, "verify_mode"}


def _parse(name: str, text: str) -> Any:
    if name in _WORDS:
        return text
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        kind = "an integer" if name in _WHOLE else "a number"
        raise AppError(f"{name}: got {text!r}, expected {kind} or {NONE!r}") from None

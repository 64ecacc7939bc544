"""What callers set for a reply: how tokens are drawn, where it stops, how it is drafted.

Owns: the ranges of these settings. Knows nothing of models. Invariant: a value that exists was checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..decode.request import MOST_TOKENS
from ..sampling.config import SamplingConfig
from ..validation import check_integer, refusal

VERIFY_MODES = ("dflash", "adaptive", "off")


@dataclass(frozen=True)
class GenerationConfig:
    """One reply: its length, its sampling, where it stops and how it is drafted.

    `max_tokens` may be any length where the model's config names its context: the reply ends there. With other models
    more than `MOST_TOKENS` is refused.

    `block_size` is the verify width (rows per round); None means the checkpoint's own.
    `verify_mode`: "dflash" verifies that many rows in every round, "adaptive" at most that many, by measured gain (see
    `widths.py`), "off" decodes plainly.
    `logprobs`: None for none, 0 for the emitted tokens', k for the k best alternatives as well.
    """

    MOST_TOKENS: ClassVar[int] = MOST_TOKENS

    max_tokens: int = 512
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] | None = None
    block_size: int | None = None
    verify_mode: str = "dflash"
    mode: str = "auto"
    logprobs: int | None = None
    chat_template: bool = True
    chat_template_kwargs: Mapping[str, Any] | None = field(default=None, hash=False)
    prefill_chunk: int = 512

    def __post_init__(self) -> None:
        check_integer("max_tokens", self.max_tokens, 1)
        if not isinstance(self.sampling, SamplingConfig):
            raise refusal("sampling", self.sampling, "a SamplingConfig")
        if not isinstance(self.stop, (tuple, list)) or not all(isinstance(s, str) and s for s in self.stop):
            raise refusal("stop", self.stop, "a tuple of non-empty strings")
        if not isinstance(self.stop_token_ids, (tuple, list, set, frozenset, type(None))):
            raise refusal("stop_token_ids", self.stop_token_ids, "a tuple of token ids")
        for token in self.stop_token_ids or ():
            check_integer("stop_token_ids", token, 0)
        if self.block_size is not None:
            check_integer("block_size", self.block_size, 2)
        if self.mode not in ("auto", "plain", "dflash2"):
            raise refusal("mode", self.mode, "'auto', 'plain' or 'dflash2'")
        if self.verify_mode not in VERIFY_MODES:
            raise refusal("verify_mode", self.verify_mode, "'dflash', 'adaptive' or 'off'")
        if self.verify_mode == "off" and self.mode == "dflash2":
            raise refusal("verify_mode", "off", "'dflash' or 'adaptive': mode 'dflash2' was asked for")
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, 20)
        if not isinstance(self.chat_template, bool):
            raise refusal("chat_template", self.chat_template, "true or false")
        if self.chat_template_kwargs is not None and not isinstance(self.chat_template_kwargs, Mapping):
            raise refusal("chat_template_kwargs", self.chat_template_kwargs, "a mapping")
        check_integer("prefill_chunk", self.prefill_chunk, 1)

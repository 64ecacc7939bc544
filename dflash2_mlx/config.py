"""What callers set for a reply: how tokens are drawn, where it stops, how it is drafted.

Owns: the ranges of these settings. Knows nothing of models. Invariant: a value that exists was checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .values import check_integer, check_number, refusal

VERIFY_MODES = ("dflash", "adaptive", "off")
GREEDY_TEMPERATURE = 1e-5  # below this, sampling is greedy (spec D-8)


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is drawn from the target's logits.

    Order everywhere: bias and penalties, temperature, top-k, top-p, min-p. Repetition penalty looks at
    prompt and reply, presence and frequency penalties at the reply only.

    `lossless_mode` picks how drafting keeps the distribution at temperature > 0: "rejection" (best
    acceptance) or "coupled" (the text equals plain sampling with the same seed). None means coupled
    when a seed is given, else rejection. It has no effect on greedy decoding.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    seed: int | None = None
    lossless_mode: str | None = None

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, least=0.0)
        if not 0 < check_number("top_p", self.top_p) <= 1:
            raise refusal("top_p", self.top_p, "a number in (0, 1]")
        check_integer("top_k", self.top_k, 0)
        if not 0 <= check_number("min_p", self.min_p) <= 1:
            raise refusal("min_p", self.min_p, "a number in [0, 1]")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= check_number(name, getattr(self, name)) <= 2:
                raise refusal(name, getattr(self, name), "a number in [-2, 2]")
        check_number("repetition_penalty", self.repetition_penalty, above=0.0)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, 2**64 - 1)
        if self.lossless_mode not in (None, "rejection", "coupled"):
            raise refusal("lossless_mode", self.lossless_mode, "'rejection' or 'coupled'")
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise refusal("logit_bias", self.logit_bias, "a mapping from token id to bias")
        for token, bias in (self.logit_bias or {}).items():
            check_integer("logit_bias", token, 0)
            check_number("logit_bias", bias)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken and nothing is drawn."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def coupled(self) -> bool:
        """Whether draft and target share one noise per position."""
        if self.lossless_mode is None:
            return self.seed is not None
        return self.lossless_mode == "coupled"

    @property
    def needs_history(self) -> bool:
        """Whether p depends on which tokens came before."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


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

    MOST_TOKENS: ClassVar[int] = 2**31 - 1  # sessions count the tokens of a reply in an int32 on the device

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

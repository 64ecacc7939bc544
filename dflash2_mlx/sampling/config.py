"""TODO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..validation import check_integer, check_number, refusal

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

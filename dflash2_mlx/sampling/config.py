"""How the next token is drawn: the caller's settings, checked by the table of `fields.py`.

Invariant: a `SamplingConfig` that exists is one that sampling can follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .fields import FIELDS

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
        for item in FIELDS:
            item.check(getattr(self, item.name))

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

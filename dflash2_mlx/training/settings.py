"""What a training run is given and what it tells: documents, settings, reports.

Reference: docs/dflash2.md 7.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError
from ..validation import check_integer

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Document:
    """One sequence. Shapes: tokens [S] int32; supervised [S] bool, the tokens to learn."""

    tokens: np.ndarray
    supervised: np.ndarray


@dataclass(frozen=True)
class TrainSettings:
    """How a drafter is trained; the defaults are the published recipe at a small scale.

    A step learns from `sequences` documents, up to `anchors` blocks of each. `warmup` is a share of `steps`. `dtype` is
    what passes compute in; weights and moments are float32 always. `conv` and `selector` say whether these parts learn;
    one that does not stays as it was made (identity, silent), and without `selector` there is no selector loss.
    """

    steps: int
    learning_rate: float = 6e-4
    warmup: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.0
    sequences: int = 4
    anchors: int = 64
    seed: int = 0
    dtype: str = "float32"
    conv: bool = True
    selector: bool = True

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("sequences", 1), ("anchors", 1), ("seed", 0)):
            check_integer(name, getattr(self, name), low)
        for name, fits, expected in (
            ("learning_rate", self.learning_rate > 0, "a number > 0"),
            ("warmup", 0 <= self.warmup < 1, "a number in [0, 1)"),
            ("clip", self.clip > 0, "a number > 0"),
            ("weight_decay", self.weight_decay >= 0, "a number >= 0"),
            ("dtype", self.dtype in DTYPES, " or ".join(DTYPES)),
        ):
            if not fits:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, expected {expected}")

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, ...: linear warm-up, then half a cosine down to zero."""
        warm = round(self.warmup * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


@dataclass(frozen=True)
class StepReport:
    """What one step saw. Shares are of supervised rows; `recall` bounds what the selector can reach."""

    step: int
    loss: float
    base: float
    selector: float
    top1: float
    recall: float
    selected: float
    rate: float
    gradient: float

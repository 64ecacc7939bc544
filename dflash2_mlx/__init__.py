"""dflash2-mlx: DFlash 2 speculative decoding on MLX, exactly the target's own output.

import dflash2_mlx as d2
engine = d2.load("mini")
for event in d2.stream_generate(engine, "def add(a, b):"):
    print(event.text, end="")
"""

from .compare import Verdict, compare_runs
from .config import DrafterConfig, GenerationConfig, SamplingConfig
from .constraints import LogitConstraint
from .drafter.model import DraftModel
from .errors import (
    CheckpointError,
    ConfigError,
    ConstraintError,
    Dflash2Error,
    PairError,
    PromptError,
    SettingError,
    UnsupportedModelError,
)
from .generate import collect, generate, new_session, stream_generate
from .load import Engine, load, load_drafter
from .loop import Session
from .prefix_cache import PrefixCache
from .results import GenerationEvent, GenerationResult, RoundInfo
from .session import DFlash2Session, PlainSession
from .stats import GenerationStats, TokenLogprob

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConstraintError",
    "DFlash2Session",
    "Dflash2Error",
    "DraftModel",
    "DrafterConfig",
    "Engine",
    "GenerationConfig",
    "GenerationEvent",
    "GenerationResult",
    "GenerationStats",
    "LogitConstraint",
    "PairError",
    "PlainSession",
    "PrefixCache",
    "PromptError",
    "RoundInfo",
    "SamplingConfig",
    "Session",
    "SettingError",
    "TokenLogprob",
    "UnsupportedModelError",
    "Verdict",
    "collect",
    "compare_runs",
    "generate",
    "load",
    "load_drafter",
    "new_session",
    "stream_generate",
]

"""dflash2-mlx: DFlash 2 speculative decoding on MLX, exactly the target's own output.

import dflash2_mlx as d2
engine = d2.load("mini")
for event in d2.stream_generate(engine, "def add(a, b):"):
    print(event.text, end="")
"""

from .blas import load_blas as _load_blas

_load_blas()  # before the imports below import MLX, which takes the BLAS that it finds then

from .compare import Verdict, compare_runs
from .config import GenerationConfig, SamplingConfig
from .constraints import LogitConstraint
from .conversation import Conversation, ThinkingMarks
from .convert import Conversion, convert_drafter
from .counting import count_prompt_tokens
from .describe import ModelFacts, describe_config
from .drafter.config import DrafterConfig
from .drafter.model import DraftModel
from .dtypes import load_precision
from .embedded import embedded_pair
from .errors import (
    CheckpointError,
    ConfigError,
    ConstraintError,
    Dflash2Error,
    LicenceError,
    PairError,
    PromptError,
    SettingError,
    TrainingError,
    UnsupportedModelError,
)
from .generate import collect, generate, new_session, stream_generate
from .load import Engine, load, load_drafter
from .loop import Session
from .memory import MemoryEstimate, Precision, memory_estimate
from .pairing import check_pair, check_pairing
from .prefix_cache import PrefixCache
from .results import GenerationEvent, GenerationResult, RoundInfo
from .session import DFlash2Session, PlainSession
from .stats import GenerationStats, TokenLogprob
from .text import RenderedPrompt, prompt_end, render_prompt

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConstraintError",
    "Conversation",
    "Conversion",
    "DFlash2Session",
    "Dflash2Error",
    "DraftModel",
    "DrafterConfig",
    "Engine",
    "GenerationConfig",
    "GenerationEvent",
    "GenerationResult",
    "GenerationStats",
    "LicenceError",
    "LogitConstraint",
    "MemoryEstimate",
    "ModelFacts",
    "PairError",
    "PlainSession",
    "Precision",
    "PrefixCache",
    "PromptError",
    "RenderedPrompt",
    "RoundInfo",
    "SamplingConfig",
    "Session",
    "SettingError",
    "ThinkingMarks",
    "TokenLogprob",
    "TrainingError",
    "UnsupportedModelError",
    "Verdict",
    "check_pair",
    "check_pairing",
    "collect",
    "compare_runs",
    "convert_drafter",
    "count_prompt_tokens",
    "describe_config",
    "embedded_pair",
    "generate",
    "load",
    "load_drafter",
    "load_precision",
    "memory_estimate",
    "new_session",
    "prompt_end",
    "render_prompt",
    "stream_generate",
]

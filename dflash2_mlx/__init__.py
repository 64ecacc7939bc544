"""dflash2-mlx: DFlash 2 speculative decoding on MLX, exactly the target's own output.

import dflash2_mlx as d2
engine = d2.load("mini")
for event in d2.stream_generate(engine, "def add(a, b):"):
    print(event.text, end="")
"""

from .device.blas import load_blas as _load_blas

_load_blas()  # before the imports below import MLX, which takes the BLAS that it finds then

from .checkpoints.configs import ModelFacts, check_pair, check_pairing, describe_config
from .checkpoints.convert import Conversion, convert_drafter
from .checkpoints.files import embedded_pair
from .checkpoints.memory import MemoryEstimate, Precision, memory_estimate
from .checkpoints.precision import load_precision
from .decode.request import TokenLogprob
from .decode.session import DFlash2Session, PlainSession, Session
from .decode.stats import GenerationStats
from .drafters.dflash2.config import DrafterConfig
from .drafters.dflash2.model import DraftModel
from .engine import Engine, load, load_drafter
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
from .generation.compare import Verdict, compare_runs
from .generation.config import GenerationConfig
from .generation.conversation import Conversation, ThinkingMarks
from .generation.generate import collect, count_prompt_tokens, generate, new_session, stream_generate
from .generation.results import GenerationEvent, GenerationResult, RoundInfo
from .generation.text import RenderedPrompt, prompt_end, render_prompt
from .prefix_cache import PrefixCache
from .sampling.config import SamplingConfig
from .sampling.constraints import LogitConstraint

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

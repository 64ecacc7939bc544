"""dflash2-mlx: DFlash 2 speculative decoding on MLX, exactly the target's own output.

import dflash2_mlx as d2
engine = d2.load("mini")
for event in d2.stream_generate(engine, "def add(a, b):"):
    print(event.text, end="")
"""

import importlib
import typing

from .device.blas import load_before_mlx as _load_before_mlx

_load_before_mlx()  # here, since Python imports the package before any part of it that imports MLX

__version__ = "0.1.0"

# The names are resolved on first use (PEP 562): importing the package imports no MLX.
if typing.TYPE_CHECKING:
    from . import analysis as analysis
    from . import bench as bench
    from . import training as training
    from . import tuning as tuning
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
        LogitsError,
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
else:
    _NAMES = {
        "checkpoints.configs": "ModelFacts check_pair check_pairing describe_config",
        "checkpoints.convert": "Conversion convert_drafter",
        "checkpoints.files": "embedded_pair",
        "checkpoints.memory": "MemoryEstimate Precision memory_estimate",
        "checkpoints.precision": "load_precision",
        "decode.request": "TokenLogprob",
        "decode.session": "DFlash2Session PlainSession Session",
        "decode.stats": "GenerationStats",
        "drafters.dflash2.config": "DrafterConfig",
        "drafters.dflash2.model": "DraftModel",
        "engine": "Engine load load_drafter",
        "errors": "CheckpointError ConfigError ConstraintError Dflash2Error LicenceError LogitsError PairError "
        "PromptError SettingError TrainingError UnsupportedModelError",
        "generation.compare": "Verdict compare_runs",
        "generation.config": "GenerationConfig",
        "generation.conversation": "Conversation ThinkingMarks",
        "generation.generate": "collect count_prompt_tokens generate new_session stream_generate",
        "generation.results": "GenerationEvent GenerationResult RoundInfo",
        "generation.text": "RenderedPrompt prompt_end render_prompt",
        "prefix_cache": "PrefixCache",
        "sampling.config": "SamplingConfig",
        "sampling.constraints": "LogitConstraint",
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
    _PACKAGES = ("analysis", "bench", "training", "tuning")  # public as well

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*__all__, *_PACKAGES, "__version__"])


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
    "LogitsError",
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

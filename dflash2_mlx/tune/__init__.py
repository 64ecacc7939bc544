"""Races our kernels against MLX's and times passes on this machine, and keeps what was found for later processes."""

from .background import BackgroundTuning, why_not
from .race import RaceResult
from .record import Identity, TuneFolder, TuneRecord, identity_of
from .run import NOTHING_TO_RACE, Attached, Progress, adopt, attach, tune

__all__ = [
    "NOTHING_TO_RACE",
    "Attached",
    "BackgroundTuning",
    "Identity",
    "Progress",
    "RaceResult",
    "TuneFolder",
    "TuneRecord",
    "adopt",
    "attach",
    "identity_of",
    "tune",
    "why_not",
]

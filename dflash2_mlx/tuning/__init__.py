"""Races our kernels against MLX's and times passes on this machine, and keeps what was found for later processes."""

from .background import BackgroundTuning, why_not
from .measure import RaceResult
from .record import Identity, TuneFolder, TuneRecord, identity_of
from .run import Attached, Plan, Progress, adopt, attach, nothing_to_race, plan, tune

__all__ = [
    "Attached",
    "BackgroundTuning",
    "Identity",
    "Plan",
    "Progress",
    "RaceResult",
    "TuneFolder",
    "TuneRecord",
    "adopt",
    "attach",
    "identity_of",
    "nothing_to_race",
    "plan",
    "tune",
    "why_not",
]

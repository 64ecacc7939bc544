"""Measures a pair: speed, acceptance, phases and memory, plain decoding and DFlash 2 in turn."""

from .defaults import recommended_sampling
from .metrics import (
    Cycle,
    Spread,
    acceptance_length,
    acceptance_rate,
    conditional_acceptance,
    expected_length,
    mean_over_requests,
    spread,
    time_per_token,
    variation,
)
from .observed import PHASES, measure_phases
from .prompts import BenchPrompt, as_messages, draw, mini_prompts, prompt_from, read_prompts
from .report import UNSTEADY, Advice, ArmReport, SettingReport, Texts, advise, summarize
from .runner import PLAIN, Comparison, Event, PhaseTimes, Plan, Run, Setting, Stage, check_plan, measure

__all__ = [
    "PHASES",
    "PLAIN",
    "UNSTEADY",
    "Advice",
    "ArmReport",
    "BenchPrompt",
    "Comparison",
    "Cycle",
    "Event",
    "PhaseTimes",
    "Plan",
    "Run",
    "Setting",
    "SettingReport",
    "Spread",
    "Stage",
    "Texts",
    "acceptance_length",
    "acceptance_rate",
    "advise",
    "as_messages",
    "check_plan",
    "conditional_acceptance",
    "draw",
    "expected_length",
    "mean_over_requests",
    "measure",
    "measure_phases",
    "mini_prompts",
    "prompt_from",
    "read_prompts",
    "recommended_sampling",
    "spread",
    "summarize",
    "time_per_token",
    "variation",
]

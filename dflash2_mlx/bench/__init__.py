"""Measures a pair: speed, acceptance, phases and memory, plain decoding and DFlash 2 in turn."""

from ..decode.stats import expected_length
from .defaults import recommended_sampling
from .metrics import (
    Round,
    Spread,
    acceptance_length,
    acceptance_rate,
    conditional_acceptance,
    mean_over_requests,
    spread,
    time_per_token,
    variation,
)
from .observed import PHASES, time_phases
from .prompts import (
    BenchPrompt,
    as_messages,
    deepen,
    draw,
    filler,
    mini_prompts,
    parse_prompts,
    prompt_from,
    read_prompts,
)
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
    "Event",
    "PhaseTimes",
    "Plan",
    "Round",
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
    "deepen",
    "draw",
    "expected_length",
    "filler",
    "mean_over_requests",
    "measure",
    "mini_prompts",
    "parse_prompts",
    "prompt_from",
    "read_prompts",
    "recommended_sampling",
    "spread",
    "summarize",
    "time_per_token",
    "time_phases",
    "variation",
]

"""One measurement of a pair, from its prompts to its record.

Owns: what a measurement of a pair is told, warns of and leaves. Shared by the command and the page, which differ in how
they show its course. Does not print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dflash2_mlx as d2

from .presets import THINKING
from .record import settings_json
from .sets import PromptSet

NO_PLAIN = "without width 1 there is nothing to compare with: no speed-up, no verdict, no advice"
NO_THINKING = "without a chat template there is no thinking to switch on"


def draw_sample(found: PromptSet, samples: int) -> PromptSet:
    """The sample of a set, by the authors' rule; all prompts where it has fewer."""
    return PromptSet(found.name, d2.bench.draw(found.prompts, samples), found.revision)


def template_args(
    engine: d2.Engine, preset: str | None, given: Mapping[str, Any] | None, *, chat_template: bool = True
) -> tuple[dict[str, Any] | None, list[str]]:
    """Variables of the chat template: what is given, and thinking where a preset was measured with it; and notes."""
    thinks = preset is not None and chat_template
    if thinks and not engine.tokenizer.has_chat_template:
        return (None if given is None else dict(given)), ([NO_THINKING] if given is None else [])
    return {**(THINKING if thinks else {}), **(given or {})} or None, []


@dataclass(frozen=True)
class PairBench:
    """A measurement that can begin; `notes` is what has to be told of it whatever comes."""

    engine: d2.Engine
    prompts: PromptSet
    plan: d2.bench.Plan
    preset: str | None = None
    notes: tuple[str, ...] = ()
    busy: str | None = None

    @property
    def requests(self) -> int:
        """How many timed requests it has."""
        return self.plan.requests(self.prompts.prompts)

    def check(self) -> None:
        """Refuse what would fail in the middle.

        Raises:
            SettingError, PromptError: naming what it is.
        """
        d2.bench.check_plan(self.engine, self.prompts.prompts, self.plan)

    def record(self, events: Iterable[d2.bench.Event], *, complete: bool) -> dict[str, Any]:
        """What `bench --json` prints, of a measurement as far as it came."""
        events = list(events)
        runs = [event for event in events if isinstance(event, d2.bench.Run)]
        reports = d2.bench.summarize(events)
        notes = list(self.notes)
        if self.engine.row_cost_note:
            notes.append(self.engine.row_cost_note)
        if d2.bench.PLAIN not in self.plan.widths:
            notes.append(NO_PLAIN)
        record = empty_record(self.prompts, self.plan, self.preset, self.busy)
        record |= {
            "kind": "pair",
            "model": self.engine.target_name,
            "drafter": self.engine.drafter_name,
            "block_size": self.engine.block_size,
            "settings": settings_json(reports, server=False),
            "recommendation": asdict(d2.bench.advise(reports)) if len(self.plan.widths) > 1 else None,
        }
        finish_record(record, runs, notes, complete=complete)
        return record


def empty_record(prompts: PromptSet, plan: d2.bench.Plan, preset: str | None, busy: str | None) -> dict[str, Any]:
    """The fields that every measurement has, in the order they are printed."""
    return {
        "kind": None,
        "complete": False,
        "requests": 0,
        "requests_planned": plan.requests(prompts.prompts),
        "model": None,
        "drafter": None,
        "block_size": None,
        "endpoint": None,
        "set": prompts.name,
        "revision": prompts.revision,
        "prompts": len(prompts.prompts),
        "preset": preset,
        "max_tokens": plan.max_tokens,
        "repeats": plan.repeats,
        "seed": plan.seed,
        "sampling": asdict(plan.sampling) | {"temperature": None, "seed": None},
        "chat_template": plan.chat_template,
        "chat_template_args": plan.chat_template_kwargs,
        "machine": d2.analysis.describe_machine(),
        "versions": d2.analysis.package_versions(),
        "busy": busy,
        "notices": [],
        "acceptance_sources": [],
        "settings": [],
        "recommendation": None,
    }


def finish_record(
    record: dict[str, Any], runs: Sequence[d2.bench.Run], notes: Sequence[str], *, complete: bool
) -> None:
    """Add how far it came and what has to be told."""
    told = [notice for run in runs for notice in run.notices]
    record["requests"] = len(runs)
    record["complete"] = complete
    record["notices"] = list(dict.fromkeys([*notes, *told]))

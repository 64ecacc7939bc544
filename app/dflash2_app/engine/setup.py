"""From settings to a loaded engine: what was configured, what this command says, and what came of it.

Owns: the reading of settings for one model, the report of what runs, with the reason where it decodes plainly, and
the routing of one prompt. Knows no command; `loading.py` loads. Reasons use oMLX's field names (`effective_engine`,
`dflash_requested`, `dflash_active`, `dflash_fallback_reason`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AppError
from ..settings.files import SettingsError
from ..settings.names import MINI, Named, find_model, source_of
from ..settings.paths import Base, find_base
from ..settings.plan import Plan, make_plan, usable_block_size
from ..settings.resolve import COMMAND_LINE, ENVIRONMENT, REQUEST, Effective, environment_values, model_layers, resolve
from ..settings.store import Settings, Store
from .loading import Loaded, LoadKey, load_engine, load_key
from .memory_fit import check_memory
from .model import DFLASH2, PLAIN, Configured, Report

# The embedded pair brings its drafter along, and no oMLX record whose silence would mean adaptive.
MINI_DEFAULTS = {"dflash_enabled": True, "dflash_draft_model": MINI, "dflash_verify_mode": "dflash"}


# oMLX's switches for things that nothing here has: told, so that nobody waits for their effect.
_FOREIGN_SWITCHES = (
    "mtp_enabled", "vlm_mtp_enabled", "specprefill_enabled", "turboquant_kv_enabled", "moe_expert_offload_enabled",
    "guided_grammar_enabled", "thinking_budget_enabled", "preserve_thinking", "reasoning_parser",
)  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """One model with everything settled and nothing loaded."""

    named: Named
    target: str
    chosen_by: str  # "name", "default model" or "nothing"
    effective: Effective
    plan: Plan
    notes: tuple[str, ...] = ()

    @property
    def drafts(self) -> bool:
        return self.plan.drafter is not None

    def load(
        self, *, plain: bool = False, several: bool = False, tell: Callable[[str], None] = lambda _: None
    ) -> Configured:
        """Load the target and, unless `plain`, its drafter.

        A configured drafter that cannot be loaded is a fallback to plain decoding with its reason; one named by
        this very command is an error.

        Args:
            plain: leave the drafter on disk.
            several: more than one reply will follow, so that a prefix cache in memory is of use.
            tell: is told what is going on.
        Raises:
            Dflash2Error: of the library.
            AppError: it cannot fit into memory.
        """
        room = check_memory(self.plan, plain=plain)
        tell(f"loading {self.target}")
        return self.over(load_engine(self.plan, room, plain=plain, several=several), plain=plain)

    @property
    def load_key(self) -> LoadKey:
        """Two setups of one key can share what is loaded."""
        return load_key(self.plan)

    def over(self, loaded: Loaded, *, plain: bool = False) -> Configured:
        """These settings over what a setup of the same `load_key` has loaded."""
        engine = loaded.engine
        width, cut = usable_block_size(self.plan, engine.block_size)
        # The embedded pair brings its drafter along, also where it is not wanted.
        drafts = self.drafts and engine.drafter is not None and not plain
        reason = loaded.reason if self.drafts else self.plan.fallback_reason
        report = Report(
            effective_engine=DFLASH2 if drafts else PLAIN,
            dflash_requested=self.plan.requested,
            dflash_active=drafts,
            dflash_fallback_reason=None if drafts or plain else reason,
            notes=(*self.notes, *loaded.present_notes, *([cut] if cut else [])),
        )
        return Configured(loaded, self.named, self.effective, self.plan, report, width if drafts else None)


def prepare(
    name: str | None = None,
    *,
    request: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    base: Base | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Setup:
    """Settle which model, with which drafter and settings; nothing is loaded.

    Args:
        name: a folder, a Hub id, a configured model or alias, or "mini"; None for the configured default model,
            else the embedded pair.
        request, command_line: settings by key.
        environment: of the process when not given.
        defaults: of the command, by key, where nobody says anything.
    Raises:
        SettingsError: a settings file cannot be read, or holds a value that cannot be used.
        UsageError: a value of this command cannot be used.
    """
    settings = Store(base or find_base()).load()
    chosen_by = "name" if name is not None else "nothing" if settings.default_model is None else "default model"
    named = find_model(settings, name or settings.default_model or MINI)
    levels: dict[str, Mapping[str, Any]] = {REQUEST: request or {}, COMMAND_LINE: command_line or {}}
    return prepare_named(
        settings, named, levels=levels, environment=environment, defaults=defaults, chosen_by=chosen_by
    )


def prepare_named(
    settings: Settings,
    named: Named,
    *,
    levels: Mapping[str, Mapping[str, Any]],
    environment: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    chosen_by: str = "name",
) -> Setup:
    """`prepare` for a model that was found already.

    Args:
        levels: settings by key, of the request's and the command line's level.
    Raises:
        as `prepare`.
    """
    target = source_of(settings, named)
    effective, plan, notes = _settle(
        settings, named, target, levels, os.environ if environment is None else environment, defaults
    )
    if effective.problems:
        raise SettingsError(
            f"{named.model_id}: {effective.problems[0]}", hint=f"`dflash2-mlx settings show {named.model_id}`"
        )
    return Setup(named, target, chosen_by, effective, plan, (*settings.notes, *notes))


def outlook(settings: Settings, named: Named, environment: Mapping[str, str]) -> tuple[Effective, Plan, list[str]]:
    """What a model's settings lead to, without a command's own options; values that cannot be used are left out."""
    try:
        target = source_of(settings, named)
    except AppError as error:
        found = _settle(settings, named, named.model_id, {}, environment, None)
        return found[0], found[1], [str(error), *found[2]]
    return _settle(settings, named, target, {}, environment, None)


def _settle(
    settings: Settings,
    named: Named,
    target: str,
    levels: Mapping[str, Mapping[str, Any]],
    environment: Mapping[str, str],
    defaults: Mapping[str, Any] | None,
) -> tuple[Effective, Plan, list[str]]:
    """Effective settings, the plan, and notes on this model's record and plan."""
    layers = {
        **levels,
        ENVIRONMENT: environment_values(environment),
        **model_layers(settings, named.model_id, named.profile),
    }
    effective = resolve(layers, {**(MINI_DEFAULTS if target == MINI else {}), **(defaults or {})})
    folders = {"ssd_folder": settings.ssd_folder, "tune_folder": settings.base.tune}
    plan = make_plan(effective, target, **folders)
    return effective, plan, [*_record_notes(settings, named), *plan.notes]


def _record_notes(settings: Settings, named: Named) -> list[str]:
    record = settings.record(named.model_id)
    notes = settings.record_notes(named.model_id)
    idle = [name for name in _FOREIGN_SWITCHES if record.get(name)]
    if idle:
        notes.append(f"{named.model_id}: kept for oMLX, without effect here: {', '.join(idle)}")
    return notes

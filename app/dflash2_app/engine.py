"""From settings to a loaded engine: what was configured, what this command says, and what came of it.

Owns: the reading of settings for one model, loading by the plan, the fallback to plain decoding with its reason,
and the routing of one prompt. Knows no command. Reasons use oMLX's field names (`effective_engine`,
`dflash_requested`, `dflash_active`, `dflash_fallback_reason`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .errors import AppError
from .fit import Room, check_memory
from .settings.files import SettingsError
from .settings.names import MINI, Named, find_model, source_of
from .settings.paths import Base, find_base
from .settings.plan import (
    Abilities,
    Plan,
    drafter_dtype,
    make_plan,
    plain_reason,
    usable_block_size,
    usable_view,
)
from .settings.resolve import COMMAND_LINE, ENVIRONMENT, REQUEST, Effective, environment_values, model_layers, resolve
from .settings.store import Settings, Store

if TYPE_CHECKING:
    import dflash2_mlx as d2

# What the library of this build can do beyond fixed widths; see `settings.plan`.
ABILITIES = Abilities(adaptive_widths=True, draft_window=True, prefix_cache=True)
PLAIN, DFLASH2 = "plain", "dflash2"
# The embedded pair brings its drafter along, and no oMLX record whose silence would mean adaptive.
MINI_DEFAULTS = {"dflash_enabled": True, "dflash_draft_model": MINI, "dflash_verify_mode": "dflash"}
# oMLX's switches for things that nothing here has: told, so that nobody waits for their effect.
_FOREIGN_SWITCHES = (
    "mtp_enabled", "vlm_mtp_enabled", "specprefill_enabled", "turboquant_kv_enabled", "moe_expert_offload_enabled",
    "guided_grammar_enabled", "thinking_budget_enabled", "preserve_thinking", "reasoning_parser",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What runs, in oMLX's words, and what else the user should know."""

    effective_engine: str
    dflash_requested: bool
    dflash_active: bool
    dflash_fallback_reason: str | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "notes": list(self.notes)}


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
        engine, reason, notes = _load(self.plan, plain=plain)
        cache, cut_cache = _prefix_cache(self.plan, room, several=several)
        notes += [*room.notes, *([cut_cache] if cut_cache else [])]
        width, cut = usable_block_size(self.plan, engine.block_size)
        notes += [cut] if cut else []
        # The embedded pair brings its drafter along, also where it is not wanted.
        drafts = self.drafts and engine.drafter is not None and not plain
        report = Report(
            effective_engine=DFLASH2 if drafts else PLAIN,
            dflash_requested=self.plan.requested,
            dflash_active=drafts,
            dflash_fallback_reason=None if drafts else reason,
            notes=(*self.notes, *notes),
        )
        return Configured(
            engine, self.named, self.effective, self.plan, report, width if drafts else None, cache,
        )  # fmt: skip


@dataclass(frozen=True)
class Configured:
    """A loaded engine with its settings. `block_size` is the one to decode with, None for the checkpoint's."""

    engine: d2.Engine
    named: Named
    effective: Effective
    plan: Plan
    report: Report
    block_size: int | None = None
    prefix_cache: Any = None

    @property
    def mode(self) -> str:
        """The mode of a `GenerationConfig`: "auto" also where there is no drafter, so that the library says why."""
        if self.report.dflash_active or self.engine.drafter is None:
            return "auto"
        return PLAIN

    def generation_config(
        self,
        template: Mapping[str, Any] | None = None,
        *,
        forced: bool = True,
        sampling: Mapping[str, Any] | None = None,
        **library: Any,
    ) -> d2.GenerationConfig:
        """Settings of one reply.

        Args:
            template: chat template variables of this reply; see `template_variables`, also for `forced`.
            sampling: further fields of the library's `SamplingConfig` (seed, logit_bias, lossless_mode).
            library: further fields of its `GenerationConfig`.
        """
        import dflash2_mlx as d2

        values = self.effective
        names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
        drawn = {name: values[name] for name in (*names, "repetition_penalty")}
        if ABILITIES.adaptive_widths:  # else the library has no such field
            library = {"verify_mode": self.plan.verify_mode, **library}
        chosen = {"max_tokens": values["max_tokens"], "block_size": self.block_size, "mode": self.mode, **library}
        has_template = self.engine.tokenizer.has_chat_template and chosen.get("chat_template", True)
        return d2.GenerationConfig(
            sampling=d2.SamplingConfig(**drawn, **(sampling or {})),
            chat_template_kwargs=template_variables(values, template or {}, has_template, forced=forced),
            **chosen,
        )

    def stream_generate(
        self, prompt: Any, config: d2.GenerationConfig, *, session: d2.Session | None = None
    ) -> Generator[d2.GenerationEvent, None, None]:
        """Reply, drafting or not by this prompt's length.

        A prompt that Max Context sends to plain decoding leaves `session` alone: the next one may be drafted.

        Raises:
            AppError: the prompt is as long as Max context window, or longer.
        """
        import dflash2_mlx as d2

        config, reason = self._routed(prompt, config)
        if reason is not None and session is not None and isinstance(session, d2.DFlash2Session):
            session = None
        reason = reason or (self.report.dflash_fallback_reason if config.mode != DFLASH2 else None)
        given = {"session": session, "prefix_cache": self.prefix_cache}
        options = {name: value for name, value in given.items() if value is not None}
        return _with_reason(d2.stream_generate(self.engine, prompt, config, **options), reason)

    def generate(
        self, prompt: Any, config: d2.GenerationConfig, *, session: d2.Session | None = None
    ) -> d2.GenerationResult:
        """Reply whole; see `stream_generate`."""
        import dflash2_mlx as d2

        return d2.collect(self.engine, self.stream_generate(prompt, config, session=session))

    def _routed(self, prompt: Any, config: d2.GenerationConfig) -> tuple[d2.GenerationConfig, str | None]:
        import dflash2_mlx as d2

        plan = self.plan
        if plan.max_ctx is None and plan.max_context_window is None:
            return config, None
        tokens = d2.count_prompt_tokens(self.engine, prompt, config)
        if plan.max_context_window is not None:
            if tokens >= plan.max_context_window:
                raise AppError(
                    f"prompt: got {tokens} tokens, expected fewer than Max context window ({plan.max_context_window})"
                )
            config = replace(config, max_tokens=min(config.max_tokens, plan.max_context_window - tokens))
        reason = plain_reason(plan, tokens) if self.report.dflash_active and config.mode != PLAIN else None
        return (config if reason is None else replace(config, mode=PLAIN)), reason


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
    target = source_of(settings, named)
    levels: dict[str, Mapping[str, Any]] = {REQUEST: request or {}, COMMAND_LINE: command_line or {}}
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
    plan = make_plan(effective, target, abilities=ABILITIES, ssd_folder=settings.ssd_folder)
    return effective, plan, [*_record_notes(settings, named), *plan.notes]


def load_configured(
    name: str | None = None,
    *,
    plain: bool = False,
    several: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    **levels: Any,
) -> Configured:
    """`prepare` and `load` in one call; `levels` as in `prepare`, the rest as in `Setup.load`."""
    return prepare(name, **levels).load(plain=plain, several=several, tell=tell)


def _record_notes(settings: Settings, named: Named) -> list[str]:
    record = settings.record(named.model_id)
    notes = settings.record_notes(named.model_id)
    idle = [name for name in _FOREIGN_SWITCHES if record.get(name)]
    if idle:
        notes.append(f"{named.model_id}: kept for oMLX, without effect here: {', '.join(idle)}")
    return notes


def _load(plan: Plan, *, plain: bool) -> tuple[d2.Engine, str | None, list[str]]:
    """Engine, the reason for which it does not draft although it was to, and notes."""
    import dflash2_mlx as d2

    if plain:
        return _load_target(plan), None, []
    if plan.drafter is None:
        return _load_target(plan), plan.fallback_reason, []
    try:
        return _load_pair(plan)
    except d2.Dflash2Error as error:
        if plan.strict or plan.target == MINI:
            raise
        engine = _load_target(plan)  # if the target is at fault, this says so
        return engine, f"the drafter cannot be used: {' '.join(str(error).split())}", []


def _prefix_cache(plan: Plan, room: Room, *, several: bool) -> tuple[Any, str | None]:
    """The prefix cache that the settings describe, or None, and what to tell of its size."""
    limits = plan.prefix
    if limits is None or not (several or limits.disk_folder):
        return None, None
    import dflash2_mlx as d2

    size, note = room.prefix_bytes(limits.max_bytes)
    return d2.PrefixCache(limits.max_entries, size, limits.disk_folder, limits.disk_max_bytes), note


def _load_target(plan: Plan) -> d2.Engine:
    import dflash2_mlx as d2

    return d2.load(plan.target, None, draft_bits=None, draft_group_size=64, target_dtype=plan.target_dtype)


def _load_pair(plan: Plan) -> tuple[d2.Engine, str | None, list[str]]:
    import dflash2_mlx as d2
    from dflash2_mlx import analysis

    assert plan.drafter is not None
    embedded = MINI in (plan.target, plan.drafter)
    # What was typed for this very command goes to the library as it is: it refuses by name what cannot be.
    config = None if plan.strict or embedded else d2.check_pairing(plan.target, plan.drafter)
    bits, window, sink, notes = plan.draft_bits, plan.draft_window, plan.draft_sink, []
    if config is not None:
        if bits is not None and config.quantization:
            bits = None
            notes.append("Quantization: has no effect: the drafter's files are quantized already")
        window, sink, cuts = usable_view(plan, config.block_size, config.sliding_window)
        notes += cuts
    dtype, note = drafter_dtype(plan.activation_bits, analysis.backend()) if plan.activation_bits else ("auto", None)
    notes += [note] if note else []
    rare = {"drafter_dtype": (dtype, "auto"), "draft_window": (window, None), "draft_sink": (sink, 0)}
    engine = d2.load(
        plan.target,
        None if plan.drafter == MINI == plan.target else plan.drafter,
        draft_bits=bits,
        draft_group_size=plan.draft_group_size,
        target_dtype=plan.target_dtype,
        **{name: value for name, (value, default) in rare.items() if value != default},
    )
    return engine, None, notes


def template_variables(
    effective: Effective, given: Mapping[str, Any], has_template: bool, *, forced: bool = True
) -> dict[str, Any] | None:
    """Join configured and given variables of the chat template.

    Args:
        has_template: a model without one takes no variables, so configured ones are left out.
        forced: whether the configured names of `forced_ct_kwargs` win over the given ones.
    """
    configured = dict(effective["chat_template_kwargs"] or {}) if has_template else {}
    if has_template and effective["enable_thinking"] is not None:
        configured["enable_thinking"] = effective["enable_thinking"]
    names = effective["forced_ct_kwargs"] or () if forced else ()
    kept = {name: configured[name] for name in names if name in configured}
    return {**configured, **given, **kept} or None


def _with_reason(
    events: Generator[d2.GenerationEvent, None, None], reason: str | None
) -> Generator[d2.GenerationEvent, None, None]:
    """Pass events on, with our reason for plain decoding in place of the library's."""
    try:
        for event in events:
            if reason is not None and event.stats.mode == PLAIN:
                event.stats.fallback_reason = reason
            yield event
    finally:
        events.close()

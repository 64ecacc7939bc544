"""From settings to a loaded engine: what was configured, what this command says, and what came of it.

Owns: the reading of settings for one model, the report of what runs, with the reason where it decodes plainly, and
the routing of one prompt. Knows no command; `loading.py` loads. Reasons use oMLX's field names (`effective_engine`,
`dflash_requested`, `dflash_active`, `dflash_fallback_reason`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .errors import AppError
from .fit import check_memory
from .loading import Loaded, LoadKey, load_engine, load_key
from .settings.files import SettingsError
from .settings.names import MINI, Named, find_model, source_of
from .settings.paths import Base, find_base
from .settings.plan import Plan, make_plan, plain_reason, usable_block_size
from .settings.resolve import COMMAND_LINE, ENVIRONMENT, REQUEST, Effective, environment_values, model_layers, resolve
from .settings.store import Settings, Store

if TYPE_CHECKING:
    import dflash2_mlx as d2

# What the library of this build can do beyond fixed widths; see `settings.plan`.
AUTO, PLAIN, DFLASH2 = "auto", "plain", "dflash2"
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


@dataclass(frozen=True)
class Configured:
    """A loaded engine with its settings. `block_size` is the one to decode with, None for the checkpoint's."""

    loaded: Loaded
    named: Named
    effective: Effective
    plan: Plan
    report: Report
    block_size: int | None = None

    @property
    def engine(self) -> d2.Engine:
        return self.loaded.engine

    @property
    def prefix_cache(self) -> Any:
        """The library's `PrefixCache`, or None."""
        return self.loaded.prefix_cache

    @property
    def mode(self) -> str:
        """The mode of a `GenerationConfig`: "auto" also where there is no drafter, so that the library says why."""
        if self.report.dflash_active or self.engine.drafter is None:
            return AUTO
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
        chosen = {
            "max_tokens": values["max_tokens"],
            "block_size": self.block_size,
            "verify_mode": self.plan.verify_mode,
            "mode": self.mode,
            **library,
        }
        has_template = self.engine.tokenizer.has_chat_template and chosen.get("chat_template", True)
        return d2.GenerationConfig(
            sampling=d2.SamplingConfig(**drawn, **(sampling or {})),
            chat_template_kwargs=template_variables(values, template or {}, has_template, forced=forced),
            **chosen,
        )

    def stream_generate(
        self,
        prompt: Any,
        config: d2.GenerationConfig,
        *,
        session: d2.Session | None = None,
        constraint: d2.LogitConstraint | None = None,
    ) -> Generator[d2.GenerationEvent, None, None]:
        """Reply, drafting or not by this prompt's length; a `config.mode` of "dflash2" insists on drafting.

        A prompt that Max Context sends to plain decoding leaves `session` alone: the next one may be drafted.

        Raises:
            AppError: the prompt is as long as Max context window, or longer.
        """
        import dflash2_mlx as d2

        config, reason, notices = self._routed(prompt, config)
        if reason is not None and session is not None and isinstance(session, d2.DFlash2Session):
            session = None
        reason = reason or (self.report.dflash_fallback_reason if config.mode != DFLASH2 else None)
        given = {"session": session, "constraint": constraint, "prefix_cache": self.prefix_cache}
        options = {name: value for name, value in given.items() if value is not None}
        return _told(d2.stream_generate(self.engine, prompt, config, **options), reason, notices)

    def generate(
        self, prompt: Any, config: d2.GenerationConfig, *, session: d2.Session | None = None
    ) -> d2.GenerationResult:
        """Reply whole; see `stream_generate`."""
        import dflash2_mlx as d2

        return d2.collect(self.engine, self.stream_generate(prompt, config, session=session))

    def _routed(self, prompt: Any, config: d2.GenerationConfig) -> tuple[d2.GenerationConfig, str | None, list[str]]:
        """The config for this prompt, why it is decoded plainly, and what was cut."""
        import dflash2_mlx as d2

        plan, notices = self.plan, []
        if plan.max_ctx is None and plan.max_context_window is None:
            return config, None, []
        tokens = d2.count_prompt_tokens(self.engine, prompt, config)
        if plan.max_context_window is not None:
            room = plan.max_context_window - tokens
            if room <= 0:
                raise AppError(
                    f"prompt: got {tokens} tokens, expected fewer than Max context window ({plan.max_context_window})"
                )
            if config.max_tokens > room:
                notices.append(f"max_tokens: {config.max_tokens} was cut to {room}, what Max context window leaves")
                config = replace(config, max_tokens=room)
        reason = plain_reason(plan, tokens) if self.report.dflash_active and config.mode == AUTO else None
        return (config if reason is None else replace(config, mode=PLAIN)), reason, notices


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


def _told(
    events: Generator[d2.GenerationEvent, None, None], reason: str | None, notices: list[str]
) -> Generator[d2.GenerationEvent, None, None]:
    """Pass events on, with our reason for plain decoding in place of the library's, and our notices."""
    try:
        for event in events:
            if reason is not None and event.stats.mode == PLAIN:
                event.stats.fallback_reason = reason
            event.stats.notices[:0] = notices
            yield event
    finally:
        events.close()

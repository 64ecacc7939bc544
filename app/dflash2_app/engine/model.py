"""A loaded model under its settings: the limits they set, what is told with a reply, and the template's variables."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import SETTINGS

from ..errors import AppError
from ..settings.names import Named
from ..settings.plan import Plan, plain_reason
from ..settings.resolve import Effective
from .loading import Loaded

# What the library of this build can do beyond fixed widths; see `settings.plan`.
AUTO, PLAIN, DFLASH2 = "auto", "plain", "dflash2"


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
        values = self.effective
        drawn = {name: values[name] for name in SETTINGS}
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
        return d2.collect(self.engine, self.stream_generate(prompt, config, session=session))

    def _routed(self, prompt: Any, config: d2.GenerationConfig) -> tuple[d2.GenerationConfig, str | None, list[str]]:
        """The config for this prompt, why it is decoded plainly, and what was cut."""
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


INSIDE, BEFORE, NO_THINKING = "inside", "before", "none"  # where a reply begins


Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]

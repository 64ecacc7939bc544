"""One loaded model as a request sees it, and the seam to whatever loads models.

Owns: `Served` (a configured engine with what a request that names nothing itself gets), `Source` (something that can
be loaded) and its `Card`. Knows no endpoint and no settings file; `offers.py` makes sources of them.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from ...engine.model import BEFORE, INSIDE, NO_THINKING, Configured, Prompt, Report
from ...engine.token_text import TokenReader
from ...settings.resolve import FORCED
from .grammars import Grammars

if TYPE_CHECKING:
    import dflash2_mlx as d2


@dataclass(frozen=True)
class Served:
    """A loaded model under one name, with the settings that hold for its requests.

    `grammars` belong to what is loaded: other settings over the same engine share them. `notes` are told with every
    reply. `config` stands in place of the settings' own defaults, for a server that was given other ones.
    """

    name: str
    pair: Configured
    grammars: Grammars
    notes: tuple[str, ...] = ()
    config: d2.GenerationConfig | None = None

    @classmethod
    def of(cls, name: str, pair: Configured, **more: Any) -> Self:
        """A model that was just loaded."""
        return cls(name, pair, Grammars(pair.engine.tokenizer, pair.engine.stop_token_ids), **more)

    @property
    def engine(self) -> d2.Engine:
        return self.pair.engine

    def stop(self) -> None:
        """End what goes on in the background; the engine is about to leave memory."""
        self.pair.loaded.stop()

    @property
    def tuning(self) -> dict[str, Any] | None:
        """What goes on in the background, or has, since it was loaded."""
        return self.pair.loaded.tuned.now

    @property
    def report(self) -> Report:
        return self.pair.report

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    @functools.cached_property
    def token_reader(self) -> TokenReader:
        """Reads single tokens, for log-probabilities."""
        return TokenReader(self.tokenizer)

    @property
    def vocab_size(self) -> int:
        """Rows of the target's output head: the width of a mask."""
        return int(self.engine.target.spec.vocab_size)

    @functools.cached_property
    def defaults(self) -> d2.GenerationConfig:
        """What a request gets that names nothing itself."""
        return self.pair.generation_config() if self.config is None else self.config

    @functools.cached_property
    def most_tokens(self) -> int | None:
        """The most tokens of a reply that may be asked for; None where the context cuts what is too much."""
        bounded = any(limit is not None for limit in self._context_limits)
        return None if bounded else self.defaults.MOST_TOKENS

    @property
    def _context_limits(self) -> tuple[int | None, ...]:
        return self.engine.context_length, self.pair.plan.max_context_window

    @property
    def template_defaults(self) -> Mapping[str, Any]:
        """Variables of the chat template, where a request names none."""
        return self.defaults.chat_template_kwargs or {}

    @functools.cached_property
    def forced_sampling(self) -> frozenset[str]:
        """Fields in which the settings win over a request (Force sampling)."""
        values = self.pair.effective
        return frozenset(name for name in FORCED if values["force_sampling"] and values.configured(name))

    @functools.cached_property
    def forced_template(self) -> Mapping[str, Any]:
        """Variables of the chat template that a request may not change, with their values."""
        standing = self.template_defaults
        names = self.pair.effective["forced_ct_kwargs"] or ()
        return {name: standing[name] for name in names if name in standing}

    @property
    def template_text(self) -> str:
        """The chat template's text; empty where there is none to read."""
        template = self.tokenizer.chat_template if self.tokenizer.has_chat_template else None
        if isinstance(template, Mapping):
            template = template.get("default")
        return template if isinstance(template, str) else ""

    def render(self, prompt: Prompt, config: d2.GenerationConfig) -> d2.RenderedPrompt:
        """The prompt's tokens, for `stream` and `thinking_state`: a prompt is rendered once.

        Raises:
            PromptError: the prompt cannot be used.
        """
        import dflash2_mlx as d2

        return d2.render_prompt(
            self.tokenizer,
            prompt,
            chat_template=config.chat_template,
            template_kwargs=config.chat_template_kwargs,
            find_boundaries=self.pair.prefix_cache is not None,
        )

    def stream(
        self,
        prompt: Prompt | d2.RenderedPrompt,
        config: d2.GenerationConfig,
        constraint: d2.LogitConstraint | None = None,
    ) -> Generator[d2.GenerationEvent, None, None]:
        """Reply to a prompt, as the settings say; nothing runs before the first event is asked for.

        Raises:
            ConfigError, PromptError, AppError: at once.
        """
        return self.pair.stream_generate(prompt, config, constraint=constraint)

    def within_context(self, prompt: d2.RenderedPrompt, config: d2.GenerationConfig) -> d2.GenerationConfig:
        """The config with the longest reply that fits behind this prompt: for who named no length of a reply."""
        room = min((limit for limit in self._context_limits if limit is not None), default=None)
        left = config.max_tokens if room is None else room - len(prompt.ids)
        return config if left < 1 or left >= config.max_tokens else replace(config, max_tokens=left)

    def count_tokens(self, prompt: Prompt, config: d2.GenerationConfig) -> int:
        """How many tokens a prompt has.

        Raises:
            ConfigError, PromptError, AppError: there could be no reply to it.
        """
        import dflash2_mlx as d2

        rendered = self.render(prompt, config)
        self.stream(rendered, config).close()  # only checks: a reply nobody asked for costs nothing
        return d2.count_prompt_tokens(self.engine, rendered, config)

    def thinking_state(self, prompt: d2.RenderedPrompt, config: d2.GenerationConfig) -> str:
        """Where a reply to this prompt begins, by the marks at the prompt's end.

        Returns:
            "inside" the thinking, "before" it (the model may think or not), or "none": past it, or without any.
        """
        import dflash2_mlx as d2

        tokenizer = self.tokenizer
        if not (config.chat_template and tokenizer.has_chat_template and tokenizer.has_thinking):
            return NO_THINKING
        end = d2.prompt_end(tokenizer, prompt.ids)
        if end.endswith(tokenizer.think_start):
            return INSIDE
        return NO_THINKING if end.endswith(tokenizer.think_end) else BEFORE


@dataclass(frozen=True)
class Card:
    """An offered model in lists: its names, and what its settings wish for it apart from replies.

    Args:
        model_id: its key in the settings files.
        alias: the name its settings give it.
        profile: of an exposed profile, the profile's name; `base` is then the name of the model it belongs to.
        ttl_s: idle seconds after which it may go; None keeps it.
        dflash_requested, notes, settings: what is known of replies before anything is loaded; `settings` holds a
            value and its origin by key.
        problem: why it cannot be loaded as it is configured.
    """

    model_id: str | None = None
    alias: str | None = None
    profile: str | None = None
    base: str | None = None
    is_hidden: bool = False
    is_pinned: bool = False
    is_favorite: bool = False
    ttl_s: float | None = None
    display_name: str | None = None
    description: str | None = None
    dflash_requested: bool | None = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str | None = None


class Source(Protocol):
    """Something that can be loaded, and what is known of it before."""

    @property
    def name(self) -> str:
        """What requests call it."""

    @property
    def card(self) -> Card: ...

    @property
    def key(self) -> Hashable:
        """Sources of one key share what is loaded; another key means another engine."""

    @property
    def weight_bytes(self) -> int | None:
        """Memory its weights take, target and drafter; None where unknown before loading."""

    def check(self) -> None:
        """Refuse what cannot be loaded, before anything makes room for it.

        Raises:
            AppError: its settings cannot be used, or it cannot fit this machine.
        """

    def load(self) -> Served:
        """Read the weights; takes seconds to minutes."""

    def view(self, served: Served) -> Served:
        """This source's settings over what it, or another one of its key, has loaded."""


@dataclass(frozen=True)
class LoadedSource:
    """A model that is in memory already, for a server of this one."""

    served: Served
    card: Card = field(default_factory=Card)
    weight_bytes: int | None = None

    @property
    def name(self) -> str:
        return self.served.name

    @property
    def key(self) -> Hashable:
        return self.name

    def check(self) -> None:
        """It is loaded, so it fits."""

    def load(self) -> Served:
        return self.served

    def view(self, served: Served) -> Served:
        return served

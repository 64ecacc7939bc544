"""One loaded model as the server sees it, and how a request becomes a reply of it.

Owns: the seam between the interfaces and whatever loads models: `Served` and `Source`. Knows no endpoint, no settings
file. Whoever has better ways to load (settings, profiles, prefix caches) gives the pool other sources.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .grammars import Grammars

if TYPE_CHECKING:
    import dflash2_mlx as d2

PLAIN, DFLASH2 = "plain", "dflash2"
INSIDE, BEFORE, NO_THINKING = "inside", "before", "none"  # where a reply begins
NO_DRAFTER = "no drafter given"
Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]


@dataclass(frozen=True)
class Report:
    """What runs, in oMLX's words."""

    effective_engine: str
    dflash_requested: bool
    dflash_active: bool
    dflash_fallback_reason: str | None = None


@dataclass(frozen=True)
class Served:
    """A loaded model: its engine, what came of its settings, and what a request gets that names nothing itself.

    `defaults` holds sampling, length and drafting; `template_defaults` variables of the chat template, of which a
    request may not change those named in `forced_template`.
    """

    name: str
    engine: d2.Engine
    report: Report
    defaults: d2.GenerationConfig
    template_defaults: Mapping[str, Any] = field(default_factory=dict)
    forced_template: frozenset[str] = frozenset()

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    @property
    def vocab_size(self) -> int:
        """Rows of the target's output head: the width of a mask."""
        return int(self.engine.target.spec.vocab_size)

    @functools.cached_property
    def grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.engine.stop_token_ids)

    @property
    def template_text(self) -> str:
        """The chat template's text; empty where there is none to read."""
        template = self.tokenizer.chat_template if self.tokenizer.has_chat_template else None
        if isinstance(template, Mapping):
            template = template.get("default")
        return template if isinstance(template, str) else ""

    def stream(
        self, prompt: Prompt, config: d2.GenerationConfig, constraint: d2.LogitConstraint | None = None
    ) -> Generator[d2.GenerationEvent, None, None]:
        """Reply to a prompt; nothing runs before the first event is asked for.

        Raises:
            ConfigError, PromptError: at once.
        """
        import dflash2_mlx as d2

        return d2.stream_generate(self.engine, prompt, config, constraint=constraint)

    def count_tokens(self, prompt: Prompt, config: d2.GenerationConfig) -> int:
        """How many tokens a prompt has.

        Raises:
            PromptError: the prompt cannot be used.
        """
        self.stream(prompt, config).close()  # checks the prompt; a reply nobody asked for costs nothing
        if isinstance(prompt, str) and not (config.chat_template and self.tokenizer.has_chat_template):
            return len(self.tokenizer.encode(prompt))
        return len(self._render(prompt, config, tokenize=True))

    def thinking_state(self, prompt: Prompt, config: d2.GenerationConfig) -> str:
        """Where a reply to this prompt begins, by the marks at the prompt's end.

        Returns:
            "inside" the thinking, "before" it (the model may think or not), or "none": past it, or without any.
        """
        tokenizer = self.tokenizer
        templated = tokenizer.has_chat_template and config.chat_template
        if isinstance(prompt, str) or not templated or not tokenizer.has_thinking:
            return NO_THINKING
        text = str(self._render(prompt, config, tokenize=False)).rstrip()
        if text.endswith(tokenizer.think_start):
            return INSIDE
        return NO_THINKING if text.endswith(tokenizer.think_end) else BEFORE

    def _render(self, prompt: Prompt, config: d2.GenerationConfig, *, tokenize: bool) -> Any:
        if not self.tokenizer.has_chat_template:
            assert not isinstance(prompt, str)
            return self.tokenizer.encode(prompt[-1]["content"])  # type: ignore[call-overload,index]
        kwargs = config.chat_template_kwargs or {}
        return self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=tokenize, **kwargs)


class Source(Protocol):
    """Something that can be loaded, and what is known of it before."""

    @property
    def name(self) -> str:
        """What requests call it."""

    @property
    def weight_bytes(self) -> int | None:
        """Memory its weights take; None where unknown before loading."""

    def load(self) -> Served:
        """Read the weights; takes seconds to minutes."""


@dataclass(frozen=True)
class CommandLineSource:
    """A model named on the command line.

    Args:
        target: folder, Hub id or "mini".
        drafter: folder or Hub id; None decodes plainly (the embedded pair brings its own, unless `plain`).
        options: further arguments of `dflash2_mlx.load`.
    """

    name: str
    target: str
    drafter: str | None
    defaults: d2.GenerationConfig
    plain: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int | None:
        folders = [Path(part) for part in (self.target, self.drafter) if part is not None]
        if not all(folder.is_dir() for folder in folders):
            return None
        return sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors"))

    def load(self) -> Served:
        import dflash2_mlx as d2

        engine = d2.load(self.target, None if self.plain else self.drafter, **self.options)
        drafts = engine.drafter is not None and not self.plain
        report = Report(
            effective_engine=DFLASH2 if drafts else PLAIN,
            dflash_requested=self.drafter is not None or (self.target == "mini" and not self.plain),
            dflash_active=drafts,
            dflash_fallback_reason=None if drafts else NO_DRAFTER,
        )
        defaults = replace(self.defaults, mode="auto" if drafts or engine.drafter is None else PLAIN)
        return Served(self.name, engine, report, defaults)

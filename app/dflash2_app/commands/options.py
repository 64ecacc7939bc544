"""The options that commands share, each defined once.

Owns: names, help texts, ranges and defaults of the model, reply and sampling options, and the way from them
to the library's settings. Invariant: every bad value is refused before a model is loaded, with a message that
names the option, what it got and what it expects.

A command takes a group as one parameter (see `grouping`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import (
    FIELDS,
    FREQUENCY_PENALTY,
    IDLE_AT_ZERO,
    LOGIT_BIAS,
    LOSSLESS_MODE,
    MIN_P,
    PRESENCE_PENALTY,
    REPETITION_PENALTY,
    SEED,
    SETTINGS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Field,
    Integer,
    Number,
    Word,
)

from ..console.output import Output
from ..errors import UsageError
from ..reports.machine import first_use_note
from .parsers import TokenBias, filled, integer, number, one_integer_of, one_of, path, token_bias

if TYPE_CHECKING:
    from ..engine.model import Configured
    from ..engine.setup import Setup
    from ..settings.resolve import Effective

MINI = "mini"


NO_DRAFTER = "none"


CONFIGURED = ", or as configured"  # after a default that settings may change


def valued(panel: str) -> Callable[..., Any]:
    """Make the house form of `typer.Option` for options of one help panel that take a value."""

    def option(
        name: str, metavar: str, help_text: str, parser: Callable[..., Any], *, default: str | bool = True
    ) -> Any:
        # `default` is what the help says in place of a None.
        return typer.Option(
            name, help=help_text, rich_help_panel=panel, metavar=metavar, parser=parser, show_default=default
        )

    return option


_model = valued("Model")


_reply = valued("Reply")


_sampling = valued("Sampling")

_dtypes = ("auto", "bfloat16", "float32")


_exactness = ("fast", "exact")


_verify_modes = ("dflash", "adaptive", "off")

Model = _model(
    "--model", "PATH|ID", "Target: a folder, a Hub id or a configured name", filled,
    default="the configured default model, else the embedded mini pair",
)  # fmt: skip


Drafter = _model(
    "--drafter", "PATH|ID|none", "Drafter: a folder or a Hub id; none decodes without", filled, default="as configured"
)


DraftBits = _model("--draft-bits", "4|8", "Quantize the drafter on load", one_integer_of(4, 8), default="as configured")


DraftGroupSize = _model(
    "--draft-group-size", "32|64|128", "Weights that share a scale", one_integer_of(32, 64, 128),
    default="64" + CONFIGURED,
)  # fmt: skip


TargetDtype = _model(
    "--target-dtype", "|".join(_dtypes), "float32 dequantizes on load", one_of(*_dtypes), default="auto" + CONFIGURED
)


Exactness = _model(
    "--exactness", "|".join(_exactness), "exact: a row is computed alike alone and in a block, on Metal",
    one_of(*_exactness), default="fast" + CONFIGURED,
)  # fmt: skip


BasePath = _model(
    "--base-path", "DIR", "Folder of the settings files", path, default="DFLASH2_BASE_PATH, else ~/.dflash2-mlx"
)

Tune = typer.Option(
    "--tune/--no-tune", help="Tune in the background, once, while nothing else is asked for (default: as configured)",
    rich_help_panel="Model", show_default=False,
)  # fmt: skip


DraftWindow = _model(
    "--draft-window", "N", "Positions the drafter sees, at least a block", integer(1),
    default="as configured, else the checkpoint's window",
)  # fmt: skip


DraftSink = _model(
    "--draft-sink", "N", "First tokens that stay visible behind its window", integer(0), default="0" + CONFIGURED
)

Stop = _reply("--stop", "TEXT", "End the reply before this text; repeatable", filled)


BlockSize = _reply(
    "--block-size", "N", "Rows per verify: the anchor and the proposal", integer(2),
    default="as configured, else the drafter's own",
)  # fmt: skip


VerifyMode = _reply(
    "--verify-mode", "|".join(_verify_modes),
    "dflash verifies whole blocks, adaptive as many rows as pay on this machine, off decodes plainly",
    one_of(*_verify_modes), default="dflash" + CONFIGURED,
)  # fmt: skip


def max_tokens(default: int, *, configured: bool = True) -> Any:
    """Describe `--max-tokens`, whose default is not the same in every command."""
    text = f"{default}{CONFIGURED}" if configured else str(default)
    return _reply("--max-tokens", "N", "Most tokens in the reply", integer(1), default=text)


MaxTokens = max_tokens(512)


def parser_of(field: Field) -> Callable[..., Any]:
    """What reads a value of one sampling field."""
    if isinstance(field, Number):
        return number(field.range, field.fits)
    if isinstance(field, Integer):
        return integer(field.least, field.most)
    if isinstance(field, Word):
        return one_of(*field.choices)
    return token_bias


def option_name(field: str) -> str:
    """A sampling field as an option of the command line."""
    return "--" + field.replace("_", "-")


def _drawn(field: Field, metavar: str) -> Any:
    default = f"{field.default:g}{CONFIGURED}" if field.settings else True
    return _sampling(option_name(field.name), metavar, field.about, parser_of(field), default=default)


Temperature = _drawn(TEMPERATURE, "T")
TopP = _drawn(TOP_P, "P")
TopK = _drawn(TOP_K, "K")
MinP = _drawn(MIN_P, "P")
PresencePenalty = _drawn(PRESENCE_PENALTY, "X")
FrequencyPenalty = _drawn(FREQUENCY_PENALTY, "X")
RepetitionPenalty = _drawn(REPETITION_PENALTY, "X")
LogitBias = _drawn(LOGIT_BIAS, "ID=VALUE")
Seed = _drawn(SEED, "N")


def lossless_mode(*, default: str | bool = True) -> Any:
    """Describe `--lossless-mode`, whose default is not the same in every command."""
    field = LOSSLESS_MODE
    return _sampling(option_name(field.name), "|".join(field.choices), field.about, parser_of(field), default=default)


@dataclass(frozen=True)
class ModelOptions:
    """Which target and which drafter, and how they are held in memory; None is what settings say."""

    model: Annotated[str | None, Model] = None
    drafter: Annotated[str | None, Drafter] = None
    draft_bits: Annotated[int | None, DraftBits] = None
    draft_group_size: Annotated[int | None, DraftGroupSize] = None
    target_dtype: Annotated[str | None, TargetDtype] = None
    exactness: Annotated[str | None, Exactness] = None
    draft_window: Annotated[int | None, DraftWindow] = None
    draft_sink: Annotated[int | None, DraftSink] = None
    base_path: Annotated[Path | None, BasePath] = None

    @property
    def target(self) -> str:
        """What will be loaded as the target: a folder, a Hub id or "mini"."""
        return self.prepare().target

    @property
    def refuses_drafter(self) -> bool:
        return self.drafter == NO_DRAFTER

    @property
    def drafts(self) -> bool:
        """Whether options and settings bring a drafter along."""
        return self.prepare().drafts

    def given(self) -> dict[str, Any]:
        """What was given, by the keys of the settings."""
        values: dict[str, Any] = {}
        if self.drafter is not None:
            values["dflash_enabled"] = not self.refuses_drafter
        if self.drafter is not None and not self.refuses_drafter:
            values["dflash_draft_model"] = self.drafter
        if self.draft_bits is not None:
            values |= {"dflash_draft_quant_enabled": True, "dflash_draft_quant_weight_bits": self.draft_bits}
        if self.draft_group_size is not None:
            values["dflash_draft_quant_group_size"] = self.draft_group_size
        others = {
            "target_dtype": self.target_dtype,
            "exactness": self.exactness,
            "dflash_draft_window_size": self.draft_window,
            "dflash_draft_sink_size": self.draft_sink,
        }
        values |= {name: value for name, value in others.items() if value is not None}
        return values

    def prepare(self, more: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None) -> Setup:
        """Settle models and settings; nothing is loaded.

        Args:
            more: what other options gave, by key.
            defaults: of the command, by key.
        """
        from ..engine.setup import prepare
        from ..settings.paths import find_base

        command_line = {**self.given(), **(more or {})}
        return prepare(self.model, command_line=command_line, base=find_base(self.base_path), defaults=defaults)

    def announce(self, setup: Setup, out: Output, *, plain: bool = False) -> None:
        """Say what was chosen for the user."""
        if setup.chosen_by == "nothing":
            out.note("no --model given: using the embedded mini pair")
        elif setup.chosen_by == "default model":
            out.note(f"no --model given: using the default model {setup.named.model_id}")
        if plain or setup.drafts or self.refuses_drafter:
            return
        if setup.plan.fallback_reason is not None:
            out.note(f"plain decoding: {setup.plan.fallback_reason}")
        elif not setup.effective.given("dflash_enabled"):
            out.note("no --drafter given: plain decoding, one token per pass")
        else:
            out.note(f"DFlash is off for {setup.named.model_id}: plain decoding, one token per pass")

    def open(self, setup: Setup, out: Output, *, plain: bool = False, several: bool = False) -> Configured:
        """Load what `prepare` settled, and say what the user should know.

        Args:
            plain: without the drafter.
            several: more than one reply will follow.
        """
        self.announce(setup, out, plain=plain)
        pair = setup.load(plain=plain, several=several, tell=out.status)
        for note in pair.report.notes:
            out.note(note)
        if setup.drafts and pair.report.dflash_fallback_reason is not None:
            out.note(f"plain decoding: {pair.report.dflash_fallback_reason}")
        first_use = first_use_note()
        if first_use is not None:
            out.status(first_use)
        return pair

    def load(self, out: Output, *, plain: bool = False) -> d2.Engine:
        """Load what was asked for or configured, for commands that need nothing but the engine."""
        engine = self.open(self.prepare(), out, plain=plain).engine
        if self.refuses_drafter:  # the embedded pair brings one along
            engine = replace(engine, drafter=None, drafter_name=None)
        return engine


@dataclass(frozen=True)
class ReplyOptions:
    """How long the reply may be, where it ends and how wide a block is; None is what settings say."""

    max_tokens: Annotated[int | None, MaxTokens] = None
    stop: Annotated[list[str] | None, Stop] = None
    block_size: Annotated[int | None, BlockSize] = None
    verify_mode: Annotated[str | None, VerifyMode] = None

    def given(self) -> dict[str, Any]:
        """What was given, by the keys of the settings."""
        values = {
            "max_tokens": self.max_tokens,
            "dflash_block_size": self.block_size,
            "dflash_verify_mode": self.verify_mode,
        }
        return {name: value for name, value in values.items() if value is not None}


def biases_by_token(given: list[TokenBias] | None) -> dict[int, float] | None:
    """What `--logit-bias` says, None when it was not given.

    Raises:
        UsageError: a token is named twice.
    """
    biases: dict[int, float] = {}
    for item in given or ():
        if item.token in biases:
            raise UsageError(f"--logit-bias: got token {item.token} twice, expected each id once")
        biases[item.token] = item.value
    return biases or None


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is drawn; None is what settings say."""

    temperature: Annotated[float | None, Temperature] = None
    top_p: Annotated[float | None, TopP] = None
    top_k: Annotated[int | None, TopK] = None
    min_p: Annotated[float | None, MinP] = None
    presence_penalty: Annotated[float | None, PresencePenalty] = None
    frequency_penalty: Annotated[float | None, FrequencyPenalty] = None
    repetition_penalty: Annotated[float | None, RepetitionPenalty] = None
    logit_bias: Annotated[list[TokenBias] | None, LogitBias] = None
    seed: Annotated[int | None, Seed] = None
    lossless_mode: Annotated[str | None, lossless_mode(default="coupled with --seed, else rejection")] = None

    def given(self) -> dict[str, Any]:
        """What was given, by the keys of the settings."""
        return {name: value for name in SETTINGS if (value := vars(self)[name]) is not None}

    def extra(self) -> dict[str, Any]:
        """What no setting says, by the library's names."""
        return {"logit_bias": biases_by_token(self.logit_bias), "seed": self.seed, "lossless_mode": self.lossless_mode}

    def config(self) -> d2.SamplingConfig:
        """Translate to the library's settings, for commands that read no settings."""
        return d2.SamplingConfig(**self.given(), **self.extra())

    def without_effect(self, effective: Effective | None = None, *, drafts: bool = True) -> list[str]:
        """Say which options were given and do nothing, and why; `effective` knows a configured temperature."""
        if ((self.temperature or 0) if effective is None else effective["temperature"]) > 0:
            alone = self.lossless_mode is not None and not drafts
            return ["--lossless-mode has no effect without drafting"] if alone else []
        given = [field.name for field in FIELDS if vars(self)[field.name] not in (None, field.default)]
        # A value that changes nothing is not worth a note.
        return [f"{option_name(name)} has no effect at --temperature 0" for name in IDLE_AT_ZERO if name in given]


DEFAULT_CONTEXT = 8192  # models.memory's, which is not imported for --help

_BASE = "DFLASH2_BASE_PATH or ~/.dflash2-mlx"


_base_path = valued("Selection")("--base-path", "DIR", "Folder of settings and models", path, default=_BASE)


_context = valued("Output")("--context", "N", "Tokens of context the memory estimate is for", integer(1))

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object", rich_help_panel="Output")]


BaseFolder = Annotated[Path | None, _base_path]


Context = Annotated[int, _context]


ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A Hub id like owner/name", parser=filled)]

"""The options that commands share, each defined once.

Owns: names, help texts, ranges and defaults of the model, reply and sampling options, and the way from them
to the library's settings. Invariant: every bad value is refused before a model is loaded, with a message that
names the option, what it got and what it expects.

A command takes a group as one parameter (see `grouping`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..output import Output
from .parsers import TokenBias, filled, integer, number, one_integer_of, one_of, token_bias

if TYPE_CHECKING:
    import dflash2_mlx as d2

MINI = "mini"
NO_DRAFTER = "none"
DEFAULT_GROUP_SIZE = 64


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

_share = number("in [0, 1]", lambda x: 0 <= x <= 1)
_penalty = number("in [-2, 2]", lambda x: -2 <= x <= 2)
_dtypes = ("auto", "bfloat16", "float32")
_modes = ("rejection", "coupled")
_verify_modes = ("dflash", "adaptive", "off")

Model = _model("--model", "PATH|ID", "Target: a folder or a Hub id", filled, default="the embedded mini pair")
Drafter = _model("--drafter", "PATH|ID|none", "Drafter: a folder or a Hub id; none decodes without", filled)
DraftBits = _model("--draft-bits", "4|8", "Quantize the drafter on load", one_integer_of(4, 8))
DraftGroupSize = _model("--draft-group-size", "32|64|128", "Weights that share a scale", one_integer_of(32, 64, 128))
TargetDtype = _model("--target-dtype", "|".join(_dtypes), "float32 dequantizes on load", one_of(*_dtypes))

DraftWindow = _model(
    "--draft-window", "N", "Positions the drafter sees, at least a block", integer(1), default="the checkpoint's window"
)
DraftSink = _model("--draft-sink", "N", "First tokens that stay visible behind its window", integer(0))

MaxTokens = _reply("--max-tokens", "N", "Most tokens in the reply", integer(1))
Stop = _reply("--stop", "TEXT", "End the reply before this text; repeatable", filled)
BlockSize = _reply(
    "--block-size", "N", "Rows per verify: the anchor and the proposal", integer(2), default="the drafter's own"
)
VerifyMode = _reply(
    "--verify-mode",
    "|".join(_verify_modes),
    "dflash verifies whole blocks, adaptive as many rows as pay on this machine, off decodes plainly",
    one_of(*_verify_modes),
)

Temperature = _sampling("--temperature", "T", "0 takes the likeliest token", number(">= 0", lambda x: x >= 0))
TopP = _sampling(
    "--top-p", "P", "Keep the likeliest tokens that hold this share", number("in (0, 1]", lambda x: 0 < x <= 1)
)
TopK = _sampling("--top-k", "K", "Keep the K likeliest tokens; 0 keeps all", integer(0))
MinP = _sampling("--min-p", "P", "Drop tokens below this share of the likeliest", _share)
PresencePenalty = _sampling("--presence-penalty", "X", "Taken once off what the reply holds", _penalty)
FrequencyPenalty = _sampling("--frequency-penalty", "X", "Taken off per time the reply holds it", _penalty)
RepetitionPenalty = _sampling(
    "--repetition-penalty", "X", "Damps what prompt and reply hold; 1 is off", number("> 0", lambda x: x > 0)
)
LogitBias = _sampling("--logit-bias", "ID=VALUE", "Add VALUE to a token's logit; repeatable", token_bias)
Seed = _sampling("--seed", "N", "The same seed gives the same text", integer(0, 2**64 - 1))


def lossless_mode(*, default: str | bool = True) -> Any:
    """Describe `--lossless-mode`, whose default is not the same in every command."""
    text = "How drafting keeps the target's law: rejection accepts more, coupled gives plain decoding's very text"
    return _sampling("--lossless-mode", "|".join(_modes), text, one_of(*_modes), default=default)


@dataclass(frozen=True)
class ModelOptions:
    """Which target and which drafter, and how they are held in memory."""

    model: Annotated[str | None, Model] = None
    drafter: Annotated[str | None, Drafter] = None
    draft_bits: Annotated[int | None, DraftBits] = None
    draft_group_size: Annotated[int, DraftGroupSize] = DEFAULT_GROUP_SIZE
    target_dtype: Annotated[str, TargetDtype] = "auto"
    draft_window: Annotated[int | None, DraftWindow] = None
    draft_sink: Annotated[int, DraftSink] = 0

    def __post_init__(self) -> None:
        if self.draft_bits is not None and not self.drafts:
            raise UsageError(f"--draft-bits: got {self.draft_bits}, expected a --drafter to quantize")
        if self.draft_window is not None and not self.drafts:
            raise UsageError(f"--draft-window: got {self.draft_window}, expected a --drafter to narrow")
        if self.draft_sink and not self.drafts:
            raise UsageError(f"--draft-sink: got {self.draft_sink}, expected a --drafter that it is for")
        if self.draft_group_size != DEFAULT_GROUP_SIZE and self.draft_bits is None:
            raise UsageError(f"--draft-group-size: got {self.draft_group_size}, expected --draft-bits as well")

    @property
    def target(self) -> str:
        return MINI if self.model is None else self.model

    @property
    def refuses_drafter(self) -> bool:
        return self.drafter == NO_DRAFTER

    @property
    def drafts(self) -> bool:
        """Whether these options bring a drafter along."""
        if self.drafter is None:
            return self.target == MINI
        return not self.refuses_drafter

    def load(self, out: Output, *, plain: bool = False) -> d2.Engine:
        """Load what was asked for; with `plain`, leave a drafter that would not be used on disk."""
        import dflash2_mlx as d2

        if self.model is None:
            out.note("no --model given: using the embedded mini pair")
        elif self.drafter is None and not self.drafts and not plain:
            out.note("no --drafter given: plain decoding, one token per pass")
        named = self.drafter if self.drafts and not plain else None
        out.status(f"loading {self.target}")
        return d2.load(
            self.target,
            named,
            draft_bits=None if plain else self.draft_bits,
            draft_group_size=self.draft_group_size,
            target_dtype=self.target_dtype,
            draft_window=None if plain else self.draft_window,
            draft_sink=0 if plain else self.draft_sink,
        )


@dataclass(frozen=True)
class ReplyOptions:
    """How long the reply may be, where it ends and how wide a block is."""

    max_tokens: Annotated[int, MaxTokens] = 512
    stop: Annotated[list[str] | None, Stop] = None
    block_size: Annotated[int | None, BlockSize] = None
    verify_mode: Annotated[str, VerifyMode] = "dflash"

    @property
    def drafts(self) -> bool:
        """Whether these options leave drafting on."""
        return self.verify_mode != "off"


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is drawn."""

    temperature: Annotated[float, Temperature] = 0.0
    top_p: Annotated[float, TopP] = 1.0
    top_k: Annotated[int, TopK] = 0
    min_p: Annotated[float, MinP] = 0.0
    presence_penalty: Annotated[float, PresencePenalty] = 0.0
    frequency_penalty: Annotated[float, FrequencyPenalty] = 0.0
    repetition_penalty: Annotated[float, RepetitionPenalty] = 1.0
    logit_bias: Annotated[list[TokenBias] | None, LogitBias] = None
    seed: Annotated[int | None, Seed] = None
    lossless_mode: Annotated[str | None, lossless_mode(default="coupled with --seed, else rejection")] = None

    def config(self) -> d2.SamplingConfig:
        """Translate to the library's settings."""
        import dflash2_mlx as d2

        return d2.SamplingConfig(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self._biases(),
            seed=self.seed,
            lossless_mode=self.lossless_mode,
        )

    def _biases(self) -> dict[int, float] | None:
        biases: dict[int, float] = {}
        for item in self.logit_bias or ():
            if item.token in biases:
                raise UsageError(f"--logit-bias: got token {item.token} twice, expected each id once")
            biases[item.token] = item.value
        return biases or None

    def without_effect(self, *, drafts: bool = True) -> list[str]:
        """Say which options were given and do nothing, and why."""
        if self.temperature > 0:
            alone = self.lossless_mode is not None and not drafts
            return ["--lossless-mode has no effect without drafting"] if alone else []
        filters = {
            "--seed": self.seed is not None,
            "--top-p": self.top_p != 1.0,
            "--top-k": self.top_k != 0,
            "--min-p": self.min_p != 0.0,
            "--lossless-mode": self.lossless_mode is not None,
        }
        return [f"{name} has no effect at --temperature 0" for name, given in filters.items() if given]

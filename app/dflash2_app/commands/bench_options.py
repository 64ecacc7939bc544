"""The options of `bench`: what is asked, how it is measured, and what is done with the numbers.

Owns: names, help texts and defaults, and which of them exclude each other. Invariant: an option that could do
nothing is refused by name, or told of where it is only without effect.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import IDLE_AT_ZERO, TEMPERATURE

from ..bench.presets import (
    PRESET_TOKENS,
    PRESETS,
    USUAL_REPEATS,
    USUAL_SAMPLES,
    USUAL_TOKENS,
    preset_sampling,
    usual_tokens,
    without_effect,
)
from ..bench.sets import MINI, NAMES
from ..errors import UsageError
from .options import (
    FrequencyPenalty,
    LogitBias,
    MinP,
    ModelOptions,
    PresencePenalty,
    RepetitionPenalty,
    TopK,
    TopP,
    biases_by_token,
    lossless_mode,
    option_name,
    parser_of,
    valued,
)
from .parsers import Numbers, TokenBias, filled, integer, json_object, numbers, one_of, path

_prompts = valued("Prompts")
_measure = valued("Measurement")
_analysis = valued("Analysis")
_server = valued("Server")
_output = valued("Output")


@dataclass(frozen=True)
class SetOptions:
    """Which prompts, and how they are put to the model."""

    set: Annotated[str | None, _prompts("--set", "|".join(NAMES), "A set of prompts", one_of(*NAMES), default=MINI)] = (
        None
    )
    prompts: Annotated[
        Path | None, _prompts("--prompts", "FILE", "Your own: JSON lines, or one prompt per line", path)
    ] = None
    samples: Annotated[
        int | None, _prompts("--samples", "N", "How many; 128 to compare with published tables", integer(1),
                             default=str(USUAL_SAMPLES))
    ] = None  # fmt: skip
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Give the model the bare text", rich_help_panel="Prompts")
    ] = False
    chat_template_args: Annotated[
        dict[str, Any] | None, _prompts("--chat-template-args", "JSON", "Variables for the chat template", json_object)
    ] = None

    def __post_init__(self) -> None:
        if self.set is not None and self.prompts is not None:
            raise UsageError(f"--prompts: got it beside --set {self.set}, expected one of the two")
        if self.no_chat_template and self.chat_template_args is not None:
            raise UsageError("--chat-template-args: got it beside --no-chat-template, expected one of the two")


@dataclass(frozen=True)
class MeasureOptions:
    """What is varied, and how often it is repeated."""

    widths: Annotated[
        Numbers | None,
        _measure(
            "--widths",
            "N,...",
            "Rows per verify; 1 is plain decoding",
            numbers(integer(1), "1,4,8"),
            default="1,3,5,8 and the drafter's own",
        ),
    ] = None
    depths: Annotated[
        Numbers | None,
        _measure("--depths", "N,...", "Tokens of context before a prompt", numbers(integer(0), "0,1024"), default="0"),
    ] = None
    temperatures: Annotated[
        Numbers | None,
        _measure(
            "--temperatures",
            "T,...",
            TEMPERATURE.about,
            numbers(parser_of(TEMPERATURE), "0,1"),
            default="0",
        ),
    ] = None
    max_tokens: Annotated[
        int | None, _measure("--max-tokens", "N", "Most tokens in a reply", integer(2), default=str(USUAL_TOKENS))
    ] = None
    repeat: Annotated[
        int | None, _measure("--repeat", "N", "Times every request is made", integer(1), default=str(USUAL_REPEATS))
    ] = None
    seed: Annotated[
        int, _measure("--seed", "N", "Request n is drawn with seed N + n, in every arm", integer(0, 2**63))
    ] = 0
    preset: Annotated[
        str | None,
        _measure(
            "--preset",
            "|".join(PRESETS),
            f"Sampling, thinking and {PRESET_TOKENS} tokens as published; default is the model's own sampling",
            one_of(*PRESETS),
        ),
    ] = None
    phases: Annotated[
        bool,
        typer.Option("--phases/--no-phases", help="Time the parts of a round, in extra runs",
                     rich_help_panel="Measurement"),
    ] = True  # fmt: skip

    @property
    def repeats(self) -> int:
        return self.repeat or USUAL_REPEATS

    @property
    def tokens(self) -> int:
        return self.max_tokens or usual_tokens(self.preset)


@dataclass(frozen=True)
class DrawOptions:
    """How tokens are drawn at the temperatures above 0; None leaves it to the preset."""

    top_p: Annotated[float | None, TopP] = None
    top_k: Annotated[int | None, TopK] = None
    min_p: Annotated[float | None, MinP] = None
    presence_penalty: Annotated[float | None, PresencePenalty] = None
    frequency_penalty: Annotated[float | None, FrequencyPenalty] = None
    repetition_penalty: Annotated[float | None, RepetitionPenalty] = None
    logit_bias: Annotated[list[TokenBias] | None, LogitBias] = None
    lossless_mode: Annotated[str | None, lossless_mode(default="rejection")] = None

    def given(self) -> dict[str, Any]:
        """What the command line states, by its name in `SamplingConfig`."""
        stated = {**vars(self), "logit_bias": biases_by_token(self.logit_bias)}
        return {name: value for name, value in stated.items() if value is not None}


@dataclass(frozen=True)
class AnalyzeOptions:
    """Whether a pair is taken apart instead, and with what it is compared."""

    analyze: Annotated[
        bool,
        typer.Option("--analyze", help="Recall, ablations, attention in the block, cost of the parts",
                     rich_help_panel="Analysis"),
    ] = False  # fmt: skip
    compare: Annotated[
        list[str] | None, _analysis("--compare", "PATH|ID", "Another drafter of the same target; repeatable", filled)
    ] = None

    def __post_init__(self) -> None:
        if self.compare and not self.analyze:
            raise UsageError(f"--compare: got {self.compare[0]!r}, expected --analyze as well")


@dataclass(frozen=True)
class ServerOptions:
    """A server to measure instead of a pair."""

    endpoint: Annotated[
        str | None, _server("--endpoint", "URL", "Measure an OpenAI-compatible server instead", filled)
    ] = None
    endpoint_model: Annotated[
        str | None, _server("--endpoint-model", "NAME", "As the server names it", filled, default="its only one")
    ] = None
    api_key: Annotated[
        str | None, _server("--api-key", "ENV", "Environment variable that holds the server's key", filled)
    ] = None

    def __post_init__(self) -> None:
        for name, value in (("--endpoint-model", self.endpoint_model), ("--api-key", self.api_key)):
            if value is not None and self.endpoint is None:
                raise UsageError(f"{name}: got {value!r}, expected --endpoint as well")

    def key(self) -> str | None:
        """The key itself.

        Raises:
            UsageError: the variable is not set. It may be the key that was typed here, so it is not repeated.
        """
        if self.api_key is None:
            return None
        if not os.environ.get(self.api_key):
            raise UsageError("--api-key: got the name of no variable that is set, expected one that holds the key")
        return os.environ[self.api_key]


@dataclass(frozen=True)
class ResultOptions:
    """Where the numbers go."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object", rich_help_panel="Output")] = False
    csv: Annotated[Path | None, _output("--csv", "FILE", "A row per width and setting", path)] = None
    plot: Annotated[Path | None, _output("--plot", "FILE.png", "Acceptance by position, speed by width", path)] = None
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Write the recommended block size to the settings", rich_help_panel="Output"),
    ] = False


def refuse_beside_endpoint(
    models: ModelOptions, measured: MeasureOptions, drawn: DrawOptions, results: ResultOptions
) -> None:
    """A server brings its own model and decodes as it likes.

    Raises:
        UsageError: naming the first option that could do nothing.
    """
    given = {
        "--model": models.model is not None,
        "--drafter": models.drafter is not None,
        "--draft-bits": models.draft_bits is not None,
        "--draft-group-size": models.draft_group_size is not None,
        "--target-dtype": models.target_dtype is not None,
        "--exactness": models.exactness is not None,
        "--base-path": models.base_path is not None,
        "--widths": measured.widths is not None,
        "--no-phases": not measured.phases,
        "--lossless-mode": drawn.lossless_mode is not None,
        "--apply": results.apply,
    }
    _refuse(given, "--endpoint", "the server decides that")


def _refuse(given: dict[str, bool], beside: str, why: str) -> None:
    for name, there in given.items():
        if there:
            raise UsageError(f"{name}: got it beside {beside}, expected none: {why}")


def refuse_beside_analyze(measured: MeasureOptions, server: ServerOptions, results: ResultOptions) -> None:
    """An analysis looks at one width of a pair, and times parts of a round only.

    Raises:
        UsageError: naming the first option that could do nothing.
    """
    given = {
        "--endpoint": server.endpoint is not None,
        "--depths": measured.depths is not None,
        "--no-phases": not measured.phases,
        "--csv": results.csv is not None,
        "--apply": results.apply,
    }
    _refuse(given, "--analyze", "an analysis has no use for it")
    if measured.widths is not None and len(measured.widths) != 1:
        raise UsageError(f"--widths: got {len(measured.widths)} beside --analyze, expected one")
    if measured.repeat == 1:
        raise UsageError("--repeat: got 1 beside --analyze, expected an integer >= 2")


def sampling(
    drawn: DrawOptions, measured: MeasureOptions, target: str | None
) -> tuple[d2.SamplingConfig, tuple[float, ...]]:
    """Everything but the temperature, and the temperatures: the command line, then the preset, then neutral values.

    Args:
        target: whose own sampling `--preset default` takes; None takes none.
    """
    temperatures = None if measured.temperatures is None else tuple(measured.temperatures)
    return preset_sampling(measured.preset, drawn.given(), temperatures, target)


def idle_options(drawn: DrawOptions, temperatures: tuple[float, ...]) -> list[str]:
    """Say which options were given and do nothing where every reply is greedy."""
    idle = {option_name(name): value for name, value in vars(drawn).items() if name in IDLE_AT_ZERO}
    return without_effect(idle, temperatures)

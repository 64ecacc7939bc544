"""`dflash2-mlx generate`: one reply, as text or as one JSON object."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dflash2_mlx as d2

from ..console.output import Output
from ..errors import UsageError
from ..reports.machine import first_use_note
from .options import ModelOptions, ReplyOptions, SamplingOptions, valued
from .parsers import grouped, integer, path
from .prompt import Prompt, PromptOptions

if TYPE_CHECKING:
    from ..engine.model import Configured

_PANEL = "Output"
_output = valued(_PANEL)
MOST_LOGPROBS = 20


@dataclass(frozen=True)
class OutputOptions:
    """Where the reply goes and what is told about it."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object", rich_help_panel=_PANEL)] = False
    logprobs: Annotated[
        int | None,
        _output(
            "--logprobs", "N", "With --json: log-probabilities of each token and N others", integer(0, MOST_LOGPROBS)
        ),
    ] = None
    output: Annotated[Path | None, _output("--output", "FILE", "Write to a file instead of standard output", path)] = (
        None
    )
    stats: Annotated[
        bool, typer.Option("--stats/--no-stats", help="A line of figures on standard error", rich_help_panel=_PANEL)
    ] = True

    def __post_init__(self) -> None:
        if self.logprobs is not None and not self.json:
            raise UsageError(f"--logprobs: got {self.logprobs}, expected --json as well: they are shown only there")


@grouped
def generate(
    prompts: PromptOptions,
    models: ModelOptions,
    reply: ReplyOptions,
    sampling: SamplingOptions,
    shown: OutputOptions,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; - or nothing reads standard input")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="One token per pass, without the drafter", rich_help_panel="Model")
    ] = False,
) -> None:
    """Write one reply to a prompt."""
    text = prompts.read(prompt)
    with Output(shown.output) as out:
        setup = models.prepare({**reply.given(), **sampling.given()})
        drafts = not plain and setup.drafts
        notes = sampling.without_effect(setup.effective, drafts=drafts)
        extra = sampling.extra()
        for note in [*notes, *_undrafted(models, reply, drafts)]:
            out.note(note)
        pair = models.open(setup, out, plain=plain)
        prompts.check(pair.engine)
        config = pair.generation_config(
            prompts.chat_template_args,
            forced=False,
            sampling=extra,
            stop=tuple(reply.stop or ()),
            logprobs=shown.logprobs,
            chat_template=not prompts.no_chat_template,
            **({"mode": "plain"} if plain or models.refuses_drafter else {}),
        )
        if shown.json:
            stats = _print_object(pair, text, config, out)
        else:
            stats = _print_text(pair, text, config, out)
        if shown.stats:
            out.info(summary(stats))


def _undrafted(models: ModelOptions, reply: ReplyOptions, drafts: bool) -> list[str]:
    """Say which options of drafting were given although nothing is drafted."""
    given = {
        "--block-size": reply.block_size is not None,
        "--verify-mode": reply.verify_mode == "adaptive",
        "--draft-bits": models.draft_bits is not None,
        "--draft-window": models.draft_window is not None,
        "--draft-sink": bool(models.draft_sink),
    }
    return [f"{name} has no effect without drafting" for name, there in given.items() if there and not drafts]


def _print_object(pair: Configured, prompt: Prompt, config: d2.GenerationConfig, out: Output) -> d2.GenerationStats:
    out.status(first_use_note() or "generating")
    result = pair.generate(prompt, config)
    for notice in result.stats.notices:
        out.note(notice)
    shown = result.to_dict()
    if config.logprobs is not None:
        shown["logprobs"] = [_logprob(pair.engine, item) for item in result.logprobs]
    out.json(shown)
    return result.stats


def _logprob(engine: d2.Engine, item: d2.TokenLogprob) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "text": engine.tokenizer.decode([token]), "logprob": logprob}

    return {**entry(item.token, item.logprob), "top": [entry(*pair) for pair in item.top]}


def _print_text(pair: Configured, prompt: Prompt, config: d2.GenerationConfig, out: Output) -> d2.GenerationStats:
    told: list[str] = []
    with closing(pair.stream_generate(prompt, config)) as events:
        for event in events:
            for notice in event.stats.notices[len(told) :]:
                out.note(notice)
                told.append(notice)
            if not event.token_ids and event.prefilled < event.prompt_tokens:
                out.status(f"reading the prompt: {event.prefilled} of {event.prompt_tokens} tokens")
            out.data(event.text)
            stats = event.stats
    out.end_line()
    return stats


def summary(stats: d2.GenerationStats) -> str:
    """Say in one line how a reply went."""
    plural = "" if stats.generated_tokens == 1 else "s"
    parts = [
        f"{stats.generated_tokens} token{plural} in {stats.decode_s:.2f} s",
        f"prompt {stats.prompt_tokens} in {stats.prefill_s:.2f} s",
    ]
    if stats.tokens_per_second is not None:
        parts.insert(1, f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.mode == "dflash2" and stats.acceptance_length is not None:
        parts.append(f"acceptance length {stats.acceptance_length:.2f} of {stats.block_size}")
    if stats.verify_mode == "adaptive":
        widths = (f"{rows} × {count}" for rows, count in sorted(stats.rounds_by_width.items()))
        parts.append(f"rows × rounds: {', '.join(widths)}")
    reason = f" ({stats.fallback_reason})" if stats.fallback_reason else ""
    return " · ".join([*parts, f"{stats.mode}{reason}"])

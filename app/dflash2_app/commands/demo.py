"""`dflash2-mlx demo`: the same prompt decoded plainly and with DFlash 2, side by side, with a verdict.

Owns: the two runs, one after the other so that neither slows the other, and what is printed of them. The
screen itself is drawn by `demo_view`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dflash2_mlx as d2

from ..console.output import Output, is_terminal
from ..errors import FAILED, UsageError
from ..reports.machine import first_use_note
from ..reports.samples import sample_prompt
from ..reports.side_by_side import MODES, SCREENFUL, TITLES, WARM_UP_TOKENS, Blocks, difference, notes, subject
from .options import ModelOptions, ReplyOptions, SamplingOptions, Seed, lossless_mode, max_tokens
from .parsers import grouped
from .prompt import Prompt, PromptOptions

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.model import Configured
    from ..engine.setup import Setup
    from .demo_view import Lane

_PANEL = "Output"
WARMING_UP = "both warm up"
REFRESHES_PER_SECOND = 10
MOST_SEED = 2**53 - 1  # beyond it, a browser's numbers are no longer exact


@dataclass(frozen=True)
class DemoReplyOptions(ReplyOptions):
    """As for `generate`, but as long as a screen holds, whatever is configured."""

    max_tokens: Annotated[int | None, max_tokens(SCREENFUL, configured=False)] = SCREENFUL


@dataclass(frozen=True)
class DemoSamplingOptions(SamplingOptions):
    """As for `generate`, but with a seed and coupled, so that the two texts must be equal."""

    seed: Annotated[int | None, Seed] = 0
    lossless_mode: Annotated[str | None, lossless_mode()] = "coupled"


@dataclass(frozen=True)
class Pair:
    """What both runs have in common."""

    configured: Configured
    prompt: Prompt
    config: d2.GenerationConfig

    @property
    def engine(self) -> d2.Engine:
        return self.configured.engine

    def events(self, mode: str) -> Generator[d2.GenerationEvent, None, None]:
        return self.configured.stream_generate(self.prompt, replace(self.config, mode=mode))

    def result(self, mode: str) -> d2.GenerationResult:
        return self.configured.generate(self.prompt, replace(self.config, mode=mode))

    def warm_up(self) -> None:
        """Let both modes meet their shapes once, or the first run would pay for the second."""
        for mode in MODES:
            self.configured.generate(self.prompt, replace(self.config, mode=mode, max_tokens=WARM_UP_TOKENS))

    def compare(self, plain: d2.GenerationResult, dflash2: d2.GenerationResult) -> d2.Verdict:
        return d2.compare_runs(self.engine, self.prompt, self.config, plain, dflash2)


@grouped
def demo(
    prompts: PromptOptions,
    models: ModelOptions,
    reply: DemoReplyOptions,
    sampling: DemoSamplingOptions,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="The prompt; - reads standard input", show_default="one that suits the model"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object", rich_help_panel=_PANEL)] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when the two texts differ", rich_help_panel=_PANEL)
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Show it on a web page of this machine, until Ctrl-C", rich_help_panel=_PANEL)
    ] = False,
    browser: Annotated[
        bool,
        typer.Option(
            "--browser/--no-browser",
            help="With --web: open the page, or only print its address",
            rich_help_panel=_PANEL,
        ),
    ] = True,
) -> None:
    """Decode a prompt plainly and with DFlash 2, and compare the two."""
    if web:
        _check_web(prompts, reply, sampling, {"--json": json, "--check": check})
    elif not browser:
        raise UsageError("--no-browser: got it without --web, expected the two together")
    if reply.verify_mode == "off":
        raise UsageError(
            "--verify-mode: got off, expected dflash or adaptive: the demo shows drafting beside plain decoding"
        )
    setup = models.prepare({**reply.given(), **sampling.given()})
    _check_drafter(setup, setup.plan.fallback_reason)
    given = None if prompt is None and prompts.messages is None else prompts.read(prompt)
    with Output() as out:
        pair = _pair(models.open(setup, out), prompts, reply, sampling, given)
        if web:
            _show_page(pair, prompts, reply, out, browser=browser, base_path=models.base_path)
            return
        if json:
            verdict = _compare_for_json(pair, out)
        elif is_terminal(sys.stdout):
            verdict = _compare_live(pair, out)
        else:
            verdict = _compare_in_lines(pair, out)
    if check and not verdict.identical:
        raise typer.Exit(FAILED)


def _pair(
    configured: Configured,
    prompts: PromptOptions,
    reply: DemoReplyOptions,
    sampling: DemoSamplingOptions,
    given: Prompt | None,
) -> Pair:
    """What both runs get; a prompt that suits the model where none was given."""
    if not configured.report.dflash_active:
        _check_drafter(None, configured.report.dflash_fallback_reason)
    prompts.check(configured.engine)
    config = configured.generation_config(
        prompts.chat_template_args,
        forced=False,
        sampling=sampling.extra(),
        stop=tuple(reply.stop or ()),
        chat_template=not prompts.no_chat_template,
    )
    text = given or prompts.read(sample_prompt(configured.engine, chats=_chats(configured.engine, config)))
    return Pair(configured, text, config)


def _check_web(
    prompts: PromptOptions, reply: DemoReplyOptions, sampling: DemoSamplingOptions, others: dict[str, bool]
) -> None:
    """Refuse beside --web what the page cannot do, before anything is loaded."""
    from ..reports.side_by_side import MOST_TEMPERATURE, MOST_TOKENS

    for name, given in {**others, "--messages": prompts.messages is not None}.items():
        if given:
            raise UsageError(f"{name}: got it beside --web, expected one of the two")
    if sampling.lossless_mode == "rejection":
        raise UsageError("--lossless-mode: got rejection, expected coupled: the page's two texts must be equal")
    if reply.max_tokens is not None and reply.max_tokens > MOST_TOKENS:
        raise UsageError(f"--max-tokens: got {reply.max_tokens}, expected at most {MOST_TOKENS} with --web")
    if sampling.temperature is not None and sampling.temperature > MOST_TEMPERATURE:
        raise UsageError(
            f"--temperature: got {sampling.temperature:g}, expected at most {MOST_TEMPERATURE:g} with --web"
        )
    if sampling.seed is not None and sampling.seed > MOST_SEED:
        raise UsageError(f"--seed: got {sampling.seed}, expected at most {MOST_SEED} with --web")


def _show_page(
    pair: Pair, prompts: PromptOptions, reply: DemoReplyOptions, out: Output, *, browser: bool, base_path: Path | None
) -> None:
    from .demo_web import serve_page

    drawn = pair.config.sampling
    text = pair.prompt if isinstance(pair.prompt, str) else pair.prompt[-1]["content"]
    values = {
        "prompt": text, "system": prompts.system, "max_tokens": pair.config.max_tokens,
        "temperature": f"{drawn.temperature:g}", "seed": drawn.seed, "block_size": reply.block_size,
        "verify_mode": reply.verify_mode,
    }  # fmt: skip
    serve_page(pair.configured, pair.config, values, out, browser=browser, base_path=base_path)


def _check_drafter(setup: Setup | None, reason: str | None) -> None:
    """Refuse to compare plain decoding with itself."""
    if setup is None or not setup.drafts:
        received = f"none ({reason})" if reason else "none"
        raise UsageError(f"--drafter: got {received}, expected the drafter that the demo compares plain decoding with")


def _chats(engine: d2.Engine, config: d2.GenerationConfig) -> bool:
    return config.chat_template and engine.tokenizer.has_chat_template


def _compare_for_json(pair: Pair, out: Output) -> d2.Verdict:
    out.status(first_use_note() or WARMING_UP)
    pair.warm_up()
    results = {}
    for mode in MODES:
        out.status(f"{TITLES[mode]} runs")
        results[mode] = pair.result(mode)
    verdict = pair.compare(**results)
    for note in _notes(pair, results, verdict):
        out.note(note)
    out.json({**{mode: result.to_dict() for mode, result in results.items()}, **verdict.to_dict()})
    return verdict


def _compare_in_lines(pair: Pair, out: Output) -> d2.Verdict:
    """Without a terminal there are no panes: each text, its figures, then the verdict."""
    from rich.console import Console

    from .demo_view import figures

    out.status(first_use_note() or WARMING_UP)
    pair.warm_up()
    out.end_status()
    out.data(f"{subject(pair.engine, pair.config)}\none run after the other, so that neither slows the other\n")
    results = {}
    for mode in MODES:
        out.data(f"\n== {TITLES[mode]} ==\n")
        results[mode] = result = pair.result(mode)
        out.data(result.text)
        out.end_line()
        out.data(f"-- {figures(result.stats)}\n")
    verdict = pair.compare(**results)
    _print_verdict(Console(), pair, results, verdict)
    return verdict


def _compare_live(pair: Pair, out: Output) -> d2.Verdict:
    from rich.console import Console
    from rich.live import Live

    from .demo_view import Lane, Screen

    console = Console()
    shown = _shown(pair)
    lanes = {mode: Lane(TITLES[mode], "", shown) for mode in MODES}
    screen = Screen(subject(pair.engine, pair.config), list(lanes.values()))
    out.end_status()
    with Live(screen, console=console, refresh_per_second=REFRESHES_PER_SECOND):
        for lane in lanes.values():
            lane.start(first_use_note() or WARMING_UP)
        pair.warm_up()
        for lane in lanes.values():
            lane.wait("waits for its turn")
        results = {mode: _run_live(pair, mode, lanes[mode]) for mode in MODES}
    verdict = pair.compare(**results)
    _print_verdict(console, pair, results, verdict)
    return verdict


def _shown(pair: Pair) -> str:
    """What stands in a pane before the reply: the code that it continues, or the question that it answers."""
    if isinstance(pair.prompt, str):
        return f"{pair.prompt}\n\n" if _chats(pair.engine, pair.config) else pair.prompt
    content = pair.prompt[-1]["content"]
    return f"{content}\n\n" if isinstance(content, str) else ""


def _run_live(pair: Pair, mode: str, lane: Lane) -> d2.GenerationResult:
    """Run one mode to its end and tell the lane of every token."""
    from .demo_view import figures

    blocks = Blocks(pair.engine)

    def watched(events: Iterator[d2.GenerationEvent]) -> Iterator[d2.GenerationEvent]:
        for event in events:
            if event.token_ids or event.text:
                lane.land(blocks.parts(event, mode), figures(event.stats))
            yield event

    lane.start("reading the prompt")
    with closing(pair.events(mode)) as events:
        result = d2.collect(pair.engine, watched(events))
    lane.finish(figures(result.stats))
    return result


def _print_verdict(console: Console, pair: Pair, results: dict[str, d2.GenerationResult], verdict: d2.Verdict) -> None:
    from .demo_view import Outcome, verdict_table

    outcome = Outcome(
        results["plain"].stats,
        results["dflash2"].stats,
        verdict,
        difference(pair.engine, verdict),
        _notes(pair, results, verdict),
    )
    console.print()
    console.print(verdict_table(outcome, ascii_only=console.options.ascii_only))


def _notes(pair: Pair, results: dict[str, d2.GenerationResult], verdict: d2.Verdict) -> list[str]:
    return notes(pair.engine, pair.config.sampling, results["dflash2"], verdict)

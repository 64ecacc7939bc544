"""`dflash2-mlx bench`: speed, acceptance, phases and memory of a pair or a server, and the block size that follows.

Owns: the order of work. A measurement that ends early (Ctrl-C, a server that goes away) is reported as far as it
came.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import typer

import dflash2_mlx as d2

from ..bench.analyze import REPEATS, TEMPERATURES, AnalysisOptions, run_analysis
from ..bench.apply import check_pair_is_configured, write_block_size
from ..bench.endpoint import Server
from ..bench.pair import PairBench, draw_sample, empty_record, finish_record, template_args
from ..bench.plot import check_plot, draw_measurement
from ..bench.presets import DEFAULT, THINKING, USUAL_SAMPLES, usual_widths
from ..bench.record import claimed, settings_json, write_csv
from ..bench.serving import Served, measure_server, summarize_server
from ..bench.sets import MINI, PromptSet, load_set
from ..bench.table import lines
from ..console.output import Output, is_terminal
from ..errors import INTERRUPTED, AppError, UsageError
from ..reports.machine import busy_note
from .bench_options import (
    AnalyzeOptions,
    DrawOptions,
    MeasureOptions,
    ResultOptions,
    ServerOptions,
    SetOptions,
    idle_options,
    refuse_beside_analyze,
    refuse_beside_endpoint,
    sampling,
)
from .options import ModelOptions
from .parsers import grouped


@dataclass
class Measured:
    """What came of a measurement; `problem` is what ended it early, if anything did."""

    events: list[Any] = field(default_factory=list)
    problem: BaseException | None = None


@grouped
def bench(
    sets: SetOptions,
    models: ModelOptions,
    measured: MeasureOptions,
    drawn: DrawOptions,
    taken_apart: AnalyzeOptions,
    server: ServerOptions,
    results: ResultOptions,
) -> None:
    """Measure a pair, plain decoding and DFlash 2 in turn, or an OpenAI-compatible server."""
    if taken_apart.analyze:
        refuse_beside_analyze(measured, server, results)
    if server.endpoint is not None:
        refuse_beside_endpoint(models, measured, drawn, results)
    drawn.given()
    check_plot(results.plot)
    if results.apply:
        check_apply(models)
    with Output() as out, claimed({"--csv": results.csv, "--plot": results.plot}):
        prompts = _prompts(sets, server.endpoint is not None, out)
        if taken_apart.analyze:
            _analyze(prompts, sets, models, measured, drawn, taken_apart, results, out)
            return
        if server.endpoint is not None:
            record, problem = _bench_server(prompts, sets, measured, drawn, server, out)
        else:
            record, problem = _bench_pair(prompts, sets, models, measured, drawn, out)
        _report(record, results, out)
        if results.apply and problem is None:
            out.note(apply_block_size(models, (record["recommendation"] or {}).get("block_size")))
    if isinstance(problem, KeyboardInterrupt):
        raise typer.Exit(INTERRUPTED)
    if problem is not None:
        raise problem


def _prompts(sets: SetOptions, to_server: bool, out: Output) -> PromptSet:
    """The sample that is asked; a server is asked the first turn of a conversation only."""
    if sets.prompts is not None:
        found = PromptSet(sets.prompts.name, d2.bench.read_prompts(sets.prompts))
    else:
        out.status(f"fetching the prompts of {sets.set or MINI}")
        found = load_set(sets.set or MINI)
    wanted = USUAL_SAMPLES if sets.samples is None else sets.samples
    if sets.samples is not None and wanted > len(found.prompts):
        out.note(f"--samples: {wanted} were asked for, {found.name} has {len(found.prompts)}")
    chosen = draw_sample(found, wanted)
    if to_server and any(prompt.follow_ups for prompt in chosen.prompts):
        out.note("a server is asked the first turn of each conversation only")
        first = [d2.bench.BenchPrompt(prompt.first, (), prompt.family) for prompt in chosen.prompts]
        chosen = PromptSet(chosen.name, first, chosen.revision)
    return chosen


def _analyze(
    prompts: PromptSet,
    sets: SetOptions,
    models: ModelOptions,
    measured: MeasureOptions,
    drawn: DrawOptions,
    taken_apart: AnalyzeOptions,
    results: ResultOptions,
    out: Output,
) -> None:
    sampled, temperatures = sampling(drawn, measured, _target(models, measured))
    if measured.temperatures is None and measured.preset is None:
        temperatures = TEMPERATURES
    engine = models.load(out)
    has_template = engine.tokenizer.has_chat_template
    config = d2.GenerationConfig(
        max_tokens=measured.tokens,
        sampling=replace(sampled, seed=measured.seed),
        block_size=int(measured.widths[0]) if measured.widths else None,
        chat_template=has_template and not sets.no_chat_template,
        chat_template_kwargs=_template_args(engine, sets, measured)[0],
    )
    compared, repeats = tuple(taken_apart.compare or ()), measured.repeat or REPEATS
    options = AnalysisOptions(config, temperatures, compared, repeats, results.plot, results.json)
    run_analysis(out, engine, [prompt.first for prompt in prompts.prompts], options)


def _bench_pair(
    prompts: PromptSet,
    sets: SetOptions,
    models: ModelOptions,
    measured: MeasureOptions,
    drawn: DrawOptions,
    out: Output,
) -> tuple[dict[str, Any], BaseException | None]:
    busy = busy_note()
    config, temperatures = sampling(drawn, measured, _target(models, measured))
    engine = models.load(out)
    variables, notes = _template_args(engine, sets, measured)
    plan = d2.bench.Plan(
        widths=_integers(measured.widths, usual_widths(engine.block_size)),
        depths=_integers(measured.depths, (0,)),
        temperatures=temperatures,
        repeats=measured.repeats,
        max_tokens=measured.tokens,
        sampling=config,
        seed=measured.seed,
        chat_template=not sets.no_chat_template,
        chat_template_kwargs=variables,
        phases=measured.phases,
    )
    told = (*idle_options(drawn, temperatures), *notes)
    measurement = PairBench(engine, prompts, plan, measured.preset, told, busy)
    measurement.check()
    done = _follow(out, d2.bench.measure(engine, prompts.prompts, plan), measurement.requests)
    return measurement.record(done.events, complete=done.problem is None), done.problem


def _target(models: ModelOptions, measured: MeasureOptions) -> str | None:
    """The target whose own sampling is asked for."""
    return models.target if measured.preset == DEFAULT else None


def _template_args(
    engine: d2.Engine, sets: SetOptions, measured: MeasureOptions
) -> tuple[dict[str, Any] | None, list[str]]:
    return template_args(engine, measured.preset, sets.chat_template_args, chat_template=not sets.no_chat_template)


def _bench_server(
    prompts: PromptSet,
    sets: SetOptions,
    measured: MeasureOptions,
    drawn: DrawOptions,
    options: ServerOptions,
    out: Output,
) -> tuple[dict[str, Any], BaseException | None]:
    config, chosen = sampling(drawn, measured, None)
    temperatures: tuple[float | None, ...] = chosen
    notes = ["a server's tokens/s count from its first piece of text, which may hold several tokens"]
    if measured.repeats > 1:
        notes.append("repeats ask the same again: a server that caches prompts answers its first token sooner")
    if measured.preset == DEFAULT and not drawn.given() and measured.temperatures is None:
        temperatures = (None,)  # not sent, so that the server's own holds
    else:
        notes += idle_options(drawn, chosen)
    thinking = THINKING if measured.preset is not None and not sets.no_chat_template else {}
    plan = d2.bench.Plan(
        widths=(d2.bench.PLAIN,),
        depths=_integers(measured.depths, (0,)),
        temperatures=temperatures,
        repeats=measured.repeats,
        max_tokens=measured.tokens,
        sampling=config,
        seed=measured.seed,
        chat_template=not sets.no_chat_template,
        chat_template_kwargs={**thinking, **(sets.chat_template_args or {})} or None,
    )
    server = Server(str(options.endpoint), options.endpoint_model, options.key())
    done = _follow(out, measure_server(server, prompts.prompts, plan), plan.requests(prompts.prompts))
    reports, sources = summarize_server(done.events)
    served = [event.run for event in done.events if isinstance(event, Served)]
    notes += [f"acceptance as the server tells it, in {source}" for source in sources]
    if served and not sources:
        notes.append("the server tells nothing of its acceptance")
    record = empty_record(prompts, plan, measured.preset, None)
    record |= {
        "kind": "server",
        "model": server.model,
        "endpoint": server.url,
        "acceptance_sources": sources,
        "settings": settings_json(reports, server=True),
    }
    finish_record(record, served, notes, complete=done.problem is None)
    return record, done.problem


def _integers(given: Sequence[float] | None, usual: tuple[int, ...]) -> tuple[int, ...]:
    return usual if given is None else tuple(map(int, given))


def _report(record: dict[str, Any], results: ResultOptions, out: Output) -> None:
    out.end_status()
    if results.json:
        out.json(record)
    else:
        out.data("\n".join(lines(record)) + "\n")
    if results.csv is not None:
        write_csv(results.csv, record)
        out.note(f"written to {results.csv}")
    if results.plot is not None:
        draw_measurement(record, results.plot)
        out.note(f"drawn to {results.plot}")


def _follow(out: Output, events: Iterator[Any], total: int) -> Measured:
    """Collect events until they end, or something ends them, and show how far they are."""
    done = Measured()
    try:
        for event in _shown(out, events, total):
            done.events.append(event)
    except KeyboardInterrupt as stop:
        done.problem = stop
        out.note("interrupted: this is what was measured until then")
    except (d2.Dflash2Error, AppError, OSError, MemoryError, RuntimeError) as error:
        if not any(_is_request(event) for event in done.events):
            raise
        done.problem = error
    return done


def _is_request(event: Any) -> bool:
    return isinstance(event, (d2.bench.Run, Served))


def _shown(out: Output, events: Iterator[Any], total: int) -> Iterator[Any]:
    """Pass events on: with a bar on a terminal, a line per stage elsewhere."""
    if not is_terminal(sys.stderr):
        for event in events:
            if isinstance(event, d2.bench.Stage):
                out.info(_stage(event))
            yield event
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    out.end_status()
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        for event in events:
            if isinstance(event, d2.bench.Stage):
                progress.update(task, description=_stage(event))
            elif _is_request(event):
                progress.advance(task)
            yield event


def _stage(stage: d2.bench.Stage) -> str:
    temperature = stage.setting.temperature
    drawn = "the server's own sampling" if temperature is None else f"temperature {temperature:g}"
    return f"{drawn}, depth {stage.setting.depth}: {stage.doing}"


def check_apply(models: ModelOptions) -> None:
    """Refuse, before anything is measured, what could not be written after it.

    Raises:
        UsageError: no drafter is configured, or the drafter of this command is another one.
        SettingsError: the settings cannot be read.
    """
    setup = models.prepare()
    if models.drafter is not None:
        raise UsageError(
            f"--apply: got it beside --drafter {models.drafter}, expected the configured drafter",
            hint=f"`dflash2-mlx settings set {setup.named.model_id} dflash_draft_model={models.drafter}`",
        )
    check_pair_is_configured(setup, None, option="--apply")


def apply_block_size(models: ModelOptions, width: int | None) -> str:
    """Write a model's block size to its settings and say so; None, the advice to decode plainly, writes nothing."""
    from ..settings.paths import find_base

    if width is None:
        return "--apply: nothing is written: no block size is recommended"
    return write_block_size(models.prepare(), find_base(models.base_path), width)

"""`dflash2-mlx doctor`: what this machine is, what runs on it, and which block size pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import dflash2_mlx as d2

from ..console.output import Output, follow
from ..engine.tuning import overview, overview_lines, plan_line, race_lines
from ..errors import AppError, UsageError
from ..reports.machine import MOST_ROWS, examine, look, tune_pair
from ..settings.paths import find_base
from .options import ModelOptions, valued
from .parsers import grouped, integer

_PANEL = "Output"
GIGA = 10**9

Rows = valued("Measurement")("--rows", "N", "Time passes of 1 to N rows", integer(2, MOST_ROWS))


@grouped
def doctor(
    models: ModelOptions,
    rows: Annotated[int, Rows] = MOST_ROWS,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Race our kernels against MLX's, time passes, and keep what was found",
            rich_help_panel="Measurement",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Load no model and measure nothing", rich_help_panel="Measurement")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, for a bug report", rich_help_panel=_PANEL)
    ] = False,
) -> None:
    """Check this machine, time the passes of a pair, and recommend a block size."""
    with Output() as out:
        if quick and (models.model or models.drafter):
            raise UsageError("--quick: got it beside --model or --drafter, expected one of the two: it loads no model")
        if quick and tune:
            raise UsageError("--tune: got it beside --quick, expected one of the two: it measures a loaded pair")

        folder = find_base(models.base_path).tune
        out.status("looking at this machine")
        found = look(folder)
        problem: d2.Dflash2Error | None = None
        if not quick:
            try:
                engine = models.load(out)
                if tune:
                    _tune(found, engine, folder, out)
                examine(found, engine, rows, out.status)
            except d2.Dflash2Error as error:  # what was found out without the pair is worth telling
                problem = error
                found["problem"] = str(error)
        if json:
            out.json(found)
        else:
            out.data("\n".join(_lines(found)) + "\n")
        if problem is not None:
            raise problem


def _tune(found: dict[str, Any], engine: d2.Engine, folder: Path, out: Output) -> None:
    """Tune the pair first, so that what is timed afterwards runs as later loads will."""
    out.info(plan_line(d2.tuning.plan(engine)))
    try:
        follow(out, "tuning", tune_pair(found, engine, folder))
    except OSError as error:
        raise AppError(f"{folder}: got {error.strerror or error}, expected a folder that can be written") from None
    found["tuning"] = overview(folder)


def _lines(found: dict[str, Any]) -> list[str]:
    machine, pair = found["machine"], found["pair"]
    versions = " · ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    memory = machine["memory_bytes"]
    lines = [
        f"machine    {machine['chip'] or 'unknown chip'} · {machine['system']} · Python {machine['python']}",
        *_gpu_lines(machine["gpu"]),
        f"memory     {_gigabytes(memory)}, MLX may use {_gigabytes(machine['memory_limit_bytes'])}",
        f"MLX        {machine['backend']}, {machine['device']}",
        *_blas_lines(machine["blas"], found["blas"]),
        f"packages   {versions}",
    ]
    if found["memory_bandwidth_bytes_per_s"] is not None:
        lines.append(f"bandwidth  {found['memory_bandwidth_bytes_per_s'] / GIGA:.1f} GB/s, as MLX reads and writes")
    for state in found["kernels"]:
        tested = "tested here" if state["tested"] else "not tested"
        reason = f" ({state['reason']})" if state["reason"] else ""
        rule = f"by {len(state['races'])} races" if state["races"] else "by default"
        lines.append(f"kernel     {state['name']:18} {state['runs']:5} {rule}, {tested}{reason}")
    for timed in found["kernel_times"]:
        lines.append(f"time       {timed['name']:18} {timed['kernel_ms']:.3f} ms, its twin {timed['twin_ms']:.3f} ms")
    lines += overview_lines(found["tuning"])
    if found["tuned"] is not None:
        lines += ["", *race_lines(found["tuned"])]
    if pair is not None:
        lines += ["", *_pair_lines(pair)]
        if found["busy"]:
            lines.append(f"caution    {found['busy']}")
    return [*lines, *(f"cannot     {text}" for text in found["cannot"])]


def _blas_lines(blas: dict[str, Any] | None, timed: dict[str, Any] | None) -> list[str]:
    """What multiplies matrices on Linux's CPU, and what a product of its told; none elsewhere."""
    if blas is None:
        return []
    if blas["library"] is None:
        name = f"none of ours ({blas['reason']})"
    else:
        threads = f", {blas['threads']} thread" if blas["threads"] else ""
        name = f"{blas['version'] or blas['library']}{threads}"
    if timed is None:
        return [f"BLAS       {name}, not timed"]
    verdict = "fast" if timed["fast"] else "slow: blocks do not pay"
    return [f"BLAS       {name}: {timed['rows']} rows cost {timed['cost']:.1f} times one row, {verdict}"]


def _gpu_lines(gpu: dict[str, Any] | None) -> list[str]:
    """The chip's GPU; none where there is no Apple GPU."""
    if gpu is None:
        return []
    facts = [
        f"GPU generation {gpu['generation']}",
        *([f"{gpu['cores']} cores"] if gpu["cores"] else []),
        *(["bfloat16 is emulated"] if gpu["emulates_bfloat16"] else []),
        f"Neural Accelerators: {'yes' if gpu['neural_accelerators'] else 'no'} ({gpu['neural_reason']})",
    ]
    return [f"chip       {' · '.join(facts)}"]


def _pair_lines(pair: dict[str, Any]) -> list[str]:
    drafter = f" · drafter {pair['drafter']} · block size {pair['block_size']}" if pair["drafter"] else ""
    lines = [f"pair       {pair['model']} ({pair['family']}, {pair['quantization'] or 'not quantized'}){drafter}"]
    if pair["acceptance_length"] is not None:
        lines.append(f"sample     acceptance length {pair['acceptance_length']:.2f} at block size {pair['block_size']}")
    lines.append("           rows   verify ms   of 1 row   draft ms   tokens per round   speed")
    gains = {gain["block_size"]: gain for gain in pair["gains"]}
    one = pair["verify_ms"]["1"]
    for rows, verify in pair["verify_ms"].items():
        line = f"           {rows:>4}   {verify:9.2f}   {verify / one:7.2f}x"
        gain = gains.get(int(rows))
        if gain is not None:
            line += f"   {pair['draft_ms'][rows]:8.2f}   {gain['tokens_per_round']:16.2f}   {gain['speedup']:4.2f}x"
            if gain["block_size"] == pair["recommended_block_size"]:
                line += "  <- recommended"
        lines.append(line)
    if pair["note"]:
        lines.append(f"note       {pair['note']}")
    return [*lines, _advice(pair)]


def _advice(pair: dict[str, Any]) -> str:
    if not pair["gains"]:
        return "advice     no drafter: plain decoding"
    if pair["recommended_block_size"] is None:
        return "advice     plain decoding: no block size is faster on this machine"
    speed = f"{pair['expected_speedup']:.2f}x plain decoding on text like the sample"
    return f"advice     --block-size {pair['recommended_block_size']}, expected {speed}"


def _gigabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIGA:.1f} GB"

"""`dflash2-mlx doctor`: what this machine is, what runs on it, and which block size pays."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..output import Output
from ..side_by_side import sample_prompt
from .grouping import grouped
from .options import ModelOptions, valued
from .parsers import integer

if TYPE_CHECKING:
    import dflash2_mlx as d2

_PANEL = "Output"
GIGA = 10**9
MOST_ROWS = 16

Rows = valued("Measurement")("--rows", "N", "Time passes of 1 to N rows", integer(2, MOST_ROWS))


@grouped
def doctor(
    models: ModelOptions,
    rows: Annotated[int, Rows] = MOST_ROWS,
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
        import dflash2_mlx as d2

        found = _look(out)
        problem: d2.Dflash2Error | None = None
        if not quick:
            try:
                _examine(found, models, out, rows)
            except d2.Dflash2Error as error:  # what was found out without the pair is worth telling
                problem = error
                found["problem"] = str(error)
        if json:
            out.json(found)
        else:
            out.data("\n".join(_lines(found)) + "\n")
        if problem is not None:
            raise problem


def _look(out: Output) -> dict[str, Any]:
    """Find out what can be known without measuring."""
    from dflash2_mlx import analysis

    out.status("looking at this machine")

    machine = analysis.describe_machine()
    return {
        "machine": machine,
        "versions": analysis.package_versions(),
        "memory_bandwidth_bytes_per_s": None,
        "kernels": [asdict(state) for state in analysis.kernel_states()],
        "kernel_times": [],
        "pair": None,
        "problem": None,
        "busy": busy_note(),
        "cannot": _cannot(machine),
    }


def busy_note() -> str | None:
    """Whether others use this machine so much that timings mean little."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores / 2:
        return None
    return f"{load:.1f} processes want to run on {cores} cores: timings and advice are unreliable, measure again later"


def _examine(found: dict[str, Any], models: ModelOptions, out: Output, rows: int) -> None:
    """Add what needs a loaded pair and time."""
    from dflash2_mlx import analysis

    engine = models.load(out)
    out.status("measuring the memory bandwidth")
    found["memory_bandwidth_bytes_per_s"] = analysis.measure_bandwidth()
    out.status(f"timing passes of 1 to {rows} rows")
    report = analysis.examine_pair(engine, sample_prompt(engine), rows=rows)
    found["pair"] = {
        "model": engine.target_name,
        "drafter": engine.drafter_name,
        "block_size": engine.block_size,
        "family": engine.target.spec.family,
        "quantization": engine.target.spec.quantization,
        "note": engine.row_cost_note,
        **report.to_dict(),
    }
    # Loading and measuring is what tests the kernels.
    found["kernels"] = [asdict(state) for state in analysis.kernel_states()]
    if engine.drafter is not None:
        out.status("timing the kernels")
        found["kernel_times"] = [asdict(timed) for timed in analysis.time_kernels(engine.drafter)]


def _cannot(machine: dict[str, Any]) -> list[str]:
    """What this machine cannot do, said plainly."""
    if machine["backend"] == "metal":
        return []
    missing = ["Metal kernels: MLX has no Metal here, so every operation runs as its pure-MLX twin"]
    if machine["backend"] == "cpu":
        missing.append("a GPU's speed: MLX computes on the CPU here, where figures say little about a Mac")
    return missing


def _lines(found: dict[str, Any]) -> list[str]:
    machine, pair = found["machine"], found["pair"]
    versions = " · ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    memory = machine["memory_bytes"]
    lines = [
        f"machine    {machine['chip'] or 'unknown chip'} · {machine['system']} · Python {machine['python']}",
        f"memory     {_gigabytes(memory)}, MLX may use {_gigabytes(machine['memory_limit_bytes'])}",
        f"MLX        {machine['backend']}, {machine['device']}",
        f"packages   {versions}",
    ]
    if found["memory_bandwidth_bytes_per_s"] is not None:
        lines.append(f"bandwidth  {found['memory_bandwidth_bytes_per_s'] / GIGA:.1f} GB/s, as MLX reads and writes")
    for state in found["kernels"]:
        tested = "tested here" if state["tested"] else "not tested"
        reason = f" ({state['reason']})" if state["reason"] else ""
        lines.append(f"kernel     {state['name']:15} {state['runs']:5} {tested}{reason}")
    for timed in found["kernel_times"]:
        lines.append(f"time       {timed['name']:15} {timed['kernel_ms']:.3f} ms, its twin {timed['twin_ms']:.3f} ms")
    if pair is not None:
        lines += ["", *_pair_lines(pair)]
        if found["busy"]:
            lines.append(f"caution    {found['busy']}")
    return [*lines, *(f"cannot     {text}" for text in found["cannot"])]


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

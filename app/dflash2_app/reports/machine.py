"""What `doctor` and the status page find out: this machine, its kernels, and what the passes of a pair cost on it.

Owns: the fields of `doctor --json`. Does not print. Invariant: `look` measures nothing and loads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dflash2_mlx as d2

from ..engine.tuning import overview
from .samples import sample_prompt

MOST_ROWS = 16

Found = dict[str, Any]


def look(tune_folder: Path) -> Found:
    """Find out what can be known without measuring.

    Args:
        tune_folder: of the records of tuning.

    Raises:
        ConfigError: `DFLASH2_KERNELS` or `DFLASH2_BLAS` cannot be honoured.
    """
    machine = d2.analysis.describe_machine()
    return {
        "machine": machine,
        "versions": d2.analysis.package_versions(),
        "blas": None,
        "memory_bandwidth_bytes_per_s": None,
        "kernels": kernels(),
        "kernel_times": [],
        "tuning": overview(tune_folder),
        "tuned": None,
        "pair": None,
        "problem": None,
        "busy": busy_note(),
        "cannot": _cannot(machine),
    }


def kernels() -> list[dict[str, Any]]:
    """What became of each kernel in this process so far."""
    return [asdict(state) for state in d2.analysis.kernel_states()]


def first_use_note() -> str | None:
    """What makes a first reply on this machine slow, once; None where nothing does."""
    if not d2.analysis.compiles_first():
        return None
    return "first use: MLX compiles its operations for this CPU, for a minute or so, and keeps them"


def busy_note() -> str | None:
    """Whether others use this machine so much that timings mean little."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores / 2:
        return None
    return f"{load:.1f} processes want to run on {cores} cores: timings and advice are unreliable, measure again later"


def examine(found: Found, engine: d2.Engine, rows: int, tell: Callable[[str], None] = lambda _: None) -> None:
    """Add to what `look` found what needs a loaded pair and time.

    Args:
        rows: passes of 1 to so many rows are timed.
        tell: is told what is going on.
    """
    if found["machine"]["blas"] is not None:
        tell("timing a product of MLX's BLAS")
        found["blas"] = {
            "rows": d2.analysis.BLOCK_ROWS,
            "cost": d2.analysis.block_cost(),
            "fast": d2.analysis.fast_blas(),
        }
    tell("measuring the memory bandwidth")
    found["memory_bandwidth_bytes_per_s"] = d2.analysis.measure_bandwidth()
    tell(f"timing passes of 1 to {rows} rows")
    report = d2.analysis.examine_pair(engine, sample_prompt(engine), rows=rows)
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
    found["kernels"] = kernels()
    if engine.drafter is not None:
        tell("timing the kernels")
        found["kernel_times"] = [asdict(timed) for timed in d2.analysis.time_kernels(engine.drafter)]


def tune_pair(found: Found, engine: d2.Engine, folder: Path) -> Iterator[tuple[int, int, str]]:
    """Tune a loaded pair, keep the record, and add it to what was found.

    Yields steps done, steps in all, and what is under way.

    Raises:
        OSError: the record cannot be written.
    """

    def steps() -> Generator[d2.tuning.Progress, None, None]:
        record = yield from d2.tuning.tune(engine, d2.tuning.TuneFolder(folder))
        found["tuned"] = record.to_dict()

    last = None
    for progress in steps():
        if progress != last:
            yield progress.done, progress.total, progress.what
        last = progress


def _cannot(machine: Found) -> list[str]:
    """What this machine cannot do, said plainly."""
    if machine["backend"] == "metal":
        return []
    missing = ["Metal kernels: MLX has no Metal here, so every operation runs as its pure-MLX twin"]
    if machine["backend"] == "cpu":
        missing.append("a GPU's speed: MLX computes on the CPU here, where figures say little about a Mac")
    return missing

"""`bench --analyze`: the announcement's own measurements of a pair.

Owns: the order of work, and what becomes of the result: a dictionary, lines of text, one picture. The library measures;
the definitions are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import SETTINGS, TEMPERATURE

from ..console.output import Output
from ..errors import UsageError
from .analyze_picture import draw_analysis
from .analyze_text import analysis_lines
from .sets import Prompt

TEMPERATURES = (0.0, 1.0)
REPEATS = 15


@dataclass(frozen=True)
class AnalysisOptions:
    """How a pair is analyzed.

    Args:
        config: of every reply; its temperature is replaced.
        temperatures: one table each.
        compare: other drafters for the same target, folders or Hub ids, such as one trained without a part.
        repeats: turns of the timing.
        picture: PNG file of the heat maps and curves.
        json: write one JSON object instead of lines.
    """

    config: d2.GenerationConfig
    temperatures: tuple[float, ...] = TEMPERATURES
    compare: tuple[str, ...] = ()
    repeats: int = REPEATS
    picture: Path | None = None
    json: bool = False


def run_analysis(out: Output, engine: d2.Engine, prompts: Sequence[Prompt], options: AnalysisOptions) -> dict[str, Any]:
    """Analyze a pair on some prompts; writes lines or JSON to `out`, and the picture.

    Returns:
        what `json` prints
    """
    if engine.drafter is None:
        raise UsageError("--analyze: got no drafter, expected a pair: there is nothing to analyze in plain decoding")
    others = _others(out, engine, options.compare)
    done = d2.analysis.analyze(
        engine,
        prompts,
        options.config,
        temperatures=options.temperatures,
        others=others,
        repeats=options.repeats,
        tell=out.status,
    )
    found = {**_subject(engine, prompts, options), **done.to_dict()}
    if options.json:
        out.json(found)
    else:
        out.data("\n".join(analysis_lines(found)) + "\n")
    if options.picture is not None:
        draw_analysis(found, options.picture)
        out.note(f"drawn to {options.picture}")
    return found


def _others(out: Output, engine: d2.Engine, names: Sequence[str]) -> Mapping[str, d2.Engine]:
    others: dict[str, d2.Engine] = {}
    for name in names:
        if name in others or name == engine.drafter_name:
            raise UsageError(f"--compare: got {name!r} twice, expected each drafter once")
        out.status(f"loading {name}")
        others[name] = d2.analysis.with_drafter(engine, name)
    return others


def _subject(engine: d2.Engine, prompts: Sequence[Prompt], options: AnalysisOptions) -> dict[str, Any]:
    """What was measured, and on what."""
    sampling = options.config.sampling
    return {
        "model": engine.target_name,
        "drafter": engine.drafter_name,
        "block_size": options.config.block_size or engine.block_size,
        "prompts": len(prompts),
        "max_tokens": options.config.max_tokens,
        "sampling": {
            **{name: getattr(sampling, name) for name in SETTINGS if name != TEMPERATURE.name},
            "seed": sampling.seed or 0,
            "lossless_mode": sampling.lossless_mode or "rejection",
        },
        "machine": d2.analysis.describe_machine(),
        "versions": d2.analysis.package_versions(),
        "note": engine.row_cost_note,
    }

"""`python -m dflash2_app.commands.analyze`: `bench --analyze` alone, until `bench` asks for it.

Owns: the options of the analysis. Not a command of `dflash2-mlx`.
"""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..bench.analyze import REPEATS, TEMPERATURES, AnalysisOptions, run_analysis
from ..errors import INTERRUPTED, UsageError, explain
from ..output import Output, show_problem
from .grouping import grouped
from .options import BlockSize, ModelOptions, valued
from .parsers import filled, integer, number, path

_analysis = valued("Analysis")

# Code, which the embedded bootstrap pair continues.
SAMPLES = (
    "def read_config(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\nimport sys\n\n\ndef main(argv=None):\n",
)


@grouped
def analyze(
    models: ModelOptions,
    prompts: Annotated[Path | None, _analysis("--prompts", "FILE", "JSON lines, or one prompt per line", path)] = None,
    max_tokens: Annotated[int, _analysis("--max-tokens", "N", "Most tokens of a reply", integer(2))] = 128,
    temperature: Annotated[
        list[float] | None,
        _analysis(
            "--temperature", "T", "One table each; repeatable", number(">= 0", lambda x: x >= 0), default="0 and 1"
        ),
    ] = None,
    compare: Annotated[
        list[str] | None, _analysis("--compare", "PATH|ID", "Another drafter of the same target; repeatable", filled)
    ] = None,
    block_size: Annotated[int | None, BlockSize] = None,
    repeat: Annotated[int, _analysis("--repeat", "N", "Turns of the timing", integer(2))] = REPEATS,
    seed: Annotated[int, _analysis("--seed", "N", "Of sampled replies", integer(0, 2**63))] = 0,
    plot: Annotated[Path | None, _analysis("--plot", "FILE.png", "Heat maps and curves", path)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
) -> None:
    """Measure what convolution and selector of a drafter bring and cost."""
    texts = list(SAMPLES) if prompts is None else _read(prompts)
    if plot is not None:
        _check_picture(plot)
    with Output() as out:
        import dflash2_mlx as d2

        engine = models.load(out)
        if models.refuses_drafter:
            engine = replace(engine, drafter=None, drafter_name=None)
        config = d2.GenerationConfig(
            max_tokens=max_tokens,
            sampling=d2.SamplingConfig(seed=seed),
            block_size=block_size,
            chat_template=prompts is not None and engine.tokenizer.has_chat_template,
        )
        options = AnalysisOptions(config, tuple(temperature or TEMPERATURES), tuple(compare or ()), repeat, plot, json)
        run_analysis(out, engine, texts, options)


def _read(file: Path) -> list[Any]:
    """One prompt per line: bare text, {"prompt": ...} or {"messages": [...]}."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts: got {str(file)!r}, expected a readable text file ({error})") from None
    found: list[Any] = []
    for number_of, line in enumerate(lines, start=1):
        if not line.startswith("{"):
            found.append(line)
            continue
        try:
            entry = json_module.loads(line)
            found.append(entry.get("messages") or entry["prompt"])
        except (ValueError, KeyError):
            raise UsageError(f"--prompts: got {line[:60]!r} in line {number_of}, expected prompt or messages") from None
    if not found:
        raise UsageError(f"--prompts: got no prompt in {str(file)!r}, expected at least one line")
    return found


def _check_picture(picture: Path) -> None:
    """Refuse before anything is measured what could not be drawn after it."""
    if picture.suffix.lower() != ".png" or not picture.parent.is_dir():
        raise UsageError(f"--plot: got {str(picture)!r}, expected a .png file in an existing folder")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError(
            f"--plot: got {str(picture)!r}, expected matplotlib to be installed",
            hint="pip install 'dflash2-mlx[train]'",
        ) from None


def main(arguments: list[str]) -> int:
    """Run it, with errors as the command line shows them."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(analyze)
    try:
        code = app(arguments, prog_name="analyze", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the boundary, as in cli.py
        problem = explain(error)
        show_problem(problem.message, problem.hint)
        return problem.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

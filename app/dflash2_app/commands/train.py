"""`dflash2-mlx train`: a drafter for a target, from text or chats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..output import Output, is_terminal
from ..plots import draw_training
from .grouping import grouped
from .options import MINI, valued
from .parsers import filled, integer, number, one_of, path

if TYPE_CHECKING:
    from dflash2_mlx import training

_data = valued("Data")
_shape = valued("Drafter")
_steps = valued("Steps")
_switch: Callable[..., Any] = typer.Option
_dtypes = ("auto", "bfloat16", "float32")


@dataclass(frozen=True)
class DataOptions:
    """What is learned from, and for which target."""

    output: Annotated[Path, _data("--output", "FOLDER", "For the drafter; an unfinished run goes on", path)]
    model: Annotated[str | None, _data("--model", "PATH|ID", "Target", filled, default="the embedded one")] = None
    target_dtype: Annotated[
        str, _data("--target-dtype", "|".join(_dtypes), "float32 dequantizes on load", one_of(*_dtypes))
    ] = "auto"
    validation: Annotated[Path | None, _data("--validation", "FILE", "JSONL that is decoded, not learned", path)] = None
    max_length: Annotated[int, _data("--max-length", "N", "Tokens of a sequence", integer(8))] = 2048


@dataclass(frozen=True)
class ShapeOptions:
    """How large the drafter is."""

    layers: Annotated[
        int | None, _shape("--layers", "N", "Layers", integer(1, 64), default="2 for a small target, else 5")
    ] = None
    block_size: Annotated[int, _shape("--block-size", "N", "Rows of a block", integer(2, 64))] = 8
    plain_blocks: Annotated[
        bool,
        _switch("--no-conv-no-selector", help="A DFlash drafter, for comparison", rich_help_panel="Drafter"),
    ] = False


@dataclass(frozen=True)
class StepOptions:
    """How long and how fast it learns."""

    steps: Annotated[int, _steps("--steps", "N", "Steps", integer(1))] = 1000
    learning_rate: Annotated[float, _steps("--learning-rate", "X", "Highest rate", number("> 0", lambda x: x > 0))] = (
        6e-4
    )
    sequences: Annotated[int, _steps("--sequences", "N", "Sequences of a step", integer(1))] = 4
    anchors: Annotated[int, _steps("--anchors", "N", "Blocks of a sequence", integer(1))] = 64
    every: Annotated[int, _steps("--every", "N", "Steps between checkpoints", integer(1))] = 100
    seed: Annotated[int, _steps("--seed", "N", "The same seed gives the same drafter", integer(0))] = 0


@grouped
def train(
    data: DataOptions,
    shape: ShapeOptions,
    steps: StepOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE", help='JSONL: {"text": ...} or {"messages": [...]} per line')],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained, and stop", rich_help_panel="Steps")
    ] = False,
) -> None:
    """Train a drafter for a target; an interrupted run goes on where it was."""
    if (data.output / "model.safetensors").exists():
        raise UsageError(f"--output: got {str(data.output)!r}, expected a folder without a finished drafter")
    with Output() as out:
        import dflash2_mlx as d2
        from dflash2_mlx import training

        name = data.model or MINI
        if data.model is None:
            out.note("no --model given: training for the embedded mini target")
        out.status(f"loading {name}")
        engine = d2.load(name, target_dtype=data.target_dtype)
        config = training.config_for(
            engine,
            training.DrafterShape(shape.layers, shape.block_size, conv=not shape.plain_blocks,
                                  selector=not shape.plain_blocks),
        )  # fmt: skip
        documents = training.read_documents(file, engine.tokenizer, max_length=data.max_length)
        held_out = (
            training.read_documents(data.validation, engine.tokenizer, max_length=data.max_length)
            if data.validation
            else []
        )
        settings = training.TrainSettings(
            steps.steps, steps.learning_rate, sequences=steps.sequences, anchors=steps.anchors, seed=steps.seed
        )
        out.info(_plan(config, documents, settings))
        if dry_run:
            return
        notes = {"target": name, "data": file.name, "documents": str(len(documents))}
        events = training.train(
            engine, config, documents, settings, data.output, validation=held_out, every=steps.every, notes=notes
        )
        _follow(out, events)
        _draw(out, data.output)
        out.note(f"written to {data.output}; --drafter {data.output} uses it")


def _plan(config: dict[str, Any], documents: list[training.Document], settings: training.TrainSettings) -> str:
    from dflash2_mlx import training

    tokens = sum(len(document.tokens) for document in documents)
    learned = sum(int(document.supervised.sum()) for document in documents)
    count = training.parameter_count(config)
    memory = 16 * count / 1e9  # weights, gradients and two moments, in float32
    drafter = f"{config['architectures'][0]}, {config['num_hidden_layers']} layers"
    return (
        f"{drafter}, block size {config['dflash_config']['block_size']} · {count / 1e6:.1f} M parameters, about "
        f"{memory:.2f} GB beside the target · {len(documents)} documents, {tokens} tokens, {learned} learned · "
        f"{settings.steps} steps of {settings.sequences} sequences"
    )


def _draw(out: Output, folder: Path) -> None:
    """Leave a picture of the run beside its log."""
    try:
        draw_training(folder / "train.jsonl", folder / "train.png")
    except ImportError:
        out.note("no picture of the run: matplotlib is not installed (pip install 'dflash2-mlx[train]')")


def _follow(out: Output, events: Any) -> None:
    """Show every event: a bar on a terminal, lines elsewhere."""
    import sys

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not is_terminal(sys.stderr):
        for event in events:
            if event.acceptance_length is not None or event.report.step % 50 == 0:
                out.info(f"step {event.report.step + 1} of {event.steps} · {_figures(event)}")
        return
    from rich.console import Console

    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        for event in events:
            progress.update(task, total=event.steps, completed=event.report.step + 1, description=_figures(event))


def _figures(event: training.TrainEvent) -> str:
    report = event.report
    text = f"loss {report.loss:.3f} · top-1 {report.top1:.2f} · recall {report.recall:.2f}"
    return text if event.acceptance_length is None else f"{text} · acceptance {event.acceptance_length:.2f}"

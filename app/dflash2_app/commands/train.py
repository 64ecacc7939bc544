"""`dflash2-mlx train`: a drafter for a target, from text or chats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import dflash2_mlx as d2

from ..console.output import Output, follow
from ..console.plots import draw_training
from ..errors import UsageError
from .options import MINI, valued
from .parsers import filled, grouped, integer, number, one_of, path, refuse

_data = valued("Data")
_replies = valued("Replies")
_shape = valued("Drafter")
_steps = valued("Steps")
_switch: Callable[..., Any] = typer.Option
_dtypes = ("auto", "bfloat16", "float32")
_precisions = ("float32", "bfloat16")


@dataclass(frozen=True)
class LayerList:
    """One `--taps`; a class of its own because Typer takes a tuple for an option of several words."""

    layers: tuple[int, ...]


def _layer_list(given: str | LayerList) -> LayerList:
    """Parse 1,5,9."""
    if isinstance(given, LayerList):
        return given
    try:
        layers = tuple(int(part) for part in given.split(","))
    except ValueError:
        layers = ()
    if not layers or min(layers) < 0 or list(layers) != sorted(set(layers)):
        raise refuse(given, "rising layer numbers such as 1,5,9")
    return LayerList(layers)


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
    cache_taps: Annotated[
        Path | None, _data("--cache-taps", "FOLDER", "Keep the target's hidden states; runs may share it", path)
    ] = None
    cache_dtype: Annotated[
        str | None, _data("--cache-dtype", "|".join(_precisions), "How", one_of(*_precisions), default="bfloat16")
    ] = None

    def __post_init__(self) -> None:
        if self.cache_dtype is not None and self.cache_taps is None:
            raise UsageError(f"--cache-dtype: got {self.cache_dtype!r}, expected --cache-taps as well")


@dataclass(frozen=True)
class RegenerateOptions:
    """Whether the target answers the prompts itself."""

    regenerate: Annotated[
        bool, _switch("--regenerate", help="Let the target answer the prompts first", rich_help_panel="Replies")
    ] = False
    regenerate_tokens: Annotated[
        int | None, _replies("--regenerate-tokens", "N", "Most tokens in a reply", integer(1), default="512")
    ] = None
    regenerate_temperature: Annotated[
        float | None,
        _replies(
            "--regenerate-temperature", "T", "0 takes the likeliest", number(">= 0", lambda x: x >= 0), default="0"
        ),
    ] = None
    regenerate_batch: Annotated[
        int | None, _replies("--regenerate-batch", "N", "Prompts at a time", integer(1), default="16")
    ] = None
    prompt_tokens: Annotated[
        int | None,
        _replies("--prompt-tokens", "N", "Of a text, what is the prompt", integer(1), default="half of it"),
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("regenerate_tokens", "regenerate_temperature", "regenerate_batch", "prompt_tokens"):
            value = vars(self)[name]
            if value is not None and not self.regenerate:
                raise UsageError(f"--{name.replace('_', '-')}: got {value}, expected --regenerate as well")

    def settings(self, seed: int, max_length: int) -> d2.training.ReplySettings:
        given = {
            "max_tokens": self.regenerate_tokens,
            "temperature": self.regenerate_temperature,
            "batch": self.regenerate_batch,
        }
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return d2.training.ReplySettings(seed=seed, max_length=max_length, prompt_tokens=self.prompt_tokens, **chosen)


@dataclass(frozen=True)
class ShapeOptions:
    """How large the drafter is, and what it has."""

    layers: Annotated[
        int | None, _shape("--layers", "N", "Layers", integer(1, 64), default="2 for a small target, else 5")
    ] = None
    block_size: Annotated[int | None, _shape("--block-size", "N", "Rows of a block", integer(2, 64), default="8")] = (
        None
    )
    taps: Annotated[
        LayerList | None,
        _shape("--taps", "I,J,...", "Layers of the target it reads", _layer_list, default="up to 5, spread evenly"),
    ] = None
    window: Annotated[int | None, _shape("--window", "N", "Positions it sees", integer(1), default="2048")] = None
    conv_kernel: Annotated[
        int | None, _shape("--conv-kernel", "N", "Rows a convolution mixes", integer(1, 16), default="2")
    ] = None
    selector_rank: Annotated[
        int | None, _shape("--selector-rank", "N", "Rank of the selector", integer(1, 4096), default="by hidden size")
    ] = None
    no_conv: Annotated[bool, _switch("--no-conv", help="Train no convolution", rich_help_panel="Drafter")] = False
    no_selector: Annotated[bool, _switch("--no-selector", help="Train no selector", rich_help_panel="Drafter")] = False
    plain_blocks: Annotated[
        bool,
        _switch("--no-conv-no-selector", help="Neither: a DFlash drafter, to compare", rich_help_panel="Drafter"),
    ] = False
    init: Annotated[
        str | None, _shape("--init", "PATH|ID", "Start from this drafter's weights", filled, default="new weights")
    ] = None

    def __post_init__(self) -> None:
        for name, off, part in (
            ("conv_kernel", not self.conv, "convolution"),
            ("selector_rank", not self.selector, "selector"),
        ):
            value = vars(self)[name]
            if value is not None and off:
                raise UsageError(f"--{name.replace('_', '-')}: got {value}, expected a drafter with a {part}")

    @property
    def conv(self) -> bool:
        return not (self.no_conv or self.plain_blocks)

    @property
    def selector(self) -> bool:
        return not (self.no_selector or self.plain_blocks)

    def config(self, engine: d2.Engine) -> dict[str, Any]:
        """The drafter's config: of --init, or by these options."""
        if self.init is not None:
            raw = d2.training.existing_config(self.init, engine)
            self._agree_with(raw)
            return raw
        given = {
            "block_size": self.block_size, "taps": self.taps and self.taps.layers, "window": self.window,
            "conv_kernel": self.conv_kernel, "selector_rank": self.selector_rank,
        }  # fmt: skip
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return d2.training.config_for(
            engine, d2.training.DrafterShape(self.layers, conv=self.conv, selector=self.selector, **chosen)
        )

    def _agree_with(self, raw: dict[str, Any]) -> None:
        """Refuse a shape that is not that of --init."""
        config = d2.DrafterConfig.from_dict(raw)
        for name, theirs in (
            ("layers", config.num_layers),
            ("block_size", config.block_size),
            ("taps", LayerList(config.target_layer_ids)),
            ("window", config.sliding_window),
            ("conv_kernel", config.conv_kernel_size),
            ("selector_rank", config.selector_rank),
        ):
            mine = vars(self)[name]
            if mine is not None and mine != theirs:
                option, got, wanted = name.replace("_", "-"), _shown(mine), _shown(theirs)
                raise UsageError(f"--{option}: got {got}, expected {wanted} as in --init {self.init}")


def _shown(value: Any) -> str:
    return ",".join(map(str, value.layers)) if isinstance(value, LayerList) else str(value)


@dataclass(frozen=True)
class StepOptions:
    """How long and how fast it learns."""

    steps: Annotated[int, _steps("--steps", "N", "Steps", integer(1))] = 1000
    learning_rate: Annotated[float, _steps("--learning-rate", "X", "Highest rate", number("> 0", lambda x: x > 0))] = (
        6e-4
    )
    warmup: Annotated[
        float, _steps("--warmup", "X", "Share of the steps until then", number("in [0, 1)", lambda x: 0 <= x < 1))
    ] = 0.04
    weight_decay: Annotated[float, _steps("--weight-decay", "X", "Decay", number(">= 0", lambda x: x >= 0))] = 0.0
    clip: Annotated[float, _steps("--clip", "X", "Longest gradient", number("> 0", lambda x: x > 0))] = 1.0
    sequences: Annotated[int, _steps("--sequences", "N", "Sequences of a step", integer(1))] = 4
    anchors: Annotated[int, _steps("--anchors", "N", "Most blocks of a sequence", integer(1))] = 64
    dtype: Annotated[
        str, _steps("--dtype", "|".join(_precisions), "Of passes; weights are float32", one_of(*_precisions))
    ] = "float32"
    every: Annotated[int, _steps("--every", "N", "Steps between checkpoints", integer(1))] = 100
    seed: Annotated[int, _steps("--seed", "N", "The same seed gives the same drafter", integer(0))] = 0


@grouped
def train(
    data: DataOptions,
    replies: RegenerateOptions,
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
        name = data.model or MINI
        if data.model is None:
            out.note("no --model given: training for the embedded mini target")
        out.status(f"loading {name}")
        engine = d2.load(name, target_dtype=data.target_dtype)
        config = shape.config(engine)
        settings = d2.training.TrainSettings(
            steps.steps, steps.learning_rate, steps.warmup, steps.clip, steps.weight_decay, steps.sequences,
            steps.anchors, steps.seed, steps.dtype, shape.conv, shape.selector,
        )  # fmt: skip
        held_out = (
            d2.training.read_documents(data.validation, engine.tokenizer, max_length=data.max_length)
            if data.validation
            else []
        )
        documents = _documents(out, engine, file, data, replies, steps.seed, dry_run)
        start = d2.training.Start(shape.init, data.cache_taps, data.cache_dtype or "bfloat16")
        out.info(_plan(config, documents, settings))
        if data.cache_taps is not None:
            out.info(d2.training.cache_plan(engine, config, documents, start))
        if dry_run:
            return
        notes = {"target": name, "data": file.name, "documents": str(len(documents))}
        if replies.regenerate:
            notes["replies"] = "the target's own"
        if shape.init is not None:
            notes["started from"] = shape.init
        events = d2.training.train(
            engine, config, documents, settings, data.output, validation=held_out, every=steps.every, notes=notes,
            start=start,
        )  # fmt: skip
        _follow(out, events)
        _draw(out, data.output)
        out.note(f"written to {data.output}; --drafter {data.output} uses it")


def _documents(
    out: Output,
    engine: d2.Engine,
    file: Path,
    data: DataOptions,
    replies: RegenerateOptions,
    seed: int,
    dry_run: bool,
) -> list[d2.training.Document]:
    """What is learned: the file's own words, or the target's replies to its prompts."""
    if not replies.regenerate:
        return d2.training.read_documents(file, engine.tokenizer, max_length=data.max_length)
    if dry_run:
        out.note("--regenerate: nothing is generated in a dry run; counted below are the file's own words")
        return d2.training.read_documents(file, engine.tokenizer, max_length=data.max_length)
    said = data.output / "regenerated.jsonl"
    items = d2.training.read_items(file)
    events = d2.training.regenerate(engine, items, said, replies.settings(seed, data.max_length))
    follow(out, "regenerating", ((event.done, event.total, f"{event.found} from before") for event in events))
    out.note(f"the target's replies are in {said}")
    return d2.training.read_regenerated(said, max_length=data.max_length)


def _plan(config: dict[str, Any], documents: list[d2.training.Document], settings: d2.training.TrainSettings) -> str:
    tokens = sum(len(document.tokens) for document in documents)
    learned = sum(int(document.supervised.sum()) for document in documents)
    count = d2.training.parameter_count(config)
    longest = max(len(document.tokens) for document in documents)
    weights, activations = d2.training.memory_estimate(config, settings, longest)
    off = [name for name, on in (("convolution", settings.conv), ("selector", settings.selector)) if not on]
    drafter = f"{config['architectures'][0]}, {config['num_hidden_layers']} layers"
    if off:
        drafter += f", {' and '.join(off)} off"
    return (
        f"{drafter}, block size {config['dflash_config']['block_size']} · {count / 1e6:.1f} M parameters · beside the "
        f"target about {weights / 1e9:.2f} GB for weights and moments, {activations / 1e9:.2f} GB for a pass · "
        f"{len(documents)} documents, {tokens} tokens, {learned} learned · "
        f"{settings.steps} steps of {settings.sequences} sequences"
    )


def _draw(out: Output, folder: Path) -> None:
    """Leave a picture of the run beside its log."""
    try:
        draw_training(folder / "train.jsonl", folder / "train.png")
    except ImportError:
        out.note("no picture of the run: matplotlib is not installed (pip install 'dflash2-mlx[train]')")


def _follow(out: Output, events: Iterator[d2.training.TrainEvent]) -> None:
    """Show every step; away from a terminal every 50th, and those with a validation."""
    shown = ((event.report.step + 1, event.steps, _figures(event)) for event in events)
    follow(out, "training", shown, lambda step, text: "acceptance" in text or step % 50 == 1)


def _figures(event: d2.training.TrainEvent) -> str:
    report = event.report
    text = f"loss {report.loss:.3f} · top-1 {report.top1:.2f} · recall {report.recall:.2f}"
    return text if event.acceptance_length is None else f"{text} · acceptance {event.acceptance_length:.2f}"

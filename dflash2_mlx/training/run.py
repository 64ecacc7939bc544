"""A whole training run: steps, log, checkpoints, validation by real decoding, and the finished checkpoint.

Owns: what lies in the output folder (`checkpoints/`, `train.jsonl`, then `config.json`, `model.safetensors` and
`README.md`) and when it is written. The caller asks for one event after the other and may stop at any time; the same
call goes on from the newest checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..decode.request import Request, RoundResult
from ..decode.session import DFlash2Session
from ..decode.stats import GenerationStats
from ..device.runtime import owner
from ..drafters.dflash2.config import DrafterConfig
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine
from ..errors import TrainingError
from ..targets.base import Target
from .checkpoints import export_drafter, newest_checkpoint, resume_checkpoint, save_checkpoint
from .recipe import load_initial, new_drafter
from .settings import Document, StepReport, TrainSettings
from .taps import TapsCache
from .trainer import Trainer

VALIDATION_TOKENS = 48


@dataclass(frozen=True)
class Start:
    """What a run begins with.

    `init` is a drafter's folder or Hub id whose weights it starts from; None draws new ones. `cache_taps` is a folder
    for the target's hidden states, kept in `cache_dtype`; None computes them whenever a document comes.
    """

    init: str | None = None
    cache_taps: Path | None = None
    cache_dtype: str = "bfloat16"


_FRESH = Start()


@dataclass(frozen=True)
class TrainEvent:
    """One step, and the acceptance length where this step was followed by a validation.

    `resumed` is the step the run went on from; 0 for a new one.
    """

    report: StepReport
    steps: int
    seconds: float
    acceptance_length: float | None
    resumed: int


def train(
    engine: Engine,
    raw_config: Mapping[str, Any],
    documents: Sequence[Document],
    settings: TrainSettings,
    folder: Path,
    *,
    validation: Sequence[Document] = (),
    every: int = 200,
    notes: Mapping[str, str] | None = None,
    start: Start = _FRESH,
) -> Iterator[TrainEvent]:
    """Train a drafter for the engine's target.

    Args:
        raw_config: from `DrafterShape.config`, or an existing drafter's.
        folder: what the run writes; going on needs the same settings and documents.
        validation: documents that are decoded, not learned, every `every` steps and at the end.
        every: steps between checkpoints.
        notes: lines for the README of the result, such as where the data came from.
        start: what weights begin as, and where taps are kept.
    Raises:
        ConfigError, CheckpointError: see `Trainer`, `resume_checkpoint`, `TapsCache`.
        TrainingError: the loss is no number any more; the last good checkpoint is named.
    """
    run = _Run(engine, raw_config, documents, settings, folder, start)
    while run.step_number < settings.steps:
        began = time.perf_counter()
        report = run.step()
        acceptance = None
        if run.step_number == settings.steps or run.step_number % every == 0:
            run.save()
            acceptance = run.acceptance_length(validation) if validation else None
        event = TrainEvent(report, settings.steps, time.perf_counter() - began, acceptance, run.resumed)
        run.note(event)
        yield event
    run.finish(notes or {})


class _Run:
    """A run under way and what it writes; callable from any thread.

    Args:
        engine, raw_config, documents, settings, folder, start: see `train`.
    """

    def __init__(
        self,
        engine: Engine,
        raw_config: Mapping[str, Any],
        documents: Sequence[Document],
        settings: TrainSettings,
        folder: Path,
        start: Start,
    ):
        self._engine, self._raw_config, self._settings, self._folder = engine, raw_config, settings, folder
        self._checkpoints, self._log = folder / "checkpoints", folder / "train.jsonl"
        self._marks = {"init": start.init}
        self._trainer = owner().call(lambda: self._begin(documents, start))
        self.resumed = self._trainer.step_number
        folder.mkdir(parents=True, exist_ok=True)
        _cut_log(self._log, self.resumed)

    def _begin(self, documents: Sequence[Document], start: Start) -> Trainer:
        drafter = new_drafter(self._raw_config, seed=self._settings.seed)
        if start.init is not None:
            load_initial(drafter, start.init)
        cache, target = None, self._engine.target
        if start.cache_taps is not None:
            cache = TapsCache(start.cache_taps, target, drafter.config.target_layer_ids, start.cache_dtype)
            cache.check_room(documents)
        trainer = Trainer(target, drafter, documents, self._settings, cache)
        resume_checkpoint(trainer, self._checkpoints, self._marks)
        return trainer

    @property
    def step_number(self) -> int:
        """Steps that were made, those before the run was resumed included."""
        return self._trainer.step_number

    def step(self) -> StepReport:
        """Make one step.

        Raises:
            TrainingError: the loss is no number; names the last good checkpoint.
        """
        try:
            return owner().call(self._trainer.step)
        except TrainingError as error:
            kept = newest_checkpoint(self._checkpoints)
            raise TrainingError(f"{error}; last good checkpoint: {kept or 'none'}") from None

    def save(self) -> None:
        """Write a checkpoint of this step."""
        owner().call(lambda: save_checkpoint(self._trainer, self._checkpoints, self._marks))

    def acceptance_length(self, documents: Sequence[Document]) -> float | None:
        """Of the drafter as it is now; see `acceptance_length`."""
        target, stops = self._engine.target, self._engine.stop_token_ids
        return owner().call(lambda: acceptance_length(target, self._trainer.drafter, documents, stops))

    def note(self, event: TrainEvent) -> None:
        """Put a step into the log."""
        line = {**asdict(event.report), "acceptance_length": event.acceptance_length}
        with self._log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")

    def finish(self, notes: Mapping[str, str]) -> None:
        """Write the drafter and its README; checkpoints are not needed any more."""
        drafter = self._trainer.drafter
        owner().call(lambda: export_drafter(self._folder, self._raw_config, drafter, dtype=mx.bfloat16))
        (self._folder / "README.md").write_text(_readme(self._log, self._settings, notes), encoding="utf-8")
        shutil.rmtree(self._checkpoints, ignore_errors=True)


def cache_plan(engine: Engine, raw_config: Mapping[str, Any], documents: Sequence[Document], start: Start) -> str:
    """What `start.cache_taps` will take, in words, before anything is written there.

    Raises:
        ConfigError: there is not enough room, or the folder holds other taps.
    """
    assert start.cache_taps is not None
    layers, folder = DrafterConfig.from_dict(raw_config).target_layer_ids, start.cache_taps

    def ask() -> int:
        cache = TapsCache(folder, engine.target, layers, start.cache_dtype)
        cache.check_room(documents)
        return cache.missing_bytes(documents)

    return f"taps: {owner().call(ask) / 1e9:.3f} GB to be written to {folder} in {start.cache_dtype}"


def acceptance_length(
    target: Target, drafter: DraftModel, documents: Sequence[Document], stops: frozenset[int] = frozenset()
) -> float | None:
    """Committed tokens per round of greedy replies, mean over documents; runs on the owner thread.

    A document's beginning is what comes before its first supervised token, its first quarter where all are, and the
    whole of it where none is (a chat that ends with a question). None when no reply had a round.
    """
    found = []
    for document in documents:
        tokens, width = document.tokens, drafter.config.block_size
        begin = (int(document.supervised.argmax()) or max(1, len(tokens) // 4)) if document.supervised.any() else None
        stats = GenerationStats("dflash2", width)
        session = DFlash2Session(target, drafter)
        session.begin(Request(tokens[:begin].tolist(), VALIDATION_TOKENS, stop_token_ids=stops, width=width))
        while session.finish_reason is None:
            result = session.step()
            if isinstance(result, RoundResult):
                stats.add(result)
        session.finish()
        found.append(stats.acceptance_length)
    lengths = [length for length in found if length is not None]
    return sum(lengths) / len(lengths) if lengths else None


def _learns(settings: TrainSettings) -> str:
    parts = {"convolution": settings.conv, "selector": settings.selector}
    return ", ".join(f"no {name}" for name, learns in parts.items() if not learns) or "all parts"


def _cut_log(log: Path, step: int) -> None:
    """Leave out what was logged after the checkpoint that the run goes on from."""
    if not log.is_file():
        return
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    log.write_text("".join(line + "\n" for line in lines if json.loads(line)["step"] < step), encoding="utf-8")


def _readme(log: Path, settings: TrainSettings, notes: Mapping[str, str]) -> str:
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    rows = {
        **notes,
        "steps": str(settings.steps),
        "sequences per step": str(settings.sequences),
        "blocks per sequence": str(settings.anchors),
        "learning rate": f"{settings.learning_rate:g}",
        "computed in": settings.dtype,
        "learned": _learns(settings),
        "loss of the last step": f"{last['loss']:.3f}",
        "top-1 of the backbone": f"{last['top1']:.3f}",
        "candidate recall": f"{last['recall']:.3f}",
        "top-1 of the selector": f"{last['selected']:.3f}",
    }
    if last["acceptance_length"] is not None:
        rows["acceptance length on validation texts"] = f"{last['acceptance_length']:.2f}"
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return (
        f"# A DFlash drafter\n\nTrained with dflash2-mlx; `train.jsonl` has every step.\n\n| | |\n|---|---|\n{table}\n"
    )

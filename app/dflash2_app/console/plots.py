"""Pictures of a training run.

Owns: what they show and how. The library writes the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def draw_training(log: Path, picture: Path) -> None:
    """Draw loss, accuracy and acceptance length over the steps of a `train.jsonl` to a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    at = [step["step"] + 1 for step in steps]
    figure = Figure(figsize=(8, 6), layout="constrained")
    losses, shares = figure.subplots(2, 1, sharex=True)
    losses.plot(at, _smooth([step["base"] for step in steps]), label="backbone")
    losses.plot(at, _smooth([step["selector"] for step in steps]), label="selector")
    losses.set_ylabel("loss")
    losses.legend(frameon=False)
    for key, label in (("top1", "backbone's best"), ("selected", "selector's choice"), ("recall", "among candidates")):
        shares.plot(at, _smooth([step[key] for step in steps]), label=label)
    shares.set_ylim(0, 1)
    shares.set_ylabel("share of tokens")
    shares.set_xlabel("step")
    measured = [(step["step"] + 1, step["acceptance_length"]) for step in steps if step["acceptance_length"]]
    if measured:
        _draw_acceptance(shares, measured)
    shares.legend(frameon=False, loc="upper left")
    figure.savefig(picture, dpi=120)


def _draw_acceptance(axes: Any, measured: list[tuple[int, float]]) -> None:
    """On an axis of its own: it counts tokens, not shares."""
    right = axes.twinx()
    right.plot(*zip(*measured, strict=True), "ko-", markersize=4, linewidth=1)
    right.set_ylabel("acceptance length (dots)")
    right.set_ylim(bottom=1)


def _smooth(values: list[float]) -> list[float]:
    """A running mean over about a fiftieth of the run: single steps jump too much to read."""
    width = max(1, len(values) // 50)
    sums, found = 0.0, []
    for place, value in enumerate(values):
        sums += value - (values[place - width] if place >= width else 0.0)
        found.append(sums / min(place + 1, width))
    return found

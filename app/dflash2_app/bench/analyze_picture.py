"""An analysis as one picture: where each drafter looks, and what is right by position.

Owns: what is drawn. Works on the dictionary that `--json` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Fields = Mapping[str, Any]
_MOST_CELLS = 12 * 16  # beyond that, numbers in the cells could not be read


def draw_analysis(found: Fields, picture: Path) -> None:
    """Draw an analysis to a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    maps = found["attention"]
    layers = max(len(row["by_layer"]) for row in maps)
    columns = max(2, len(maps))
    figure = Figure(figsize=(5.2 * columns, 4.4 + max(2.0, 0.55 * layers + 1.2)), layout="constrained")
    rows = figure.subfigures(2, 1, squeeze=False, height_ratios=[max(2.0, 0.55 * layers + 1.2), 4.4])
    above, below = rows[:, 0]
    _draw_attention(above, maps)
    acceptance, recall = below.subplots(1, 2)
    temperature = found["acceptance"][0]["temperature"]
    _draw_acceptance(acceptance, [row for row in found["acceptance"] if row["temperature"] == temperature])
    _draw_recall(recall, [row for row in found["recall"] if row["temperature"] == temperature])
    figure.suptitle(
        f"{found['model']} · drafter {_short(found['drafter'])} · {found['prompts']} prompts · curves at temperature "
        f"{temperature:g}",
        fontsize=10,
    )
    figure.savefig(picture, dpi=120, format="png")


def _draw_attention(figure: Any, maps: Sequence[Fields]) -> None:
    """One heat map per drafter, all on one scale."""
    most = max(share for row in maps for layer in row["by_layer_and_head"] for share in layer)
    axes = figure.subplots(1, len(maps), squeeze=False)[0]
    for place, row in zip(axes, maps, strict=True):
        shares = [[100 * share for share in layer] for layer in row["by_layer_and_head"]]
        image = place.imshow(shares, aspect="auto", cmap="viridis", vmin=0, vmax=100 * most)
        heads = len(shares[0])
        # Ten labels at most: published drafters have 32 heads.
        ticks = range(0, heads, -(-heads // 10))
        place.set_xticks(ticks, [str(head + 1) for head in ticks])
        place.set_yticks(
            range(len(shares)), [f"{n + 1} ({100 * mean:.1f} %)" for n, mean in enumerate(row["by_layer"])]
        )
        place.set_xlabel("head")
        place.set_ylabel("layer (mean)")
        place.set_title(_short(row["name"]), fontsize=9)
        if len(shares) * heads <= _MOST_CELLS:
            _write_cells(place, shares, 100 * most)
    figure.colorbar(image, ax=list(axes), label="attention on the block in %")


def _write_cells(axes: Any, shares: Sequence[Sequence[float]], most: float) -> None:
    for layer, heads in enumerate(shares):
        for head, share in enumerate(heads):
            colour = "black" if share > 0.6 * most else "white"
            axes.text(head, layer, f"{share:.1f}", ha="center", va="center", color=colour, fontsize=7)


def _draw_acceptance(axes: Any, rows: Sequence[Fields]) -> None:
    axes.set_title("acceptance by position (legend: acceptance length)", fontsize=9)
    for row in rows:
        length = "-" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}"
        style = {"loaded": "o-", "switched off": "o:", "another drafter": "s--"}[row["kind"]]
        _curve(axes, row["acceptance_by_position"], style, f"{_short(row['name'])}: {length}")
    _finish(axes, "accepted, of rounds that got there", max(len(row["acceptance_by_position"]) for row in rows))


def _draw_recall(axes: Any, rows: Sequence[Fields]) -> None:
    axes.set_title("recall by position (legend: length the shares multiply to)", fontsize=9)
    for number, row in enumerate(rows):
        for style, rule, shares, length in (
            ("o-", f"Recall@{row['k']}", "recall_at_k", "oracle_length"),
            ("^--", "greedy walk", "walk", "length_of_walk"),
            ("s:", "Recall@1", "recall_at_1", "length_at_1"),
        ):
            label = f"{_short(row['name'])} {rule}: {row[length]:.2f}"
            _curve(axes, row[shares], style, label, colour=f"C{number}")
    _finish(axes, "right, of blocks right so far", max(len(row["recall_at_k"]) for row in rows))


def _curve(axes: Any, shares: Sequence[float | None], style: str, label: str, colour: str | None = None) -> None:
    known = [(place, share) for place, share in enumerate(shares, start=1) if share is not None]
    at, values = zip(*known, strict=True) if known else ((), ())
    axes.plot(at, values, style, color=colour, markersize=4, label=label)


def _finish(axes: Any, label: str, drafts: int) -> None:
    axes.set_xlabel("draft")
    axes.set_ylabel(label)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(0.8, max(1, drafts) + 0.2)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7)


def _short(name: str | None) -> str:
    """The end of a long path tells drafters apart."""
    text = str(name)
    return text if len(text) <= 30 else "…" + text[-29:]

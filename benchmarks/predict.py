"""What the cost model says of a 27B pair on chips we know by name: the tables and the picture of docs/performance.md.

Predictions by arithmetic, not measurements.

    python -m benchmarks.predict
    python -m benchmarks.predict --picture docs/pictures/predicted_passes.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dflash2_mlx.costs import PassCosts, expected_tokens
from tests.width_traces import BLOCK, CHIPS, cost_tables

# Acceptance length 5.1 at width 8, as published for this pair: shares that fall off slowly.
SHARES = [0.90, 0.89, 0.88, 0.87, 0.86, 0.86, 0.85]
ROWS = (1, 2, 3, 4, 5, 6, 8)


def speed(costs: PassCosts, width: int) -> float:
    """Tokens per second at a width."""
    if width == 1:
        return 1.0 / costs.verify[1]
    return expected_tokens(SHARES, width) / (costs.verify[width] + costs.draft[width])


def tables() -> list[str]:
    """Lines of Markdown."""
    lines = ["| chip, few-row kernels | " + " | ".join(f"{rows} rows" for rows in ROWS) + " | draft, width 8 |"]
    lines.append("|---" * (len(ROWS) + 2) + "|")
    for name, costs in cost_tables().items():
        times = " | ".join(f"{1e3 * costs.verify[rows]:.0f}" for rows in ROWS)
        lines.append(f"| {_words(name)} | {times} | {1e3 * costs.draft[8]:.0f} |")
    lines += [
        "",
        "| chip, few-row kernels | plain | width 4 | width 5 | width 8 | best | over plain |",
        "|---" * 7 + "|",
    ]
    for name, costs in cost_tables().items():
        speeds = {width: speed(costs, width) for width in range(1, BLOCK + 1)}
        best = max(speeds, key=speeds.__getitem__)
        chosen = " | ".join(f"{speeds[width]:.0f}" for width in (1, 4, 5, 8))
        lines.append(f"| {_words(name)} | {chosen} | {best} | {speeds[best] / speeds[1]:.2f} |")
    return lines


def _words(name: str) -> str:
    return name.replace(" stock", ", MLX's").replace(" own", ", ours")


def draw(file: Path) -> None:
    """Milliseconds of a verify pass by rows, a panel per chip."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dflash2"  # the same file every time
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(CHIPS), figsize=(11, 2.9), layout="constrained")
    for panel, chip in zip(panels, CHIPS, strict=True):
        for kind, label, style in (("stock", "MLX's kernels", "o--"), ("own", "ours", "o-")):
            costs = cost_tables()[f"{chip} {kind}"]
            rows = sorted(costs.verify)
            panel.plot(rows, [1e3 * costs.verify[count] for count in rows], style, label=label, markersize=3.5)
        panel.set(title=chip, xlabel="rows of a pass", xticks=range(1, BLOCK + 1))
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("ms (predicted)")
    panels[0].legend(frameon=False)
    figure.savefig(
        file, metadata={"Date": None, "Title": "Predicted time of a verify pass of a 27B 4-bit target by rows"}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="write an SVG")
    options = parser.parse_args(arguments)
    print("\n".join(tables()))
    if options.picture:
        draw(options.picture)


if __name__ == "__main__":
    main()

"""What the adaptive width loses and gains, played over traces of acceptance and costs of several chips.

Every number is a simulation over modelled costs (docs/performance.md), not a measurement of a chip.

    python -m benchmarks.bench_widths
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dflash2_mlx.costs import PassCosts
from dflash2_mlx.widths import Adaptive
from tests.width_traces import BLOCK, LENGTH, Trace, cost_tables, fixed_speed, made, oracle_speed, play, recorded

FIXED = (4, 5, 8)


def compare(costs: PassCosts, trace: Trace, depth: int = 0) -> dict[str, float]:
    """Tokens per second of every way to choose widths."""
    found = {f"width {width}": fixed_speed(width, costs, trace, depth) for width in range(1, BLOCK + 1)}
    found["adaptive"] = play(Adaptive(costs, BLOCK, depth=depth), costs, trace, depth).speed
    found["oracle"] = oracle_speed(costs, trace, depth)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of each trace")
    parser.add_argument("--all", action="store_true", help="one line for every trace")
    parser.add_argument("--depth", type=int, default=0, help="tokens before each trace")
    options = parser.parse_args(arguments)
    traces = [*recorded(options.length), *made(options.length)]
    print("speeds over plain decoding; 'best fixed' is known only afterwards, 'oracle' knows every round beforehand")
    print(f"{'':34} {'plain':>6} " + " ".join(f"{w:>6}" for w in FIXED) + "   best  adaptive  of best  oracle")
    for name, costs in cost_tables().items():
        rows = {trace.name: compare(costs, trace, options.depth) for trace in traces}
        if options.all:
            for trace, row in rows.items():
                print(_line(f"{name:13} {trace[:20]}", row))
        # The mix: the same number of tokens of each trace, so times add up.
        mix = {key: len(rows) / sum(1 / row[key] for row in rows.values()) for key in next(iter(rows.values()))}
        worst = min(row["adaptive"] / _best(row) for row in rows.values())
        below = min(row["adaptive"] / row["width 1"] for row in rows.values())
        print(_line(f"{name:13} mix", mix) + f"   worst trace {worst:.3f} of best, {below:.3f} of plain")


def _best(row: dict[str, float]) -> float:
    return max(speed for key, speed in row.items() if key.startswith("width"))


def _line(name: str, row: dict[str, float]) -> str:
    plain = row["width 1"]
    fixed = " ".join(f"{row[f'width {w}'] / plain:6.2f}" for w in FIXED)
    best = _best(row)
    return (
        f"{name:34} {1:6.2f} {fixed} {best / plain:6.2f} {row['adaptive'] / plain:9.2f} {row['adaptive'] / best:8.3f} "
        f"{row['oracle'] / plain:7.2f}"
    )


if __name__ == "__main__":
    main()

"""What the adaptive width loses and gains: texts and costs of passes that its constants were not chosen on.

Every number is a simulation over modelled and made-up costs (docs/performance.md), not a measurement of a chip.

    python -m benchmarks.bench_widths            # --all for a line per text, --tuning for what the constants saw
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dflash2_mlx.decode.costs import PassCosts
from dflash2_mlx.decode.widths import Adaptive
from tests.decode.width_traces import (
    BLOCK,
    HELD_OUT,
    LENGTH,
    TUNING,
    Fixed,
    Trace,
    all_tables,
    change,
    fixed_speed,
    held_out,
    level,
    oracle_speed,
    play,
    simulate,
    tuning,
)

FIXED = (4, 5, 8)
CHANGES = ((0.95, 0.3), (0.8, 0.3), (0.3, 0.95), (0.9, 0.0), (0.0, 0.9))


def compare(costs: PassCosts, trace: Trace, depth: int = 0) -> dict[str, float]:
    """Tokens per second of every way to choose widths."""
    found = {f"width {width}": fixed_speed(width, costs, trace, depth) for width in range(1, BLOCK + 1)}
    found["adaptive"] = play(Adaptive(costs, BLOCK, depth=depth), costs, trace, depth).speed
    found["oracle"] = oracle_speed(costs, trace, depth)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of each text")
    parser.add_argument("--all", action="store_true", help="one line for every text")
    parser.add_argument("--tuning", action="store_true", help="the texts and costs that the constants were chosen on")
    parser.add_argument("--depth", type=int, default=0, help="tokens before each text")
    options = parser.parse_args(arguments)
    names, texts = (TUNING, tuning(options.length)) if options.tuning else (HELD_OUT, held_out(options.length))
    tables = {name: all_tables()[name] for name in names}
    print(
        "speeds over plain decoding; 'best' fixed width is known only afterwards, 'oracle' knows every round beforehand"
    )
    print(f"{'':36} {'plain':>6} " + " ".join(f"{w:>6}" for w in FIXED) + "   best adaptive  of best  oracle")
    for name, costs in tables.items():
        rows = {trace.name: compare(costs, trace, options.depth) for trace in texts}
        if options.all:
            for trace, row in rows.items():
                print(_line(f"{name:13} {trace[:22]}", row))
        # The mix: the same number of tokens of each text, so times add up.
        mix = {key: len(rows) / sum(1 / row[key] for row in rows.values()) for key in next(iter(rows.values()))}
        worst = min(row["adaptive"] / _best(row) for row in rows.values())
        below = min(row["adaptive"] / row["width 1"] for row in rows.values())
        print(_line(f"{name:13} mix", mix) + f"   worst text {worst:.3f} of best, {below:.3f} of plain", flush=True)
    _hopeless(tables)
    _changes(tables)


def _hopeless(tables: dict[str, PassCosts]) -> None:
    """What a drafter costs that is never right."""
    print(
        "\na drafter that is never right: rounds before the first rest, and per cent over plain decoding after n rounds"
    )
    print(f"{'':13} {'rest':>6} " + " ".join(f"{rounds:>7}" for rounds in (20, 100, 1000)))
    for name, costs in tables.items():
        never = level(0.0)
        widths = simulate(Adaptive(costs, BLOCK), costs, lambda _, shares=never: shares, 1000).widths
        ones = [simulate(Fixed(w), costs, lambda _, shares=never: shares, 1).seconds for w in range(1, BLOCK + 1)]
        over = [100 * (sum(ones[w - 1] for w in widths[:n]) / ones[0] / n - 1) for n in (20, 100, 1000)]
        print(f"{name:13} {widths.index(1):6} " + " ".join(f"{percent:6.1f}%" for percent in over), flush=True)


def _changes(tables: dict[str, PassCosts]) -> None:
    """Rounds until the width suits a text that has changed, and what that costs."""
    print("\na change of acceptance: rounds until the width suits (median) / plain passes lost in 100 rounds (mean)")
    print(f"{'':13} " + " ".join(f"{f'{before:g} to {after:g}':>13}" for before, after in CHANGES))
    for name, costs in tables.items():
        found = [change(lambda: Adaptive(costs, BLOCK), costs, level(b), level(a)) for b, a in CHANGES]  # noqa: B023
        print(f"{name:13} " + " ".join(f"{f'{one.rounds:.0f} / {one.lost:.1f}':>13}" for one in found), flush=True)


def _best(row: dict[str, float]) -> float:
    return max(speed for key, speed in row.items() if key.startswith("width"))


def _line(name: str, row: dict[str, float]) -> str:
    plain = row["width 1"]
    fixed = " ".join(f"{row[f'width {w}'] / plain:6.2f}" for w in FIXED)
    best = _best(row)
    return (
        f"{name:36} {1:6.2f} {fixed} {best / plain:6.2f} {row['adaptive'] / plain:8.2f} {row['adaptive'] / best:8.3f} "
        f"{row['oracle'] / plain:7.2f}"
    )


if __name__ == "__main__":
    main()

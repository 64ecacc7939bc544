"""The adaptive width over traces of acceptance and costs of several chips: what it may lose, and what it gains.

`benchmarks/bench_widths.py` prints the table. Costs are the model's, so nothing here is a figure of a chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

from dflash2_mlx.widths import Adaptive, Fixed
from tests.width_traces import BLOCK, cost_tables, fixed_speed, made, oracle_speed, play, recorded

DEPTHS = [0, pytest.param(16000, marks=pytest.mark.slow)]
REGRET = 0.97  # of the best fixed width of each trace, known only afterwards
BELOW_PLAIN = 0.965
WIDTHS = range(1, BLOCK + 1)


@cache
def speeds(table: str, depth: int) -> Mapping[str, Mapping[str, float]]:
    """Tokens per second by trace and way to choose widths."""
    costs = cost_tables()[table]
    found = {}
    for trace in (*recorded(), *made()):
        row = {f"width {width}": fixed_speed(width, costs, trace, depth) for width in WIDTHS}
        row["adaptive"] = play(Adaptive(costs, BLOCK, depth=depth), costs, trace, depth).speed
        row["oracle"] = oracle_speed(costs, trace, depth)
        found[trace.name] = row
    return found


def best(row: Mapping[str, float]) -> float:
    return max(row[f"width {width}"] for width in WIDTHS)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("table", sorted(cost_tables()))
def test_near_the_best_fixed_width_in_every_trace(table: str, depth: int) -> None:
    for trace, row in speeds(table, depth).items():
        assert row["adaptive"] > REGRET * best(row), (trace, row)
        assert row["adaptive"] > BELOW_PLAIN * row["width 1"], trace
        assert row["adaptive"] < 1.001 * row["oracle"], "nobody beats the one who knows"
        assert best(row) < 1.001 * row["oracle"]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("table", sorted(cost_tables()))
def test_better_than_every_fixed_width_on_the_mix(table: str, depth: int) -> None:
    rows = speeds(table, depth)
    mix = {way: len(rows) / sum(1 / row[way] for row in rows.values()) for way in next(iter(rows.values()))}
    for width in WIDTHS:
        assert mix["adaptive"] > 1.01 * mix[f"width {width}"], width


def test_the_players_agree_and_the_record_is_what_it_says() -> None:
    costs = cost_tables()["M4 Pro stock"]
    trace = recorded(700)[2]
    for width, depth in ((1, 0), (5, 0), (8, 9000)):
        assert play(Fixed(width), costs, trace, depth).speed == pytest.approx(fixed_speed(width, costs, trace, depth))
    assert {len(one.accepted) for one in (*recorded(700), *made(700))} == {700}
    assert all(0 <= kept < BLOCK for one in recorded(700) for kept in one.accepted)
    never = next(one for one in made(700) if one.name == "never")
    assert set(never.accepted) == {0} and oracle_speed(costs, never) == pytest.approx(
        fixed_speed(1, costs, never), 0.01
    )

"""The adaptive width over texts and costs that its constants were not chosen on: what it may lose, and what it gains.

`benchmarks/bench_widths.py` prints the tables. Costs are the model's or made up, so nothing here is a figure of a chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

from dflash2_mlx.decode.widths import Adaptive
from tests.decode.width_traces import (
    BLOCK,
    HELD_OUT,
    TUNING,
    Fixed,
    all_tables,
    as_text,
    fixed_speed,
    held_out,
    oracle_speed,
    play,
    play_replies,
    recorded,
    tuning,
)
from tests.runs import slow_unless

QUICK = ("M4 Pro own", "gentle")
TABLES = [slow_unless(table in QUICK, table) for table in HELD_OUT]
DEPTHS = [0, pytest.param(16000, marks=pytest.mark.slow)]
REGRET = 0.97  # of the best fixed width of each trace, known only afterwards
BELOW_PLAIN = 0.975
WIDTHS = range(1, BLOCK + 1)


@cache
def speeds(table: str, depth: int) -> Mapping[str, Mapping[str, float]]:
    """Tokens per second by trace and way to choose widths."""
    costs = all_tables()[table]
    found = {}
    for trace in held_out():
        row = {f"width {width}": fixed_speed(width, costs, trace, depth) for width in WIDTHS}
        row["adaptive"] = play(Adaptive(costs, BLOCK, depth=depth), costs, trace, depth).speed
        found[trace.name] = row
    return found


def best(row: Mapping[str, float]) -> float:
    return max(row[f"width {width}"] for width in WIDTHS)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("table", TABLES)
def test_near_the_best_fixed_width_in_every_trace(table: str, depth: int) -> None:
    for trace, row in speeds(table, depth).items():
        assert row["adaptive"] > REGRET * best(row), (trace, row)
        assert row["adaptive"] > BELOW_PLAIN * row["width 1"], trace


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("table", TABLES)
def test_better_than_every_fixed_width_on_the_mix(table: str, depth: int) -> None:
    rows = speeds(table, depth)
    mix = {way: len(rows) / sum(1 / row[way] for row in rows.values()) for way in next(iter(rows.values()))}
    for width in WIDTHS:
        assert mix["adaptive"] > 1.01 * mix[f"width {width}"], width


def test_the_two_halves_share_nothing_and_the_record_is_what_it_says() -> None:
    assert set(TUNING).isdisjoint(HELD_OUT) and {*TUNING, *HELD_OUT} == set(all_tables())
    first, second = tuning(400), held_out(400)
    assert {one.accepted for one in first}.isdisjoint(one.accepted for one in second if set(one.accepted) != {0})
    assert {len(one.accepted) for one in (*first, *second)} == {400}
    assert all(0 <= kept < BLOCK for one in (*first, *second) for kept in one.accepted)


def test_the_players_agree_and_nobody_beats_the_one_who_knows() -> None:
    costs = all_tables()["M4 Pro stock"]
    traces = {trace.name: trace for trace in held_out(700)}
    some = next(trace for name, trace in traces.items() if name.startswith("ordinary"))
    for width, depth in ((1, 0), (5, 0), (8, 9000)):
        assert play(Fixed(width), costs, some, depth).speed == pytest.approx(fixed_speed(width, costs, some, depth))
    for trace in traces.values():
        knows = oracle_speed(costs, trace)
        assert play(Adaptive(costs, BLOCK), costs, trace).speed < 1.001 * knows
        assert max(fixed_speed(width, costs, trace) for width in WIDTHS) < 1.001 * knows
    never = traces["always 0"]
    assert set(never.accepted) == {0} and oracle_speed(costs, never) == pytest.approx(
        fixed_speed(1, costs, never), 0.01
    )


@pytest.mark.parametrize("table", QUICK)
def test_short_replies_come_near_the_best_width_too(table: str) -> None:
    """A reply of fifty tokens is ten rounds: what it pays for not knowing the text must not be much."""
    costs = all_tables()[table]
    replies = [
        as_text("reply", [reply], len(reply), 0)
        for (kind, _), some in recorded("traces_held_out.json").items()
        for reply in some
        if kind != "never learnt"
    ]
    adaptive = play_replies(lambda: Adaptive(costs, BLOCK), costs, replies)
    fixed = max(play_replies(lambda width=width: Fixed(width), costs, replies) for width in WIDTHS)
    assert adaptive > 0.95 * fixed

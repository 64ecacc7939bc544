"""Who wins a race: clearly faster, mostly faster, and with the right numbers."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from dflash2_mlx.tuning.measure import MARGIN, REPEATS, RaceResult, choose, racing
from dflash2_mlx.tuning.trial import Contest

from .fakes import REFUSED, STOCK, WRONG, contest, use_clock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    use_clock(monkeypatch)


def run(race: Generator[None, None, RaceResult]) -> tuple[RaceResult, int]:
    """The result, and how many pauses there were."""
    pauses = 0
    while True:
        try:
            next(race)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        ({STOCK: [10, 10, 10, 10], "ours": [8, 8, 8, 8]}, "ours"),
        ({STOCK: [10, 10, 10, 10], "ours": [9.8, 9.8, 9.8, 9.8]}, STOCK),  # within the margin
        ({STOCK: [10, 10, 10, 10], "ours": [12, 12, 12, 12]}, STOCK),
        ({STOCK: [10, 10, 10, 10], "a": [9, 9, 9, 9], "b": [7, 7, 7, 7]}, "b"),
        # Faster in the median, slower in too many turns: each turn is compared within itself.
        ({STOCK: [10, 30, 10, 30, 12], "ours": [11, 29, 11, 11, 11]}, STOCK),
        ({STOCK: [10]}, STOCK),
        ({STOCK: [10, 10], "ours": [1, 1]}, STOCK),  # too few turns
        ({}, STOCK),
        ({"ours": [1, 1]}, STOCK),
    ],
)
def test_winners(times, winner):
    assert choose(STOCK, times) == winner


def test_the_margin_is_what_it_says():
    just = 10 * (1 - MARGIN)
    assert choose(STOCK, {STOCK: [10.0] * 5, "ours": [just - 0.01] * 5}) == "ours"
    assert choose(STOCK, {STOCK: [10.0] * 5, "ours": [just + 0.01] * 5}) == STOCK


def test_a_race_runs_in_slices_and_keeps_every_time():
    result, pauses = run(racing(contest({STOCK: 0.1, "ours": 0.025, "slow": 0.2})))
    assert result.winner == "ours" and result.out == {}
    assert set(result.seconds) == {STOCK, "ours", "slow"}
    assert result.seconds["ours"] == pytest.approx(0.025, rel=0.3)
    assert result.gain == pytest.approx(result.seconds[STOCK] / result.seconds["ours"]) and result.gain > 1.5
    assert pauses == 3 * (2 + REPEATS)  # checked, tried, and run in turns


def test_a_slow_race_ends_after_a_while_without_a_winner():
    result, pauses = run(racing(contest({STOCK: 2.0, "ours": 0.9})))
    assert pauses == 2 * (2 + 1), "both were checked and tried; then one turn"
    assert result.winner == STOCK and result.out == {"ours": "too slow to tell: 1 of 7 turns"}
    assert result.seconds["ours"] == pytest.approx(0.9, rel=0.3)
    result, _ = run(racing(contest({STOCK: 0.5, "ours": 0.2})))  # turns enough, though not all
    assert result.winner == "ours" and result.out == {}


@pytest.mark.parametrize("fault", [WRONG, REFUSED, ValueError("too many threads")])
def test_wrong_numbers_and_refusals_are_out_with_a_reason(fault):
    result, _ = run(racing(contest({STOCK: 2.0, "ours": 0.1}, wrong={"ours": fault}), repeats=1))
    assert result.winner == STOCK and result.seconds == {}
    assert result.out == {"ours": " ".join(str(fault).split())}


def test_the_stock_operation_runs_whatever_its_check_says():
    result, _ = run(racing(contest({STOCK: 2.0, "ours": 0.2}, wrong={STOCK: WRONG}), repeats=2))
    assert set(result.seconds) == {STOCK, "ours"} and STOCK in result.out


def test_a_fault_of_the_race_itself_is_no_result():
    broken = contest({STOCK: 0.0}, wrong={STOCK: KeyError("nobody knows")})
    with pytest.raises(KeyError):
        run(racing(broken))
    assert isinstance(broken, Contest)

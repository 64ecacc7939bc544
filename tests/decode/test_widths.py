"""The width policy on known shares of acceptance and tables of costs: what a user may expect of it.

A simulated reply draws each round's accepted drafts from conditional shares by position, and time is what the table
says; one round is always unread, as in a real session. Texts and costs it is judged on: `test_width_traces`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from dflash2_mlx.decode.costs import PassCosts, expected_tokens
from dflash2_mlx.decode.widths import Acceptance, Adaptive
from tests.decode.width_traces import BLOCK, Fixed, change, cost_tables, level, made_up, simulate

Shares = Sequence[float]

COSTS = {
    "flat": made_up(row=0.01),  # memory-bound: a block costs like a row
    "slope": made_up(row=0.08, draft=0.15),
    "tile of 4": made_up(row=0.03, jump=0.8, draft=0.12),
    "rows cost": made_up(row=0.45, draft=0.2),  # batched experts, or a slow chip
    "hopeless": made_up(row=1.0, draft=0.3),  # the CPU back-end: drafting can never pay
}
# Conditional shares by position. The first three have the form of published tables: level, and falling off.
SHARES = {
    "good": [0.9, 0.88, 0.87, 0.86, 0.86, 0.85, 0.85],
    "middling": [0.75, 0.7, 0.66, 0.62, 0.6, 0.58, 0.55],
    "decaying": [0.85, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05],
    "poor": [0.3, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2],
    "never": [0.0] * 7,
}


def oracle(table: PassCosts, shares: Shares) -> float:
    """Speed of the best fixed width, by arithmetic."""
    return max(
        1.0,
        *(expected_tokens(shares, width) / (table.verify[width] + table.draft[width]) for width in table.draft),
    )


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("table", COSTS)
def test_close_to_the_best_width_and_above_the_usual_ones(table, shares):
    given, known = COSTS[table], SHARES[shares]
    run = simulate(Adaptive(given, BLOCK), given, lambda _: known, 1000)
    assert run.speed > 0.94 * oracle(given, known)
    for width in (4, 5, 8):
        fixed = simulate(Fixed(width), given, lambda _: known, 1000)
        assert set(fixed.widths) == {width}
        assert run.speed > 0.95 * fixed.speed
    assert run.speed > 0.965  # what looking now and then costs


@pytest.mark.parametrize("table", COSTS)
def test_a_useless_drafter_costs_little_and_less_and_less(table):
    given = COSTS[table]
    widths = simulate(Adaptive(given, BLOCK), given, lambda _: SHARES["never"], 2000).widths
    passes = [1.0 if width == 1 else given.verify[width] + given.draft[width] for width in widths]
    for rounds, percent in ((20, 20), (100, 7), (500, 3), (2000, 2)):
        assert sum(passes[:rounds]) <= rounds * (1 + percent / 100), rounds
    assert widths.index(1) <= 8, "a rest begins soon"
    if table == "hopeless":
        assert set(widths) == {1}, "no acceptance could pay for a block here"
    else:
        assert sum(width > 1 for width in widths[1000:]) > 10, "it keeps looking"


CHANGES = [(0.95, 0.3), (0.8, 0.3), (0.9, 0.0), (0.3, 0.95), (0.0, 0.9)]


@pytest.mark.parametrize("table", ["flat", "slope", "tile of 4"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_change_of_text_is_followed(table, before, after):
    seen = change(lambda: Adaptive(COSTS[table], BLOCK), COSTS[table], level(before), level(after))
    if after > 0.0:
        assert seen.rounds <= 25
    assert seen.lost <= 13, "plain passes; what was saved before pays for ten of them"


def test_trials_get_rarer_while_they_fail_and_one_that_pays_ends_the_rest():
    given = COSTS["slope"]
    run = simulate(Adaptive(given, BLOCK), given, lambda number: SHARES["never" if number < 600 else "good"], 1200)
    drafted = [sum(width > 1 for width in run.widths[start : start + 100]) for start in range(0, 600, 100)]
    assert drafted[0] > 2 * drafted[-1] and sum(drafted[1:]) < 50
    good = run.widths[600:]
    assert good.index(8) < 100 and good[-400:].count(1) == 0
    run = simulate(Adaptive(given, BLOCK), given, lambda n: SHARES["good" if 600 <= n < 800 else "never"], 1000)
    first, again = (
        [len(list(group)) for width, group in itertools.groupby(part) if width == 1]
        for part in (run.widths[:600], run.widths[800:])
    )
    assert first[:2] == again[:2] and max(first) > 2 * first[0], "drafting had paid in between: short rests again"


def test_the_cheapest_round_ends_a_rest_and_wide_ones_follow_where_only_they_pay():
    given = COSTS["tile of 4"]
    widths = simulate(Adaptive(given, BLOCK), given, lambda _: SHARES["never"], 300).widths
    assert {now for before, now in itertools.pairwise(widths) if before == 1} == {1, 2}
    # A chip that multiplies rows one by one up to five, and six to eight at once: only wide rounds pay.
    chip = cost_tables()["M1 Pro stock"]
    widths = simulate(Adaptive(chip, BLOCK), chip, lambda number: level(0.0 if number < 100 else 0.96), 500).widths
    assert widths[-200:].count(1) == 0 and sum(widths[-200:]) > 6.5 * 200


def test_what_was_saved_pays_for_hard_stretches_but_not_for_long():
    """Easy and hard in turn: resting in each hard stretch would sleep through half of the next easy one."""
    given = COSTS["flat"]
    widths = simulate(Adaptive(given, BLOCK), given, lambda n: SHARES["good" if n % 20 < 6 else "never"], 400).widths
    assert widths.count(1) == 0
    widths = simulate(Adaptive(given, BLOCK), given, lambda n: SHARES["good" if n < 50 else "never"], 250).widths
    assert widths[50:].count(1) > 100


def test_deep_in_a_text_wide_rounds_may_not_pay_any_more():
    given = COSTS["flat"]
    walled = PassCosts(given.verify, given.draft, {1: 0.0001, 5: 0.0001, 6: 0.001, 7: 0.001, 8: 0.001})
    run = simulate(Adaptive(walled, BLOCK), walled, lambda _: SHARES["good"], 60)
    assert run.widths.count(8) > 50, "60 rounds are some 300 positions"
    deep = simulate(Adaptive(walled, BLOCK, depth=16000), walled, lambda _: SHARES["good"], 300)
    assert max(deep.widths) <= 5
    # It is the text itself that grows: the same policy narrows on its way.
    long = simulate(Adaptive(walled, BLOCK), walled, lambda _: SHARES["good"], 2500)
    assert max(long.widths[-20:]) <= 5


def test_only_measured_widths_up_to_the_limit():
    given = PassCosts({1: 1.0, 3: 1.05, 5: 1.1, 8: 1.1}, {3: 0.1, 5: 0.1, 8: 0.1, 7: 0.0})
    run = simulate(Adaptive(given, 5), given, lambda _: SHARES["good"], 200)
    assert set(run.widths) <= {1, 3, 5} and run.widths[-50:].count(5) > 40


def test_widths_seldom_change_where_the_text_does_not():
    for table, shares in itertools.product(("flat", "slope", "tile of 4"), ("good", "middling")):
        widths = simulate(Adaptive(COSTS[table], BLOCK), COSTS[table], lambda _, s=shares: SHARES[s], 600).widths
        changes = sum(before != after for before, after in itertools.pairwise(widths))
        assert changes < 30 and len(set(widths)) <= 5, (table, shares, changes)


def test_the_same_rounds_give_the_same_widths():
    given = COSTS["slope"]
    first, second = (simulate(Adaptive(given, BLOCK), given, lambda _: SHARES["middling"], 200) for _ in range(2))
    assert first == second and len(set(first.widths)) > 1


def test_estimates_by_hand():
    seen, weight = Acceptance(3, 0.8), Acceptance.WEIGHT
    assert seen.shares() == pytest.approx([0.8, 0.8, 0.8])
    seen.learn(drafted=3, accepted=1)  # 1 kept, 2 refused, 3 not reached
    first = (1 + weight * 0.8) / (1 + weight)
    second = weight * first / (1 + weight)
    assert seen.shares() == pytest.approx([first, second, second])
    seen.learn(drafted=1, accepted=0)  # says nothing of position 2, which fades
    found = []
    for kept in Acceptance.KEPT:  # both memories had foretold the first rounds alike
        first = (kept + weight * 0.8) / (kept + 1 + weight)
        second = weight * first / (kept + weight)
        found.append([first, second, second])
    assert seen.shares() == pytest.approx([sum(both) / 2 for both in zip(*found, strict=True)])
    # From here on the memory that held the round likelier counts for more.
    (low, *_), (high, *_) = sorted(found)
    seen.learn(drafted=1, accepted=1)
    steady, lively = ((k * k + 1 + weight * 0.8) / (k * k + k + 1 + weight) for k in Acceptance.KEPT)
    chances = [found[0][0], found[1][0]]
    mixed = (chances[0] * steady + chances[1] * lively) / sum(chances)
    assert low < high and seen.shares()[0] == pytest.approx(mixed, abs=1e-3)


@pytest.mark.parametrize(("before", "after", "rounds"), [(0.99, 0.3, 5), (0.8, 0.3, 12), (0.6, 0.9, 22)])
def test_a_change_is_noticed_within_a_few_rounds_and_luck_is_not_one(before, after, rounds):
    """At ordinary acceptance too: a memory of a hundred rounds alone would take 70 to come half the way."""
    draw, strayed, noticed = random.Random(4), [], []
    for _ in range(20):
        seen = Acceptance(1, 0.8)
        for number in range(200):
            seen.learn(1, int(draw.random() < before))
            if number >= 50:
                strayed.append(abs(seen.shares()[0] - before))
        noticed.append(0)
        while abs(seen.shares()[0] - after) > abs(seen.shares()[0] - before):
            seen.learn(1, int(draw.random() < after))
            noticed[-1] += 1
    assert sorted(noticed)[len(noticed) // 2] <= rounds, "half the way, in most texts"
    assert sorted(strayed)[len(strayed) * 9 // 10] < 0.13, "the short memory alone would stray by 0.2"


def test_eight_refusals_in_a_row_are_believed():
    draw, seen = random.Random(4), Acceptance(1, 0.8)
    for _ in range(200):
        seen.learn(1, int(draw.random() < 0.8))
    assert seen.shares()[0] == pytest.approx(0.8, abs=0.1)
    for _ in range(8):
        seen.learn(1, 0)
    assert seen.shares()[0] < 0.4, "the long memory alone would say 0.7"


def test_what_fades_is_tried_again():
    # Narrow since the far positions failed; when the text gets easier, only trying again can show it.
    given = COSTS["flat"]
    run = simulate(Adaptive(given, BLOCK), given, lambda n: SHARES["decaying" if n < 300 else "good"], 900)
    early, late = run.widths[200:300], run.widths[-300:]
    assert sum(late) / len(late) > sum(early) / len(early) + 1


@pytest.mark.parametrize("seed", range(3))
def test_the_promise_holds_for_any_luck(seed):
    for table, shares in itertools.product(COSTS.values(), SHARES.values()):
        run = simulate(Adaptive(table, BLOCK), table, lambda _, shares=shares: shares, 400, seed=seed)
        assert run.speed > 0.94

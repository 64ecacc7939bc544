"""The width policy on recorded acceptance and tables of costs: close to the best fixed width, never far below plain.

A simulated reply draws each round's accepted drafts from conditional shares by position, and time is what the table
says; one round is always unread, as in a real session.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from dflash2_mlx.costs import PassCosts, expected_tokens
from dflash2_mlx.widths import Acceptance, Adaptive, Fixed, WidthPolicy

BLOCK = 8
Shares = Sequence[float]


def costs(row: float, draft: float, jump: float = 0.0, most: int = BLOCK) -> PassCosts:
    """A plain pass takes 1; each further row `row`; rows past 4 a `jump` (a second tile); a draft pass `draft`."""
    verify = {rows: 1.0 + row * (rows - 1) + jump * (rows > 4) for rows in range(1, most + 1)}
    return PassCosts(verify, {width: draft + 0.01 * width for width in range(2, most + 1)})


COSTS = {
    "flat": costs(0.01, 0.1),  # memory-bound: a block costs like a row
    "slope": costs(0.08, 0.15),
    "tile of 4": costs(0.03, 0.12, jump=0.8),
    "rows cost": costs(0.45, 0.2),  # batched experts, or a slow chip
    "hopeless": costs(1.0, 0.3),  # the CPU back-end: drafting can never pay
}
# Conditional shares by position. The first three have the form of published tables: level, and falling off.
SHARES = {
    "good": [0.9, 0.88, 0.87, 0.86, 0.86, 0.85, 0.85],
    "middling": [0.75, 0.7, 0.66, 0.62, 0.6, 0.58, 0.55],
    "decaying": [0.85, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05],
    "poor": [0.3, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2],
    "never": [0.0] * 7,
}


@dataclass
class Run:
    tokens: int
    seconds: float
    widths: list[int]

    @property
    def speed(self) -> float:
        """Over plain decoding, whose pass takes 1."""
        return self.tokens / self.seconds


def accepted(shares: Shares, drafted: int, draw: random.Random) -> int:
    return sum(1 for _ in itertools.takewhile(lambda share: draw.random() < share, shares[:drafted]))


def simulate(
    policy: WidthPolicy, table: PassCosts, shares_at: Callable[[int], Shares], rounds: int, seed: int = 1
) -> Run:
    draw, run, unread = random.Random(seed), Run(0, 0.0, []), None
    for number in range(rounds):
        width = policy.width()
        if unread is not None:
            policy.learn(*unread)
        kept = accepted(shares_at(number), width - 1, draw)
        unread = width, kept
        run.tokens += kept + 1
        run.seconds += 1.0 if width == 1 else table.verify[width] + table.draft[width]
        run.widths.append(width)
    return run


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
    run = simulate(Adaptive(given, BLOCK), given, lambda _: known, 2000)
    assert run.speed > 0.92 * oracle(given, known)
    for width in (4, 5, 8):
        fixed = simulate(Fixed(width), given, lambda _: known, 2000)
        assert set(fixed.widths) == {width}
        assert run.speed > 0.95 * fixed.speed
    assert run.speed > 0.96  # what looking now and then costs


@pytest.mark.parametrize("table", COSTS)
@pytest.mark.parametrize("rounds", [1, 5, 20, 60, 200])
def test_a_useless_drafter_costs_a_few_rounds_at_most(table, rounds):
    given = COSTS[table]
    run = simulate(Adaptive(given, BLOCK), given, lambda _: SHARES["never"], rounds)
    lost = run.seconds - rounds  # in plain passes
    assert lost < 6 + rounds / 20
    if table == "hopeless":
        assert set(run.widths) == {1}, "no acceptance could pay for a block here"


def test_it_follows_a_change_of_text():
    given = COSTS["slope"]
    parts = [SHARES["good"], SHARES["never"], SHARES["middling"], SHARES["poor"], SHARES["good"]]
    run = simulate(Adaptive(given, BLOCK), given, lambda number: parts[number // 400], 2000)
    best = sum(400 * expected_tokens(s, w) for s in parts for w in [1]) and [oracle(given, s) for s in parts]
    for part, limit in enumerate(best):
        late = run.widths[400 * part + 300 : 400 * part + 400]  # time enough to have noticed
        speeds = [1.0 if w == 1 else expected_tokens(parts[part], w) / (given.verify[w] + given.draft[w]) for w in late]
        assert sum(speeds) / len(speeds) > 0.85 * limit, (part, late)


def test_rests_grow_while_trials_fail_and_end_when_one_pays():
    given = COSTS["slope"]
    policy = Adaptive(given, BLOCK)
    run = simulate(policy, given, lambda number: SHARES["never" if number < 600 else "good"], 1200)
    rests = [len(list(group)) for width, group in itertools.groupby(run.widths[:600]) if width == 1]
    assert rests[:4] == [16, 32, 64, 128]
    assert max(rests) <= Adaptive.LONGEST_REST
    assert run.widths[-100:].count(1) == 0


def test_deep_in_a_text_wide_rounds_may_not_pay_any_more():
    given = COSTS["flat"]
    walled = PassCosts(given.verify, given.draft, {1: 0.0001, 5: 0.0001, 6: 0.001, 7: 0.001, 8: 0.001})
    run = simulate(Adaptive(walled, BLOCK), walled, lambda _: SHARES["good"], 60)
    assert set(run.widths) == {8}, "60 rounds are some 300 positions"
    deep = simulate(Adaptive(walled, BLOCK, depth=16000), walled, lambda _: SHARES["good"], 300)
    assert max(deep.widths) <= 5
    # It is the text itself that grows: the same policy narrows on its way.
    long = simulate(Adaptive(walled, BLOCK), walled, lambda _: SHARES["good"], 6000)
    assert max(long.widths[-20:]) <= 5


def test_only_measured_widths_up_to_the_limit():
    given = PassCosts({1: 1.0, 3: 1.05, 5: 1.1, 8: 1.1}, {3: 0.1, 5: 0.1, 8: 0.1, 7: 0.0})
    run = simulate(Adaptive(given, 5), given, lambda _: SHARES["good"], 200)
    assert set(run.widths) <= {1, 3, 5} and run.widths[-50:].count(5) > 40


def test_estimates_by_hand():
    seen, fade = Acceptance(3), Acceptance.LONG
    assert seen.shares() == [0.7, 0.7, 0.7]
    seen.learn(drafted=3, accepted=1)  # 1 kept, 2 refused, 3 not reached
    first, second = (1 + 0.7) / 2, (1 + 0.7) / 2 / 2
    assert seen.shares() == pytest.approx([first, second, second])
    seen.learn(drafted=1, accepted=1)  # says nothing of position 2, which fades
    tried, kept = fade + 1, fade + 1
    first = (kept + 0.7) / (tried + 1)
    second = first / (fade + 1)
    assert seen.shares() == pytest.approx([first, second, second])
    seen.forget()
    assert seen.shares() == [0.7, 0.7, 0.7]


def test_hope_is_larger_where_less_was_seen():
    seen = Acceptance(3)
    for _ in range(20):
        seen.learn(drafted=1, accepted=1)
        seen.learn(drafted=1, accepted=0)
    known, hoped = seen.shares(), seen.shares(0.5)
    gains = [high - low for high, low in zip(hoped, known, strict=True)]
    assert 0 < gains[0] < 0.06 and gains[1] > 2 * gains[0] and all(0 <= share <= 1 for share in hoped)


def test_a_change_is_noticed_within_a_few_rounds_and_luck_is_not_one():
    steady, changed = Acceptance(1), Acceptance(1)
    draw = random.Random(4)
    for _ in range(200):
        steady.learn(1, int(draw.random() < 0.99))
        changed.learn(1, int(draw.random() < 0.99))
    assert steady.shares()[0] == pytest.approx(0.99, abs=0.05)
    for _ in range(8):
        changed.learn(1, 0)
    assert changed.shares()[0] < 0.6, "the long memory alone would say 0.77"


def test_what_fades_is_tried_again():
    # Narrow since the far positions failed; when the text gets easier, only trying again can show it.
    given = COSTS["flat"]
    run = simulate(Adaptive(given, BLOCK), given, lambda n: SHARES["decaying" if n < 300 else "good"], 900)
    early, late = run.widths[200:300], run.widths[-300:]
    assert sum(late) / len(late) > sum(early) / len(early) + 1


@pytest.mark.parametrize("seed", range(5))
def test_the_promise_holds_for_any_luck(seed):
    for table, shares in itertools.product(COSTS.values(), SHARES.values()):
        run = simulate(Adaptive(table, BLOCK), table, lambda _, shares=shares: shares, 600, seed=seed)
        assert run.speed > 0.93

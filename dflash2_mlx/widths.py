"""How many rows the next round verifies.

Owns: the policies and what they may know: the widths of rounds that the host has read, and how many drafts each
accepted. They never see a token. A policy that knew what was drawn for a row could verify that row or not because of
it, and the text would no longer follow the target's law.

Reference: DFlash 2 specification 6.
"""

from __future__ import annotations

import math
from typing import Protocol

from .costs import PassCosts, expected_tokens


class WidthPolicy(Protocol):
    """Decides the width of each round of one reply."""

    def width(self) -> int:
        """Rows of the next round; 1 is a round of plain decoding."""

    def learn(self, width: int, num_accepted: int) -> None:
        """A round was read: its width, and how many drafts the target agreed to. One round is always unread."""


class Fixed:
    """The same width in every round."""

    def __init__(self, width: int):
        self._width = width

    def width(self) -> int:
        return self._width

    def learn(self, width: int, num_accepted: int) -> None:
        pass


class Acceptance:
    """Share of drafts accepted at each position, as rounds have shown it.

    A long memory gives steady numbers; a short one beside it notices when the text has changed, and then takes its
    place. Where little was seen the position before stands in: an estimate of a position that was not drafted for a
    while drifts back to its neighbour's, so that wider rounds are tried again.

    Args:
        positions: drafted positions of the widest round.
    """

    FIRST = 0.7  # share of the first position before anything was seen
    WEIGHT = 1.0  # rounds that what stands in counts for
    LONG, SHORT = 0.97, 0.9  # kept per round: about 33 and 10 rounds are remembered
    CHANGED = 2.5  # standard deviations between the two that mean another kind of text

    def __init__(self, positions: int):
        self._positions = positions
        self.forget()

    def forget(self) -> None:
        """Start again from what stands in."""
        self._long, self._short = _Counts(self._positions, self.LONG), _Counts(self._positions, self.SHORT)

    def learn(self, drafted: int, accepted: int) -> None:
        """Count a round that drafted and accepted so many."""
        self._long.add(drafted, accepted)
        self._short.add(drafted, accepted)
        if self._has_changed():
            self._long.tried, self._long.kept = list(self._short.tried), list(self._short.kept)

    def shares(self, hope: float = 0.0) -> list[float]:
        """Estimated share of rounds that accept each position, of those that accepted all before it.

        Args:
            hope: standard deviations that the estimates are raised by: what the shares may well be.
        """
        shares, before = [], self.FIRST
        for tried, kept in zip(self._long.tried, self._long.kept, strict=True):
            before = (kept + self.WEIGHT * before) / (tried + self.WEIGHT)
            doubt = hope * math.sqrt(before * (1.0 - before) / (tried + self.WEIGHT))
            shares.append(min(1.0, before + doubt))
        return shares

    def _has_changed(self) -> bool:
        """Whether what was seen lately would be a rare accident under the long memory."""
        gap = spread = 0.0
        for share, tried, kept in zip(self.shares(), self._short.tried, self._short.kept, strict=True):
            share = min(max(share, 0.02), 0.98)
            gap += kept - tried * share
            spread += tried * share * (1.0 - share)
        return gap * gap > self.CHANGED**2 * spread


class _Counts:
    """Rounds that drafted and reached each position, and those that accepted it; both fade."""

    def __init__(self, positions: int, fade: float):
        self._fade = fade
        self.tried = [0.0] * positions
        self.kept = [0.0] * positions

    def add(self, drafted: int, accepted: int) -> None:
        for position in range(len(self.tried)):
            reached = position < drafted and position <= accepted
            self.tried[position] = self._fade * self.tried[position] + reached
            self.kept[position] = self._fade * self.kept[position] + (reached and position < accepted)


class Adaptive:
    """The width with the most expected tokens per second, from the costs of passes and the acceptance seen so far.

    Where no width beats plain decoding, it rests at width 1 and tries a few rounds now and then, less and less often:
    a drafter that never helps costs a few rounds in hundreds. It rests only when drafting would not even pay if luck
    had been bad lately, so that a small gain is not given up for noise.

    Args:
        costs: seconds per pass, measured on this machine or computed for it.
        most: widest round allowed; widths whose costs are not known are not used.
        depth: positions before the first round; passes get dearer as the text grows.
    """

    BETTER = 1.01  # a change must promise this much, or noise would keep the width moving
    STAY = 3  # rounds between two changes: the first of them is read one round late
    TRIAL = 3  # rounds of a trial, at least
    SELDOM = 4  # times longer rests where drafting pays only for text that is easier than usual
    FIRST_REST, LONGEST_REST = 16, 256  # rounds at width 1 before the next trial
    HOPE = 0.35  # standard deviations that estimates are raised by, so that what is unknown gets tried
    DEEPER = 64  # positions after which costs are computed anew

    def __init__(self, costs: PassCosts, most: int, *, depth: int = 0):
        self._costs, self._most, self._depth = costs, most, depth
        self._seen = Acceptance(most - 1)
        self._reckon()
        self._rest = self.FIRST_REST // 2
        self._won = self._spent = 0.0  # since the last rest, by drafting: tokens, and plain passes that it cost
        self._width = self._best(self._seen.shares())
        self._pays_at_first = self._width > 1  # where not, only text that is easier than usual makes drafting pay
        self._left = self._rest if self._width == 1 else self.STAY  # rounds before the width may change

    def width(self) -> int:
        if self._depth >= self._reckoned + self.DEEPER:
            self._reckon()
        if not self._usable:
            return 1
        if self._left <= 0:
            self._change()
        self._left -= 1
        return self._width

    def learn(self, width: int, num_accepted: int) -> None:
        self._depth += num_accepted + 1
        if width > 1:
            self._seen.learn(width - 1, num_accepted)
            self._won += num_accepted + 1
            self._spent += self._cost[width]

    def _reckon(self) -> None:
        """Costs of rounds here, in plain passes; a draft's own pass and its verify belong together."""
        self._reckoned = self._depth
        costs = self._costs.at(self._depth)
        plain = costs.verify[1]
        widths = [w for w in sorted(costs.draft) if w <= self._most and w in costs.verify]
        self._cost = {1: 1.0, **{w: (costs.verify[w] + costs.draft[w]) / plain for w in widths}}
        # Accepting everything, a width brings as many tokens as it has rows: what costs more can never pay.
        self._usable = [w for w in widths if w > self._cost[w]]

    def _gain(self, width: int, shares: list[float]) -> float:
        """Tokens per second over those of plain decoding."""
        return expected_tokens(shares, width) / self._cost[width]

    def _best(self, shares: list[float]) -> int:
        return max((1, *self._usable), key=lambda width: (self._gain(width, shares), -width))

    def _change(self) -> None:
        if self._width == 1:
            self._try()
            return
        shares = self._seen.shares(self.HOPE)
        best = self._best(shares)
        if best == 1:
            self._park()
        elif self._width not in self._usable or self._gain(best, shares) > self.BETTER * self._gain(
            self._width, shares
        ):
            self._width, self._left = best, self.STAY

    def _park(self) -> None:
        """Rest: shortly where drafting has just paid, else longer than before."""
        first = self.FIRST_REST * (1 if self._pays_at_first else self.SELDOM)
        longer = min(max(2 * self._rest, first), self.LONGEST_REST)
        self._rest = self.FIRST_REST if self._won > self._spent else longer
        self._width, self._left, self._won, self._spent = 1, self._rest, 0.0, 0.0

    def _try(self) -> None:
        """After a rest: the narrowest width that pays if things go fairly well; it widens by itself if they do."""
        self._seen.forget()
        shares = self._seen.shares()
        paying = [width for width in self._usable if self._gain(width, shares) > 1.0]
        self._width = paying[0] if paying else self._best_drafting(shares)
        self._left = self.TRIAL

    def _best_drafting(self, shares: list[float]) -> int:
        return max(self._usable, key=lambda width: self._gain(width, shares))

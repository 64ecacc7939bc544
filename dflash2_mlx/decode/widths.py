"""How many rows the next round verifies.

Owns: the policies and what they may know: the widths of rounds that the host has read, and how many drafts each
accepted. They never see a token. A policy that knew what was drawn for a row could verify that row or not because of
it, and the text would no longer follow the target's law.

Reference: docs/dflash2.md 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Protocol

from .costs import PassCosts, expected_tokens


class WidthPolicy(Protocol):
    """Decides the width of each round of one reply."""

    def width(self) -> int:
        """Rows of the next round; 1 is a round of plain decoding."""

    def learn(self, width: int, num_accepted: int) -> None:
        """A round was read: its width, and how many drafts the target agreed to. One round is always unread."""


class Acceptance:
    """Share of drafts accepted at each position, as rounds have shown it.

    Two memories count. The long one (a hundred rounds) is steady, the short one (seven) follows a change of text;
    what they say is mixed by how likely each held the rounds just seen. That likelihood ratio is the whole test for a
    change: no threshold to choose, few rounds suffice where the two disagree much, and at ordinary acceptance it does
    not take bad luck for a change, because bad luck makes the short memory foretell worse. It loses little to the
    better memory of any text, and where acceptance comes in streaks the short one wins for good.

    Where little was seen the position before stands in: an estimate of a position that was not drafted for a while
    drifts back to its neighbour's, so that wider rounds are tried again without a bonus for the unknown.

    Args:
        positions: drafted positions of the widest round.
        first: share of the first position before anything was seen.
    """

    WEIGHT = 0.75  # rounds that what stands in counts for: two or three rounds outweigh it
    KEPT = (0.99, 0.85)  # of each memory per round: about 100 and 7 rounds are remembered
    TRUST = 0.97  # kept per round of how well a memory foretold: which one is better may change, too

    def __init__(self, positions: int, first: float):
        self._memories = [_Memory(positions, first, kept, self.WEIGHT) for kept in self.KEPT]
        self._merits = [0.0] * len(self._memories)  # logarithms

    def learn(self, drafted: int, accepted: int) -> None:
        """Count a round that drafted and accepted so many."""
        for which, memory in enumerate(self._memories):
            self._merits[which] = self.TRUST * self._merits[which] + memory.foretold(drafted, accepted)
            memory.count(drafted, accepted)

    def shares(self) -> list[float]:
        """Estimated share of rounds that accept each position, of those that accepted all before it."""
        best = max(self._merits)
        weights = [math.exp(merit - best) for merit in self._merits]
        said = [memory.shares for memory in self._memories]
        return [sum(map(mul, weights, of_position)) / sum(weights) for of_position in zip(*said, strict=True)]


class _Memory:
    """Rounds that drafted and reached each position, and those that accepted it; both fade."""

    SURE = 0.999  # nothing is held for more certain: one surprise must not decide alone

    def __init__(self, positions: int, first: float, kept: float, weight: float):
        self._first, self._kept, self._weight = first, kept, weight
        self._reached = [0.0] * positions
        self._accepted = [0.0] * positions
        self.shares = [first] * positions

    def foretold(self, drafted: int, accepted: int) -> float:
        """Logarithm of the chance that this memory gave what the round did."""
        chances = [*self.shares[:accepted], *(1.0 - share for share in self.shares[accepted:drafted][:1])]
        return sum(math.log(max(chance, 1.0 - self.SURE)) for chance in chances)

    def count(self, drafted: int, accepted: int) -> None:
        share, weight = self._first, self._weight
        for position in range(len(self.shares)):
            reached = position < drafted and position <= accepted
            self._reached[position] = self._kept * self._reached[position] + reached
            self._accepted[position] = self._kept * self._accepted[position] + (reached and position < accepted)
            # What stands in is the estimate of the position before.
            share = (self._accepted[position] + weight * share) / (self._reached[position] + weight)
            self.shares[position] = share


class Adaptive:
    """The width with the most expected tokens per second, from the costs of passes and the acceptance seen so far.

    Where no width is expected to beat plain decoding it rests at width 1. Three rules bound what that may lose:

    - A rest hides that the text has become easy again, while drafting through a hard stretch often costs little. So
      what drafting has saved pays for going on, at most `PURSE` plain passes of it; where it has saved nothing, as
      with a hopeless drafter, the rest begins as soon as the estimate says so.
    - A rest is twice as long after each failure, until what was lost before it is `PRICE` of it. So in the long run
      a drafter that never helps costs `PRICE`, whatever a pass costs here, and where trying is cheap it is tried often.
    - What ends a rest is the cheapest round there is, and nothing that was seen before it counts any more: refused
      drafts end the trial, accepted ones widen it.

    Widths change only for a gain, as each is a graph of its own and on Metal often other kernels.

    Args:
        costs: seconds per pass, measured on this machine or computed for it.
        most: widest round allowed; widths whose costs are not known are not used.
        depth: positions before the first round; passes get dearer as the text grows.
    """

    FIRST, AGAIN = 0.8, 0.5  # acceptance to begin with: of a reply, and after a rest
    BETTER = 1.015  # what a change of width must promise at least
    STAY = 2  # rounds between two changes, and of a trial at least: the first of them is read one round late
    PURSE = 10.0  # plain passes
    SHORTEST = 8  # rounds of the shortest rest
    PRICE = 0.015  # of plain decoding's time
    DEEPER = 64  # positions after which costs are computed anew

    def __init__(self, costs: PassCosts, most: int, *, depth: int = 0):
        self._costs, self._most, self._depth = costs, most, depth
        self._seen = Acceptance(most - 1, self.FIRST)
        self._reckon()
        self._won = self._purse = 0.0  # plain passes that drafting saved since the last rest; those it may still lose
        self._rests = 0  # in a row, with no drafting between them that paid
        self._width = self._best((1, *self._usable), self._seen.shares())
        self._left = self.SHORTEST if self._width == 1 else self.STAY  # rounds before the width may change

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
            saved = num_accepted + 1 - self._cost[width]
            self._won += saved
            self._purse = min(self.PURSE, self._purse + saved)

    def _reckon(self) -> None:
        """Costs of rounds here, in plain passes; a draft's own pass and its verify belong together."""
        self._reckoned = self._depth
        costs = self._costs.at(self._depth)
        plain = costs.verify[1]
        widths = [w for w in sorted(costs.draft) if w <= self._most and w in costs.verify]
        self._cost = {1: 1.0, **{w: (costs.verify[w] + costs.draft[w]) / plain for w in widths}}
        # Accepting everything, a width brings as many tokens as it has rows: what costs more can never pay.
        self._usable = [w for w in widths if w > self._cost[w]]

    def _gain(self, width: int, shares: Sequence[float]) -> float:
        """Tokens per second over those of plain decoding."""
        return expected_tokens(shares, width) / self._cost[width]

    def _best(self, widths: Sequence[int], shares: Sequence[float]) -> int:
        return max(widths, key=lambda width: (self._gain(width, shares), -width))

    def _change(self) -> None:
        if self._width == 1:
            self._try()
            return
        shares, now = self._seen.shares(), self._width
        best = self._best(self._usable, shares)
        if self._gain(best, shares) <= 1.0 and self._purse <= 0.0:
            self._park()
        elif now not in self._usable or self._gain(best, shares) > self.BETTER * self._gain(now, shares):
            self._width, self._left = best, self.STAY

    def _park(self) -> None:
        """Rest until what was lost is a small part of it; after few failures shorter."""
        if self._won >= 0.0:
            self._rests = 0
        doubled = self.SHORTEST * 2**self._rests
        self._left = max(self.SHORTEST, min(doubled, math.ceil(-self._won / self.PRICE)))
        self._width, self._rests = 1, self._rests + 1
        self._won = self._purse = 0.0

    def _try(self) -> None:
        """After a rest: the cheapest round, of equals the widest."""
        self._seen = Acceptance(self._most - 1, self.AGAIN)
        self._width = min(self._usable, key=lambda width: (self._cost[width], -width))
        self._left = self.STAY

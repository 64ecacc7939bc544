"""How many rows the next round verifies.

Owns: the policies and what they may know: the widths of rounds that the host has read, and how many drafts each
accepted. They never see a token. A policy that knew what was drawn for a row could verify that row or not because of
it, and the text would no longer follow the target's law.

Reference: DFlash 2 specification 6.
"""

from __future__ import annotations

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
    """Share of drafts accepted at each position, with a short memory.

    What was seen fades, and where little was seen the position before stands in: an estimate of a position that was
    not drafted for a while drifts back to its neighbour's, so that wider rounds are tried again.

    Args:
        positions: drafted positions of the widest round.
    """

    FIRST = 0.7  # share of the first position before anything was seen
    WEIGHT = 1.0  # rounds that what stands in counts for
    FADE = 0.94  # kept per round: about 16 rounds are remembered

    def __init__(self, positions: int):
        self._tried = [0.0] * positions
        self._kept = [0.0] * positions

    def forget(self) -> None:
        """Start again from what stands in."""
        self._tried = [0.0] * len(self._tried)
        self._kept = [0.0] * len(self._kept)

    def learn(self, drafted: int, accepted: int) -> None:
        """Count a round that drafted and accepted so many."""
        for position in range(len(self._tried)):
            reached = position < drafted and position <= accepted
            self._tried[position] = self.FADE * self._tried[position] + reached
            self._kept[position] = self.FADE * self._kept[position] + (reached and position < accepted)

    def shares(self) -> list[float]:
        """Estimated share of rounds that accept each position, of those that accepted all before it."""
        shares, before = [], self.FIRST
        for tried, kept in zip(self._tried, self._kept, strict=True):
            before = (kept + self.WEIGHT * before) / (tried + self.WEIGHT)
            shares.append(before)
        return shares


class Adaptive:
    """The width with the most expected tokens per second, from measured costs and the acceptance seen so far.

    Where no width beats plain decoding, it rests at width 1 and tries a few rounds now and then, less and less often:
    a drafter that never helps costs a few rounds in hundreds.

    Args:
        costs: seconds per pass, as measured on this machine.
        most: widest round allowed; widths whose costs were not measured are not used.
    """

    BETTER = 1.03  # a change must promise this much, or noise would keep the width moving
    STAY = 3  # rounds between two changes: the first of them is read one round late
    FIRST_REST, LONGEST_REST = 16, 256  # rounds at width 1 before the next trial
    PROVEN = 16  # rounds of drafting after which a rest starts short again

    def __init__(self, costs: PassCosts, most: int):
        plain = costs.verify[1]
        widths = [w for w in sorted(costs.draft) if w <= most and w in costs.verify]
        # Passes in units of a plain one; a draft's own pass and its verify belong together.
        self._cost = {1: 1.0, **{w: (costs.verify[w] + costs.draft[w]) / plain for w in widths}}
        # Accepting everything, a width brings as many tokens as it has rows: what costs more can never pay.
        self._usable = [w for w in widths if w > self._cost[w]]
        self._seen = Acceptance(most - 1)
        self._rest = self.FIRST_REST // 2
        self._drafted = 0  # rounds since the last rest
        self._width = self._best(self._seen.shares())
        self._left = self._rest if self._width == 1 else self.STAY  # rounds before the width may change

    def width(self) -> int:
        if not self._usable:
            return 1
        if self._left <= 0:
            self._change()
        self._left -= 1
        self._drafted += self._width > 1
        return self._width

    def learn(self, width: int, num_accepted: int) -> None:
        if width > 1:
            self._seen.learn(width - 1, num_accepted)

    def _gain(self, width: int, shares: list[float]) -> float:
        """Tokens per second over those of plain decoding."""
        return expected_tokens(shares, width) / self._cost[width]

    def _best(self, shares: list[float]) -> int:
        return max((1, *self._usable), key=lambda width: (self._gain(width, shares), -width))

    def _change(self) -> None:
        if self._width == 1:
            self._try()
            return
        shares = self._seen.shares()
        best = self._best(shares)
        if best == 1:
            self._rest = min(2 * self._rest, self.LONGEST_REST) if self._drafted < self.PROVEN else self.FIRST_REST
            self._width, self._left, self._drafted = 1, self._rest, 0
        elif self._gain(best, shares) > self.BETTER * self._gain(self._width, shares):
            self._width, self._left = best, self.STAY

    def _try(self) -> None:
        """After a rest: the narrowest width that pays if things go fairly well; it widens by itself if they do."""
        self._seen.forget()
        shares = self._seen.shares()
        paying = [width for width in self._usable if self._gain(width, shares) > 1.0]
        self._width = paying[0] if paying else self._best_drafting(shares)
        self._left = self.STAY

    def _best_drafting(self, shares: list[float]) -> int:
        return max(self._usable, key=lambda width: self._gain(width, shares))

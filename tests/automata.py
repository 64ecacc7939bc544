"""Small constraints: automata over token ids, and a check that sessions ask and tell them the right things."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

State = int
Rule = Callable[[State, int], State | None]  # state and token -> next state, None where the token is forbidden


class Automaton:
    """Allows what a rule allows; refuses to be told something it forbade.

    Args:
        rule: the automaton, from state 0.
        vocab_size: columns of the masks.
    """

    def __init__(self, rule: Rule, vocab_size: int):
        self.rule = rule
        self.vocab_size = vocab_size
        self.state: State = 0
        self.committed: list[int] = []
        self.asked: list[tuple[int, ...]] = []

    def masks(self, proposal: Sequence[int]) -> np.ndarray:
        self.asked.append(tuple(proposal))
        rows = np.zeros((len(proposal) + 1, self.vocab_size), dtype=bool)
        state: State | None = self.state
        for number in range(len(proposal) + 1):
            if state is None:
                break  # rows after a forbidden token are never used: they may stay empty
            rows[number] = [self.rule(state, token) is not None for token in range(self.vocab_size)]
            if number < len(proposal):
                state = self.rule(state, proposal[number])
        return rows

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            state = self.rule(self.state, token)
            assert state is not None, f"token {token} was committed in state {self.state}, where it is forbidden"
            self.state = state
            self.committed.append(token)


def nested_lists(state: State, token: int) -> State | None:
    """JSON-like: tokens divisible by 7 open a list, by 5 close one, others are values; depth 0..3, closed at the end.

    The state is the depth; a value is allowed only inside a list, and nothing may close an unopened one.
    """
    if token % 7 == 0:
        return state + 1 if state < 3 else None
    if token % 5 == 0:
        return state - 1 if state > 0 else None
    return state if state > 0 else None


def forced_at(position: int, token: int) -> Rule:
    """Free, but the token at one place of the reply is given. The state counts tokens."""
    return lambda state, candidate: state + 1 if state != position or candidate == token else None


def budget(tokens: int, end: int, never: int) -> Rule:
    """A thinking budget: `end` must come after at most `tokens` tokens; once it came, all but it is allowed.

    Below the budget the state counts up; -1 is after the end. `never` is a token that may not come before the end.
    """

    def rule(state: State, candidate: int) -> State | None:
        if state == -1:
            return None if candidate == end else -1
        if candidate == end:
            return -1
        return state + 1 if state < tokens and candidate != never else None

    return rule

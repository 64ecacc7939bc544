"""What a reply must look like, token by token: thinking within a budget, forced tokens, a grammar, free text.

Owns: the stages of a reply and ReplyRules, the library's LogitConstraint made of them. Knows no request and no
tokenizer. Invariant: a stage never changes; a token leads to another stage, so that looking ahead along a proposal
costs nothing to undo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Vocabulary:
    """How wide a mask is, and which tokens end a reply."""

    size: int
    stops: frozenset[int]

    def none(self) -> np.ndarray:
        return np.zeros(self.size, dtype=np.bool_)

    def every(self) -> np.ndarray:
        return np.ones(self.size, dtype=np.bool_)

    def only(self, *tokens: int) -> np.ndarray:
        mask = self.none()
        mask[list(tokens)] = True
        return mask

    def without_stops(self, mask: np.ndarray) -> np.ndarray:
        mask[[token for token in self.stops if token < self.size]] = False
        return mask


class Stage(Protocol):
    """A point in a reply."""

    def mask(self) -> np.ndarray:
        """bool [V]: what may come next; the caller may write to it."""

    def after(self, token: int) -> Stage:
        """The point after a token that `mask` allows."""


class Matcher(Protocol):
    """A grammar in the middle of a text; `llguidance.LLMatcher` is one."""

    def deep_copy(self) -> Matcher: ...

    def compute_bitmask(self) -> bytes: ...

    def consume_token(self, token: int) -> bool: ...

    def is_accepting(self) -> bool: ...


@dataclass(frozen=True)
class Anything:
    """Free text; after the tokens of `trigger`, where there is one, comes what `then` makes."""

    vocabulary: Vocabulary
    trigger: tuple[int, ...] = ()
    then: Callable[[], Stage] | None = None
    tail: tuple[int, ...] = ()  # the last tokens, as many as the trigger has

    def mask(self) -> np.ndarray:
        return self.vocabulary.every()

    def after(self, token: int) -> Stage:
        if self.then is None:
            return self
        tail = (*self.tail, token)[-len(self.trigger) :]
        return self.then() if tail == self.trigger else replace(self, tail=tail)


@dataclass(frozen=True)
class Ending:
    """Nothing but the end of the reply."""

    vocabulary: Vocabulary

    def mask(self) -> np.ndarray:
        return self.vocabulary.only(*(token for token in self.vocabulary.stops if token < self.vocabulary.size))

    def after(self, token: int) -> Stage:
        return self


@dataclass(frozen=True)
class Forced:
    """These very tokens, then the next stage."""

    vocabulary: Vocabulary
    tokens: tuple[int, ...]
    then: Stage

    def mask(self) -> np.ndarray:
        return self.vocabulary.only(self.tokens[0]) if self.tokens else self.then.mask()

    def after(self, token: int) -> Stage:
        if not self.tokens:
            return self.then.after(token)
        return replace(self, tokens=self.tokens[1:]) if len(self.tokens) > 1 else self.then


@dataclass(frozen=True)
class Grammar:
    """Text of a grammar, then the next stage, as soon as the text may end."""

    vocabulary: Vocabulary
    matcher: Matcher
    then: Stage

    def mask(self) -> np.ndarray:
        mask = self._own_mask()
        return mask | self.then.mask() if self.matcher.is_accepting() else mask

    def after(self, token: int) -> Stage:
        # Where a token both goes on and ends the text, it goes on: the longest match, as grammars are read.
        if self._own_mask()[token]:
            matcher = self.matcher.deep_copy()
            matcher.consume_token(token)
            return replace(self, matcher=matcher)
        return self.then.after(token)

    def _own_mask(self) -> np.ndarray:
        bits = np.unpackbits(np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        mask = self.vocabulary.none()
        known = min(len(bits), self.vocabulary.size)
        mask[:known] = bits[:known]
        return self.vocabulary.without_stops(mask)


@dataclass(frozen=True)
class ThinkingMarks:
    """The tokens around a model's thinking."""

    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True)
class BeforeThinking:
    """The beginning of a reply that may think first, or answer at once; or that may call a tool, or answer.

    `layout`: tokens after which both are still possible, such as line ends.
    """

    vocabulary: Vocabulary
    marks: ThinkingMarks
    inside: Stage
    answer: Stage
    layout: frozenset[int] = frozenset()

    def mask(self) -> np.ndarray:
        return self.answer.mask() | self.vocabulary.only(self.marks.start[0])

    def after(self, token: int) -> Stage:
        if token == self.marks.start[0]:
            return Forced(self.vocabulary, self.marks.start, self.inside).after(token)
        answer = self.answer.after(token)
        return replace(self, answer=answer) if token in self.layout else answer


@dataclass(frozen=True)
class Thinking:
    """Thinking under way: at most `budget` tokens, then its end mark, then the answer.

    `may_stop`: whether the reply may end here; not when the answer has a form to keep.
    """

    vocabulary: Vocabulary
    marks: ThinkingMarks
    answer: Stage
    budget: int | None = None
    may_stop: bool = True
    spent: int = 0
    tail: tuple[int, ...] = field(default=())

    def mask(self) -> np.ndarray:
        begun = self._end_begun()
        if self.budget is not None and self.spent - begun >= self.budget:
            return self.vocabulary.only(self.marks.end[begun])
        mask = self.vocabulary.every()
        return mask if self.may_stop else self.vocabulary.without_stops(mask)

    def after(self, token: int) -> Stage:
        tail = (*self.tail, token)[-len(self.marks.end) :]
        if tail == self.marks.end:
            return self.answer
        return replace(self, spent=self.spent + 1, tail=tail)

    def _end_begun(self) -> int:
        """How many tokens of the end mark the last ones are."""
        for size in range(min(len(self.marks.end) - 1, len(self.tail)), 0, -1):
            if self.tail[-size:] == self.marks.end[:size]:
                return size
        return 0


class ReplyRules:
    """The library's LogitConstraint for one reply."""

    def __init__(self, first: Stage):
        self._stage = first

    def masks(self, proposal: Sequence[int]) -> np.ndarray:
        stage, rows = self._stage, [self._stage.mask()]
        for number, token in enumerate(proposal):
            if not rows[-1][token]:
                rows += [np.zeros_like(rows[0])] * (len(proposal) - number)
                break
            stage = stage.after(token)
            rows.append(stage.mask())
        return np.stack(rows)

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._stage = self._stage.after(token)

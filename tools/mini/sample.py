"""What a family of tasks produces: conversations whose answers can be checked."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """How an answer is judged; `kind` names a function in `check.py`, `data` is what it needs."""

    kind: str
    data: Any


@dataclass(frozen=True)
class Turn:
    """One question and its answer.

    `thought` is what stands between the think marks when thinking is on, followed by `brief`; `answer` is the whole
    reply when thinking is off.
    """

    user: str
    answer: str
    thought: str
    check: Check
    brief: str | None = None


@dataclass(frozen=True)
class Sample:
    """A conversation of one family."""

    family: str
    turns: tuple[Turn, ...]
    system: str | None = None
    tools: tuple[dict[str, Any], ...] = field(default=())


Family = Callable[[random.Random], Sample]


def single(family: str, user: str, answer: str, thought: str, check: Check, brief: str | None = None) -> Sample:
    """A conversation of one turn."""
    return Sample(family, (Turn(user, answer, thought, check, brief),))


def held_out(user: str) -> bool:
    """Whether a question is kept away from training: one in forty, by its text alone."""
    return hashlib.sha256(user.encode()).digest()[0] % 40 == 7


def polite(rng: random.Random, request: str) -> str:
    """The request as different people would type it."""
    start = rng.choice(("", "", "", "", "Please ", "Can you ", "Could you ", "Hi! ", "Hey, ", "I need help: "))
    body = request
    if start in ("Please ", "Can you ", "Could you ", "Hey, "):
        body = request[0].lower() + request[1:]
    if start.startswith(("Can", "Could")):
        body = body.rstrip(".") + "?"
    end = rng.choice(("", "", "", "", " Thanks!", " Thank you."))
    return start + body + end

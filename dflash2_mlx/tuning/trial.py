"""What `tune` races: the ways in which one operation can be done at one shape.

Owns: the description of a race, and the one chain by which all of them are timed: each call waits for the one before,
and sets of inputs take turns, so that what a call reads comes from memory as it does in a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import mlx.core as mx

from ..device.timing import Chain
from ..kernels.dispatch import METAL, MLX, KernelMismatch, check_equal, dispatcher

ROTATED_BYTES = 128_000_000  # more than any cache between GPU and memory holds


MOST_SETS = 32


Inputs = tuple[Any, ...]  # of one call: arrays, or what holds some


Outputs = tuple[mx.array, ...]


Way = Callable[..., Outputs]


Sets = Callable[[], Sequence[Inputs]]  # the sets of inputs that take turns; made when a race first asks for them


Feed = Callable[[Inputs, mx.array], Inputs]  # inputs of a call, once what the one before it returned is among them


@dataclass(frozen=True)
class Contest:
    """One race.

    Attributes:
        kernel: name of the kernel, one of `dispatch.KERNELS`.
        key: shapes, types and rows in words, for instance "5120x17408 4bit g64 bfloat16 rows 8"; a winner
            is kept under it.
        stock: the contender that is MLX's own operation; the numbers of the others are held against it.
        chains: every contender.
        check: runs one contender and raises `KernelMismatch`, or what Metal raises, where its numbers are not right.
        bytes: what its inputs take beside the model while it is run.
    """

    kernel: str
    key: str
    stock: str
    chains: Mapping[str, Chain]
    check: Callable[[str], None]
    bytes: int = 0


def wait_for(inputs: Inputs, last: mx.array) -> Inputs:
    """The same numbers, of which nothing can be read before `last` is there."""
    first, *rest = inputs
    # By its numbers, not by `mx.depends`: a GPU waits for what it reads, and lets the rest overlap.
    return (first + (last.reshape(-1)[:1] * 0).astype(first.dtype), *rest)


def chain_of(way: Way, sets: Sets, feed: Feed = wait_for) -> Chain:
    """Calls of one way of doing it, one after another."""
    return partial(_run, way, sets, feed)


def _run(way: Way, sets: Sets, feed: Feed, calls: int) -> mx.array:
    turns = sets()
    last = way(*turns[0])[0]
    for number in range(1, calls):
        last = way(*feed(turns[number % len(turns)], last))[0]
    return last


def sets_needed(each: int) -> int:
    """How many sets of `each` bytes take turns, so that a set has left every cache when its turn comes again."""
    return max(1, min(MOST_SETS, -(-ROTATED_BYTES // max(1, each))))


class Case:
    """One kernel beside its twin at one shape.

    Args:
        make: the inputs, from a random key; called once for each set, when the case is first run.
        kernel, twin: both ways; what they return is compared part by part.
        tolerance: of the comparison; 0 for ids, which must be equal.
    """

    SETS = 3  # activations are small, and in a pass they do come from a cache

    def __init__(
        self, name: str, key: str, make: Callable[[mx.array], tuple[mx.array, ...]], kernel: Way, twin: Way,
        tolerance: float,
    ):  # fmt: skip
        self.name, self.key, self.kernel, self.twin, self.tolerance = name, key, kernel, twin, tolerance
        self._make = make
        self.inputs: Sets = cache(self._made)

    def _made(self) -> Sequence[Inputs]:
        sets = [self._make(key) for key in mx.random.split(mx.random.key(0), self.SETS)]
        mx.eval(sets)
        return sets

    def contest(self) -> Contest:
        """The race of the two; the twin is what MLX itself offers."""
        ways = {MLX: self.twin, METAL: self.kernel}
        size = self.SETS * sum(array.nbytes for array in self._make(mx.random.key(0)))  # nothing is evaluated for that
        chains = {name: chain_of(way, self.inputs) for name, way in ways.items()}
        return Contest(self.name, self.key, MLX, chains, self._check, size)

    def _check(self, contender: str) -> None:
        if contender == MLX:
            return
        inputs = self.inputs()[0]
        for got, want in zip(self.kernel(*inputs), self.twin(*inputs), strict=True):
            if not self.tolerance and not mx.array_equal(got, want).item():
                raise KernelMismatch(f"{self.name}: other numbers than the twin's")
            check_equal(got, want, tolerance=self.tolerance, what=self.name)
        if not dispatcher().wants_metal(self.name):  # then the twin ran in its place
            raise KernelMismatch(does_not_run(self.name))


def does_not_run(what: str) -> str:
    """Why a contender is out that passed for its twin."""
    notes = "; ".join(dispatcher().notes())
    return f"{what}: does not run here{f' ({notes})' if notes else ''}"

"""What `tune` races: the ways in which one operation can be done at one shape.

Owns: the description of a race. The kernel modules make contests, `tune` runs them, the dispatcher keeps the winners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

Chain = Callable[[int], mx.array]  # builds n calls, each waiting for the one before; its result depends on the last


@dataclass(frozen=True)
class Contest:
    """One race.

    Attributes:
        kernel: name of the kernel, one of `_dispatch.KERNELS`.
        key: shapes, types and rows in words, for instance "5120x17408 4bit g64 bfloat16 rows 8"; a winner
            is kept under it.
        stock: the contender that is MLX's own operation; the numbers of the others are held against it.
        chains: every contender. Weights rotate from call to call, so that none of them stays in a cache.
        check: runs one contender and raises `KernelMismatch`, or what Metal raises, where its numbers are not right.
    """

    kernel: str
    key: str
    stock: str
    chains: Mapping[str, Chain]
    check: Callable[[str], None]

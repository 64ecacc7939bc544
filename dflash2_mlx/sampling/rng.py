"""Randomness keyed by (seed, absolute position, purpose).

Owns: how every random number of a session is made. A draw depends on nothing but its key, so the same
seed gives the same numbers in any batch, at any width and after any rollback, and keys are built on the
device, where positions live. Knows nothing of logits. Invariant: no two purposes share a stream, so the
noise that drew a proposal is never used again to accept it or to draw its replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import mlx.core as mx


class Purpose(IntEnum):
    """What a random number decides; each has its own stream."""

    TARGET = 0  # the target's own draw (plain decoding, and both sides of coupled mode)
    DRAFT = 1  # the drafter's draw in rejection mode
    ACCEPT = 2  # the acceptance test
    RESIDUAL = 3  # the replacement or bonus draw in rejection mode


def base_keys(seed: int) -> mx.array:
    """One key per purpose for this seed: uint32 [4, 2]."""
    return mx.random.split(mx.random.key(seed), len(Purpose))


def uniform(keys: mx.array, purpose: Purpose, positions: mx.array, count: int) -> mx.array:
    """`count` uniforms in [0, 1) for each position.

    Shapes:
        keys:      [4, 2] uint32, from `base_keys`
        positions: [...]  int32, absolute positions of the tokens being decided
    Returns:
        [..., count] float32
    """
    shape = positions.shape
    at = positions.reshape(-1).astype(mx.uint32)
    salted = mx.stack([mx.zeros_like(at), at], axis=-1) ^ keys[purpose]
    draw = mx.vmap(lambda key: mx.random.uniform(shape=(count,), key=key))
    return draw(salted).reshape(*shape, count)


def gumbel(keys: mx.array, purpose: Purpose, positions: mx.array, count: int) -> mx.array:
    """Standard Gumbel noise, arguments and shape as of `uniform`; argmax(log p + noise) draws from p."""
    # The largest numbers decide, and float32 uniforms are 256 times finer near 0 than near 1: so log1p, not log.
    smallest = 1e-10  # keeps log(0) out; below the smallest uniform that is not 0 (2**-32)
    return -mx.log(mx.maximum(-mx.log1p(-uniform(keys, purpose, positions, count)), smallest))


@dataclass(frozen=True)
class SlotNoise:
    """Noise that belongs to places in a list of candidates, whatever stands there: known before the candidates are."""

    draw: Callable[[tuple[int, ...]], mx.array]

    def __call__(self, candidates: mx.array) -> mx.array:
        return self.draw(candidates.shape)

"""The walk through the candidates: one token per position, each chosen given the one before.

Owns: scores, the walk and the probabilities of the visited rows. Knows nothing of models. Only the
pure-MLX form exists so far: the scores of all neighbouring candidate pairs are computed at once, so only
an index chase of N small steps is sequential, and it needs no host.

Reference: DFlash 2 specification 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Walk:
    """Shapes: tokens [B, N] int32; q [B, N, K] float32 of the visited rows, None when greedy."""

    tokens: mx.array
    q: mx.array | None


def edge_scores(left: mx.array, gate: mx.array, right: mx.array) -> mx.array:
    """`sum_r left[a, r] * gate[r] * right[b, r]` for all pairs.

    Shapes:
        left: [B, N, A, R], gate: [B, N, R], right: [B, N, K, R]; computed in float32
    Returns:
        [B, N, A, K] float32
    """
    gated = left.astype(mx.float32) * gate.astype(mx.float32)[:, :, None]
    return gated @ right.astype(mx.float32).swapaxes(-1, -2)


def select_walk(
    candidates: mx.array,
    unary: mx.array,
    edges: mx.array | None,
    *,
    temperature: float = 0.0,
    noise: mx.array | None = None,
) -> Walk:
    """Walk left to right and keep one candidate per position.

    Shapes:
        candidates: [B, N, K]    int32, in candidate order (equal scores: the first wins)
        unary:      [B, N, K]    float32 logits of the candidates
        edges:      [B, N, K, K] float32, predecessor -> successor; row 0 of position 0 is the anchor's.
                                 None for DFlash v1, which has no selector
        noise:      [B, N, K]    float32 standard Gumbel; given exactly when temperature > 0
    """
    if edges is None:  # every predecessor scores alike
        edges = mx.zeros((*candidates.shape, 1), dtype=mx.float32).swapaxes(-1, -2)
    # An array: a Python number would be baked into the graph, and each temperature compiled anew.
    tokens, *q = _walk(candidates, unary, edges, mx.array(temperature, dtype=mx.float32), noise)
    return Walk(tokens, q[0] if q else None)


@mx.compile
def _walk(
    candidates: mx.array, unary: mx.array, edges: mx.array, temperature: mx.array, noise: mx.array | None
) -> tuple[mx.array, ...]:
    scores = unary[:, :, None] + edges  # [B, N, A, K]; A = 1 where predecessors do not matter
    if noise is None:
        best = mx.argmax(scores, axis=-1)
    else:
        scores = scores / temperature
        best = mx.argmax(scores + noise[:, :, None], axis=-1)
    best = best.astype(mx.int32)  # [B, N, A]: the successor each predecessor would pick

    length = candidates.shape[1]
    previous = mx.zeros_like(best[:, 0, :1])  # [B, 1], index of the predecessor among its candidates
    picks, visited = [], []
    for position in range(length):
        row = previous if best.shape[2] > 1 else mx.zeros_like(previous)
        visited.append(row)
        previous = mx.take_along_axis(best[:, position], row, axis=-1)
        picks.append(previous)
    tokens = mx.take_along_axis(candidates, mx.stack(picks, axis=1), axis=-1)[..., 0]
    if noise is None:
        return (tokens,)
    rows = mx.stack(visited, axis=1)[..., None]  # [B, N, 1, 1]
    return tokens, mx.softmax(mx.take_along_axis(scores, rows, axis=2)[:, :, 0], axis=-1)

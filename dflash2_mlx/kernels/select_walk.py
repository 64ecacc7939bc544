"""The walk through the candidates: one token per position, each chosen given the one before.

Owns: scores, the walk and the probabilities of the visited rows, and the choice between the pure-MLX twin and
metal/select_walk.metal. Knows nothing of models. The twin computes the scores of all neighbouring candidate
pairs at once, so only an index chase of N small steps is sequential; the kernel scores the visited rows only.
Neither needs the host.

Reference: docs/dflash2.md 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from .call import ROWS_STEP, KernelCall
from .dispatch import KernelMismatch, check_equal, dispatcher, race_key
from .top_candidates import MAX_CANDIDATES, CandidateLists, check_candidates

NAME = "select_walk"


@dataclass(frozen=True)
class Selector:
    """What scores candidates: two codebooks [C, R], and what the checkpoint does to logits."""

    predecessor: mx.array
    successor: mx.array
    multiplier: float = 1.0
    cap: float | None = None

    def scaled(self, logits: mx.array) -> mx.array:
        """Logits after the multiplier, then the cap, in float32; both keep their order."""
        return scale_logits(logits, self.multiplier, self.cap)


@dataclass(frozen=True)
class Selection:
    """Shapes: tokens [B, N] int32; candidates [B, N, K] int32; unary [B, N, K] float32; q as in `Walk`."""

    tokens: mx.array
    candidates: mx.array
    unary: mx.array
    q: mx.array | None


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


@mx.compile
def neighbour_edges(
    candidates: mx.array, gate: mx.array, anchor: mx.array, predecessor: mx.array, successor: mx.array
) -> mx.array:
    """Scores of every neighbouring pair of candidates.

    Shapes:
        candidates: [B, N, K] int32; gate: [B, N, R]; predecessor, successor: [C, R]
        anchor:     [B] int32, predecessor of position 0; beyond the codebook its last row counts
    Returns:
        [B, N, K, K] float32, edges[:, n, a, b] from candidate a of position n-1 to candidate b of n;
        at position 0 every a is the anchor
    """
    # The target may have more tokens than the codebook; MLX does not check the bounds of a gather.
    anchor = mx.minimum(anchor, predecessor.shape[0] - 1)
    first = mx.broadcast_to(anchor[:, None, None], (candidates.shape[0], 1, candidates.shape[2]))
    left = mx.concatenate([first, candidates[:, :-1]], axis=1)
    return edge_scores(predecessor[left], gate, successor[candidates])


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


def scale_logits(logits: mx.array, multiplier: float, cap: float | None) -> mx.array:
    """`cap * tanh(multiplier * logits / cap)` in float32, each step only where there is one."""
    logits = logits.astype(mx.float32)
    if multiplier != 1.0:
        logits = logits * multiplier
    return logits if cap is None else cap * mx.tanh(logits / cap)


def select(
    lists: CandidateLists,
    gate: mx.array,
    anchor: mx.array,
    selector: Selector,
    *,
    temperature: float = 0.0,
    noise: mx.array | None = None,
) -> Selection:
    """Merge the lists of each position to K candidates, and walk through them from the anchor.

    Shapes:
        gate:   [B, N, R] projected hidden rows
        anchor: [B] int32, may lie beyond the codebook: then the codebook's last row counts
        noise:  [B, N, K] float32 standard Gumbel of the merged candidates; given exactly when temperature > 0
    """
    k = lists.ids.shape[-1]
    kernels = dispatcher()
    if k <= MAX_CANDIDATES and kernels.chooses_metal(NAME, key_of(lists, gate, noise)):
        inputs = _inputs(lists, gate, anchor, selector, temperature, noise)
        call = select_walk_call(lists.ids.shape, gate.shape[-1], noise is not None)
        if kernels.passes(call, inputs, lambda: _self_test(call, inputs, noise is not None)):
            tokens, candidates, unary, q = kernels.run(call, inputs)
            return Selection(tokens, candidates, unary, None if noise is None else q)
    return select_twin(lists, gate, anchor, selector, temperature, noise)


def key_of(lists: CandidateLists, gate: mx.array, noise: mx.array | None) -> str:
    """Name of this shape in races."""
    how = "greedy" if noise is None else "sampled"
    return race_key((*lists.ids.shape[1:], gate.shape[-1]), gate.dtype, how)


def select_twin(
    lists: CandidateLists,
    gate: mx.array,
    anchor: mx.array,
    selector: Selector,
    temperature: float = 0.0,
    noise: mx.array | None = None,
) -> Selection:
    """The twin of `select`, shapes as there."""
    merged = lists.merged()
    candidates, unary = merged.ids[:, :, 0], selector.scaled(merged.values[:, :, 0])
    edges = neighbour_edges(candidates, gate, anchor, selector.predecessor, selector.successor)
    walk = select_walk(candidates, unary, edges, temperature=temperature, noise=noise)
    return Selection(walk.tokens, candidates, unary, walk.q)


def _inputs(
    lists: CandidateLists,
    gate: mx.array,
    anchor: mx.array,
    selector: Selector,
    temperature: float,
    noise: mx.array | None,
) -> tuple[mx.array, ...]:
    settings = mx.array([temperature, selector.multiplier, selector.cap or 0.0], dtype=mx.float32)
    unused = mx.zeros((1, 1, 8), dtype=mx.float32)  # fewer than eight numbers would be another kind of input
    return (
        lists.values,
        lists.ids,
        gate,
        selector.predecessor,
        selector.successor,
        anchor,
        settings,
        unused if noise is None else noise,
    )


def _self_test(call: KernelCall, inputs: Sequence[mx.array], sampled: bool) -> None:
    _, ids, gate, predecessor, successor, anchor, _, noise = inputs
    keys = mx.random.split(mx.random.key(0), 5)
    batch, positions, blocks, k = ids.shape
    rows = predecessor.shape[0]
    own = mx.arange(blocks * k, dtype=mx.int32) * (rows // (blocks * k))
    lists = CandidateLists(
        -mx.sort(4 * mx.random.normal(ids.shape, key=keys[0]), axis=-1),
        mx.broadcast_to(own.reshape(blocks, k), (batch, positions, blocks, k)),
    )
    left, right = (
        (mx.random.normal(book.shape, key=key) / 4).astype(book.dtype)
        for book, key in zip((predecessor, successor), keys[1:3], strict=True)
    )
    selector = Selector(left, right, 0.5, 20.0)
    gates = mx.random.normal(gate.shape, key=keys[3]).astype(gate.dtype)
    drawn = mx.random.gumbel(noise.shape, key=keys[4]) if sampled else None
    temperature = 0.7 if sampled else 0.0
    start = mx.full(anchor.shape, rows // 2, dtype=mx.int32)
    got = dispatcher().run(call, _inputs(lists, gates, start, selector, temperature, drawn))
    want = select_twin(lists, gates, start, selector, temperature, drawn)
    for mine, theirs in zip(got[:2], (want.tokens, want.candidates), strict=True):
        if not mx.array_equal(mine, theirs).item():
            raise KernelMismatch(f"{NAME}: other tokens or candidates than the twin's")
    check_equal(got[2], want.unary, tolerance=1e-3, what=f"{NAME} logits")
    if want.q is not None:
        check_equal(got[3], want.q, tolerance=1e-3, what=f"{NAME} q")


WALK_SIMDGROUPS = 16


@cache
def select_walk_call(shape: tuple[int, int, int, int], rank: int, sampled: bool) -> KernelCall:
    """Merge the lists of each position and walk from the anchor.

    Shapes:
        values [B, N, blocks, K] float32, ids [B, N, blocks, K] int32, gate [B, N, R], predecessor, successor [C, R],
        anchor [B] int32, settings [3] float32 (temperature, logit multiplier, soft cap or 0),
        noise [B, N, K] float32 (any float32 array where the walk is greedy)
        -> tokens [B, N] int32, candidates [B, N, K] int32, unary [B, N, K] float32, q [B, N, K] float32
    Args:
        shape: of the lists. At least K ids of each position's lists must be there.
    """
    batch, positions, blocks, k = shape
    check_candidates(k, blocks * k)
    simdgroups = min(WALK_SIMDGROUPS, k)
    template = (
        ("K", k),
        ("BLOCKS", blocks),
        ("RANK", rank),
        ("SAMPLED", sampled),
        ("ROWS", -(-positions // ROWS_STEP) * ROWS_STEP),
        ("SIMDGROUPS", simdgroups),
    )
    each = (batch, positions, k)
    return KernelCall(
        name="select_walk",
        inputs=("values", "ids", "gate", "predecessor", "successor", "anchor", "settings", "noise"),
        outputs=("tokens", "candidates", "unary", "q"),
        template=template,
        grid=(32 * simdgroups, batch, 1),
        threadgroup=(32 * simdgroups, 1, 1),
        output_shapes=((batch, positions), each, each, each),
        output_dtypes=(mx.int32, mx.int32, mx.float32, mx.float32),
    )

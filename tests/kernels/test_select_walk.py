"""`select_walk` against the scalar walk: greedy and sampled, q of the visited rows, ties (3.9; T2, CK-7b)."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.select_walk import Walk, edge_scores, neighbour_edges, select_walk
from dflash2_mlx.kernels.top_candidates import top_candidates
from tests.reference import selector as reference


@dataclass
class Inputs:
    """One batch: logits [B, N, V], gates [B, N, R], codebooks [V, R], anchors [B], Gumbel numbers [B, N, V]."""

    logits: np.ndarray
    gates: np.ndarray
    predecessor: np.ndarray
    successor: np.ndarray
    anchors: np.ndarray
    gumbels: np.ndarray

    def ours(self, top_k: int, temperature: float = 0.0) -> tuple[Walk, mx.array]:
        candidates, unary = top_candidates(mx.array(self.logits, dtype=mx.float32), top_k)
        gates, *books = (mx.array(x, dtype=mx.float32) for x in (self.gates, self.predecessor, self.successor))
        edges = neighbour_edges(candidates, gates, mx.array(self.anchors), *books)
        noise = None
        if temperature > 0:
            noise = mx.take_along_axis(mx.array(self.gumbels, dtype=mx.float32), candidates, axis=-1)
        return select_walk(candidates, unary, edges, temperature=temperature, noise=noise), candidates

    def theirs(self, row: int, top_k: int, temperature: float = 0.0) -> reference.Walk:
        return reference.walk(
            self.logits[row],
            self.gates[row],
            self.predecessor,
            self.successor,
            int(self.anchors[row]),
            top_k,
            temperature,
            gumbels=self.gumbels[row] if temperature > 0 else None,
        )


def random_inputs(batch: int, rows: int, vocab: int, rank: int, seed: int, *, whole: bool = False) -> Inputs:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        values = rng.normal(size=shape)
        return np.round(values) if whole else values

    return Inputs(
        2 * draw(batch, rows, vocab),
        draw(batch, rows, rank),
        draw(vocab, rank) / (1 if whole else 2),
        draw(vocab, rank) / (1 if whole else 2),
        rng.integers(0, vocab, size=batch).astype(np.int32),
        rng.gumbel(size=(batch, rows, vocab)),
    )


SHAPES = [(3, 7, 30, 20, 5), (1, 1, 9, 2, 3), (2, 15, 200, 20, 16), (2, 4, 6, 7, 6), (1, 7, 40, 20, 1)]


@pytest.mark.parametrize(("batch", "rows", "vocab", "rank", "top_k"), SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.7])
def test_equals_the_scalar_walk(batch, rows, vocab, rank, top_k, temperature):
    inputs = random_inputs(batch, rows, vocab, rank, seed=rows)
    got, candidates = inputs.ours(top_k, temperature)
    assert got.tokens.dtype == mx.int32 and got.tokens.shape == (batch, rows)
    for row in range(batch):
        want = inputs.theirs(row, top_k, temperature)
        np.testing.assert_array_equal(candidates[row], want.candidates)
        np.testing.assert_array_equal(got.tokens[row], want.tokens)
        if temperature:
            assert got.q.dtype == mx.float32 and got.q.shape == candidates.shape
            np.testing.assert_allclose(got.q[row], want.q, rtol=2e-5, atol=1e-6)
    assert (got.q is None) == (temperature == 0)


@pytest.mark.parametrize("seed", range(12))
def test_equal_scores_go_to_the_candidate_listed_first(seed):
    # Whole numbers everywhere: exact in float32, and full of ties.
    inputs = random_inputs(2, 7, 30, 3, seed, whole=True)
    got, _ = inputs.ours(5)
    for row in range(2):
        np.testing.assert_array_equal(got.tokens[row], inputs.theirs(row, 5).tokens)


def test_equal_logits_and_scores_go_to_the_lower_id():
    inputs = random_inputs(1, 3, 9, 2, 0)
    inputs.logits[:] = 0.5
    inputs.successor[:] = 0
    assert inputs.ours(4)[0].tokens.tolist() == [[0, 0, 0]]


def test_the_walk_takes_each_step_for_itself():
    # Best total path: 1 then 0 (3 + 9). Best first step: 0 (4), whose best next is worth 1.
    candidates = mx.array([[[0, 1], [0, 1]]], dtype=mx.int32)
    edges = mx.array([[[[0.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [9.0, 0.0]]]])
    walk = select_walk(candidates, mx.array([[[4.0, 3.0], [0.0, 0.0]]]), edges)
    assert walk.tokens.tolist() == [[0, 1]]


# T2.

T2 = Inputs(
    logits=np.array([[[2, 1.5, 0, -1, 1, -2], [0.5, 3, 2.5, 2, -1, 0]]], dtype=float),
    gates=np.array([[[1, 0.5], [0.5, 1]]]),
    predecessor=np.array([[1, 0], [0, 1], [1, 1], [2, 0], [0, 2], [1, -1]], dtype=float),
    successor=np.array([[0, 1], [1, 0], [1, -1], [0, 2], [2, 1], [1, 1]], dtype=float),
    anchors=np.array([3], dtype=np.int32),
    gumbels=np.zeros((1, 2, 6)),
)


def test_t2_greedy():
    walk, candidates = T2.ours(3)
    assert candidates.tolist() == [[[0, 1, 4], [1, 2, 3]]]
    assert walk.tokens.tolist() == [[4, 3]]


@pytest.mark.parametrize(
    ("temperature", "first"), [(1.0, [0.039113, 0.175290, 0.785597]), (0.5, [0.002356, 0.047314, 0.950330])]
)
def test_t2_q(temperature, first):
    walk, _ = T2.ours(3, temperature)
    np.testing.assert_allclose(walk.q[0, 0], first, atol=5e-7)


def test_t2_scores_after_every_predecessor():
    right = mx.array(T2.successor[[1, 2, 3]])[None, None]
    left = mx.array(T2.predecessor)[None, None]
    edges = edge_scores(left, mx.array(T2.gates[:, 1:]), right)[0, 0]
    unary = mx.array([3.0, 2.5, 2.0])
    want = [[3.5, 3, 2], [3, 1.5, 4], [3.5, 2, 4], [4, 3.5, 2], [3, 0.5, 6], [3.5, 4, 0]]
    np.testing.assert_allclose(unary + edges, want, rtol=0, atol=1e-6)


def test_q_is_that_of_the_token_visited_not_of_the_best():
    # Noise that forces the walk away from the best path: q must follow.
    inputs = random_inputs(1, 4, 12, 5, 3)
    inputs.gumbels[:] = 0
    for token in range(12):
        inputs.gumbels[0, :, token] = 1000.0 * ((token * 7) % 12)
    got, _ = inputs.ours(4, 1.0)
    want = inputs.theirs(0, 4, 1.0)
    assert got.tokens[0].tolist() == want.tokens.tolist() != inputs.theirs(0, 4).tokens.tolist()
    np.testing.assert_allclose(got.q[0], want.q, rtol=2e-5, atol=1e-6)


# Without a selector (DFlash v1, and T5).


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_edges_is_every_row_for_itself(temperature):
    inputs = random_inputs(2, 5, 30, 4, 9)
    candidates, unary = top_candidates(mx.array(inputs.logits, dtype=mx.float32), 6)
    noise = mx.array(inputs.gumbels[:, :, :6], dtype=mx.float32) if temperature else None
    without = select_walk(candidates, unary, None, temperature=temperature, noise=noise)
    zero = select_walk(candidates, unary, mx.zeros((2, 5, 6, 6)), temperature=temperature, noise=noise)
    np.testing.assert_array_equal(without.tokens, zero.tokens)
    if temperature:
        np.testing.assert_array_equal(without.q, zero.q)
        np.testing.assert_allclose(without.q, mx.softmax(unary / temperature, axis=-1), rtol=2e-6)
    else:
        np.testing.assert_array_equal(without.tokens, mx.argmax(mx.array(inputs.logits), axis=-1))


def test_t5_a_zero_successor_codebook_leaves_the_largest_logit():
    inputs = random_inputs(2, 7, 30, 20, 4)
    inputs.successor[:] = 0
    np.testing.assert_array_equal(inputs.ours(5)[0].tokens, inputs.logits.argmax(-1))


def test_order_of_candidates_does_not_matter():
    inputs = random_inputs(2, 6, 30, 20, 8)
    candidates, unary = top_candidates(mx.array(inputs.logits, dtype=mx.float32), 5)
    edges = mx.random.normal((2, 6, 5, 5), key=mx.random.key(1))
    edges = edges.at[:, 0].add(edges[:, 0, :1] - edges[:, 0])  # one anchor: its rows are equal
    order = mx.array([3, 0, 4, 1, 2])
    shuffled = select_walk(candidates[..., order], unary[..., order], edges[..., order][:, :, order])
    np.testing.assert_array_equal(shuffled.tokens, select_walk(candidates, unary, edges).tokens)


def test_a_batch_is_its_rows():
    inputs = random_inputs(4, 7, 50, 20, 11)
    together, _ = inputs.ours(5, 0.9)
    for row in range(4):
        one = Inputs(
            *(a[row : row + 1] for a in (inputs.logits, inputs.gates)),
            inputs.predecessor,
            inputs.successor,
            inputs.anchors[row : row + 1],
            inputs.gumbels[row : row + 1],
        )
        alone, _ = one.ours(5, 0.9)
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
        np.testing.assert_allclose(together.q[row], alone.q[0], rtol=1e-6)


def test_scores_are_float32_whatever_the_codebooks():
    shapes = [(1, 3, 4, 20), (1, 3, 20), (1, 3, 4, 20)]
    factors = [mx.random.normal(s, key=mx.random.key(i)).astype(mx.bfloat16) for i, s in enumerate(shapes)]
    got = edge_scores(*factors)
    assert got.dtype == mx.float32
    exact = [np.array(array.astype(mx.float32), dtype=np.float64) for array in factors]
    np.testing.assert_allclose(got, np.einsum("bnar,bnr,bnkr->bnak", *exact), rtol=1e-5, atol=1e-5)

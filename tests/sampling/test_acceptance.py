"""The acceptance rules against the scalar reference, and the specification's numbers (4.4, 4.5; T3)."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from dflash2_mlx.sampling.acceptance import Acceptance, accept_greedy, accept_sampled
from dflash2_mlx.sampling.rng import Purpose, base_keys, gumbel, uniform
from tests.reference import acceptance as reference

V, N, K = 9, 4, 3


def test_greedy_counts_the_leading_matches():
    proposal = np.array([[1, 2, 3, 4]] * 16)
    choices = np.array(
        [
            [d if keep else 0 for d, keep in zip((1, 2, 3, 4), flags, strict=True)] + [8]
            for flags in itertools.product([True, False], repeat=4)
        ]
    )
    got = accept_greedy(mx.array(proposal), mx.array(choices))
    for row in range(16):
        want = reference.accept_greedy(proposal[row], choices[row])
        count = int(got.num_accepted[row])
        assert count == want.num_accepted
        assert got.tokens[row].tolist()[: count + 1] == [*proposal[row][:count], want.bonus]


def random_round(batch: int, seed: int) -> tuple[np.ndarray, ...]:
    """Laws p [B, N + 1, V] (some entries cut to zero), candidates and q [B, N, K], proposals drawn from q."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(V), size=(batch, N + 1)) * (rng.random((batch, N + 1, V)) > 0.3)
    p[..., 0] += 1e-3
    p /= p.sum(axis=-1, keepdims=True)
    candidates = np.argsort(rng.random((batch, N, V)), axis=-1)[..., :K]
    q = rng.dirichlet(np.ones(K), size=(batch, N))
    picks = (rng.random((batch, N, 1)) > q.cumsum(axis=-1)[..., :-1]).sum(axis=-1)
    proposal = np.take_along_axis(candidates, picks[..., None], axis=-1)[..., 0]
    return proposal, candidates, q, p, rng.random((batch, N)), rng.gumbel(size=(batch, N + 1, V))


def ours(proposal, candidates, q, p, uniforms, noise) -> Acceptance:
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    return accept_sampled(
        mx.array(proposal.astype(np.int32)),
        mx.array(candidates.astype(np.int32)),
        mx.array(q, dtype=mx.float32),
        mx.array(log_p, dtype=mx.float32),
        mx.array(uniforms, dtype=mx.float32),
        mx.array(noise, dtype=mx.float32),
    )


def test_rejection_equals_the_scalar_rule():
    arrays = random_round(400, seed=2)
    got = ours(*arrays)
    assert got.tokens.dtype == got.num_accepted.dtype == mx.int32
    assert got.tokens.shape == (400, N + 1)
    proposal, candidates, q, p, uniforms, noise = arrays
    for row in range(400):
        want = reference.accept_rejection(proposal[row], candidates[row], q[row], p[row], uniforms[row], 0.5)
        count = want.num_accepted
        assert got.num_accepted[row].item() == count
        law = p[row, count]
        if count < N:
            law = reference.residual(law, reference.dense(candidates[row, count], q[row, count], V))
        with np.errstate(divide="ignore"):
            bonus = int(np.argmax(np.log(law) + noise[row, count]))
        assert got.tokens[row].tolist()[: count + 1] == [*proposal[row][:count].tolist(), bonus]
    assert set(np.array(got.num_accepted).tolist()) == set(range(N + 1))


def test_one_noise_row_for_the_bonus_is_enough():
    proposal, candidates, q, p, uniforms, noise = random_round(50, seed=3)
    whole = ours(proposal, candidates, q, p, uniforms, np.repeat(noise[:, :1], N + 1, axis=1))
    np.testing.assert_array_equal(ours(proposal, candidates, q, p, uniforms, noise[:, 0]).tokens, whole.tokens)


def test_acceptance_depends_on_nothing_that_comes_later():
    proposal, candidates, q, p, uniforms, noise = random_round(300, seed=4)
    before = np.array(ours(proposal, candidates, q, p, uniforms, noise).num_accepted)
    other = random_round(300, seed=5)
    for row in range(1, N):
        mixed = [
            np.concatenate([a[:, :row], b[:, row:]], axis=1)
            for a, b in zip((proposal, candidates, q, p, uniforms, noise), other, strict=True)
        ]
        after = np.array(ours(*mixed).num_accepted)
        np.testing.assert_array_equal(np.minimum(before, row), np.minimum(after, row))


# T3.

P = np.array([0.1, 0.3, 0.2, 0.2, 0.1, 0.1])
CANDIDATES, Q = np.array([1, 2, 3]), np.array([0.5, 0.25, 0.25])
STEPS = 4000


def t3(proposal: np.ndarray, uniforms: np.ndarray, seed: int = 1) -> Acceptance:
    rows = len(proposal)
    return ours(
        proposal[:, None],
        np.broadcast_to(CANDIDATES, (rows, 1, 3)),
        np.broadcast_to(Q, (rows, 1, 3)),
        np.broadcast_to(P, (rows, 2, 6)),
        uniforms[:, None],
        np.random.default_rng(seed).gumbel(size=(rows, 2, 6)),
    )


@pytest.mark.parametrize(("token", "share"), [(1, 0.6), (2, 0.8), (3, 0.8)])
def test_t3_acceptance_probabilities(token, share):
    uniforms = (np.arange(STEPS) + 0.5) / STEPS
    got = t3(np.full(STEPS, token), uniforms)
    assert abs(np.array(got.num_accepted).mean() - share) <= 1 / STEPS


def test_t3_residual_and_output_law():
    rng = np.random.default_rng(8)
    rows = 40_000
    drawn = rng.choice(CANDIDATES, size=rows, p=Q)
    got = t3(drawn, rng.random(rows))
    kept = np.array(got.num_accepted) == 1
    assert abs(kept.mean() - 0.7) < 0.01
    tokens = np.array(got.tokens)[:, 0]
    rejected = np.bincount(tokens[~kept], minlength=6)
    assert rejected[[1, 2, 3]].sum() == 0
    assert stats.chisquare(rejected[[0, 4, 5]]).pvalue > 1e-4
    assert stats.chisquare(np.bincount(tokens, minlength=6), P * rows).pvalue > 1e-4


def test_what_p_forbids_is_never_kept():
    p = np.array([0.5, 0.0, 0.5, 0.0])
    uniforms = np.array([0.0, 0.5])
    got = ours(
        np.array([[1], [1]]),
        np.array([[[1, 2]]] * 2),
        np.array([[[1.0, 0.0]]] * 2),
        np.broadcast_to(p, (2, 2, 4)),
        uniforms[:, None],
        np.zeros((2, 2, 4)),
    )
    assert got.num_accepted.tolist() == [0, 0]  # a uniform of exactly 0 included
    assert all(token in (0, 2) for token in np.array(got.tokens)[:, 0])


def test_no_mass_left_by_rounding_falls_back_to_p():
    # p = q, yet the uniform rejects: only rounding can do that, and then p is the right law.
    p = np.array([0.25, 0.75, 0.0])
    got = ours(
        np.array([[1]]),
        np.array([[[0, 1]]]),
        np.array([[[0.25, 0.75]]]),
        np.broadcast_to(p, (1, 2, 3)),
        np.array([[1.0]]),
        np.zeros((1, 2, 3)),
    )
    assert got.num_accepted.tolist() == [0]
    assert got.tokens[0, 0].item() == 1


def test_when_all_are_kept_the_bonus_comes_from_p_alone():
    # q of the last row must not be taken off the row after it.
    p = np.array([[0.0, 1.0, 0.0], [0.0, 0.9, 0.1]])[None]
    q, uniforms, noise = np.array([[[0.1, 0.9]]]), np.array([[0.5]]), np.zeros((1, 2, 3))
    got = ours(np.array([[1]]), np.array([[[0, 1]]]), q, p, uniforms, noise)
    assert got.num_accepted.tolist() == [1]
    assert got.tokens.tolist() == [[1, 1]]


def test_tokens_of_many_rounds_follow_p_with_the_librarys_own_noise():
    keys, rows = base_keys(3), 40_000
    positions = 8 * mx.arange(rows, dtype=mx.int32)[:, None]
    candidates = mx.array(CANDIDATES.astype(np.int32))
    drawn = mx.argmax(mx.log(mx.array(Q)) + gumbel(keys, Purpose.DRAFT, positions, 3), axis=-1)
    got = accept_sampled(
        candidates[drawn],
        mx.broadcast_to(candidates, (rows, 1, 3)),
        mx.broadcast_to(mx.array(Q, dtype=mx.float32), (rows, 1, 3)),
        mx.broadcast_to(mx.log(mx.array(P, dtype=mx.float32)), (rows, 2, 6)),
        uniform(keys, Purpose.ACCEPT, positions, 1)[..., 0],
        gumbel(keys, Purpose.RESIDUAL, mx.concatenate([positions, positions + 1], axis=1), 6),
    )
    tokens = np.array(got.tokens)[:, 0]
    assert stats.chisquare(np.bincount(tokens, minlength=6), P * rows).pvalue > 1e-4
    bonus = np.array(got.tokens)[np.array(got.num_accepted) == 1, 1]
    assert stats.chisquare(np.bincount(bonus, minlength=6), P * len(bonus)).pvalue > 1e-4

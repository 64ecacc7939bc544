"""Check T3 of the specification, and the exact laws of whole rounds."""

import itertools

import numpy as np
import pytest

from tests.reference import acceptance

P = np.array([0.1, 0.3, 0.2, 0.2, 0.1, 0.1])
CANDIDATES = [1, 2, 3]
Q = acceptance.dense(CANDIDATES, [0.5, 0.25, 0.25], 6)


def test_rejection_gives_the_numbers_of_t3():
    kept = [acceptance.acceptance_probability(P, Q, token) for token in CANDIDATES]
    np.testing.assert_allclose(kept, [0.6, 0.8, 0.8])
    assert acceptance.total_acceptance(P, Q) == pytest.approx(0.7)
    np.testing.assert_allclose(acceptance.residual(P, Q), np.array([1, 0, 0, 0, 1, 1]) / 3)
    np.testing.assert_allclose(acceptance.output_law(P, Q), P)


def test_other_rules_accept_less_on_t3():
    assert acceptance.independent_acceptance(P, Q) == pytest.approx(0.25)
    assert P[np.argmax(Q)] == pytest.approx(0.3)


def test_no_residual_mass_falls_back_to_p():
    np.testing.assert_array_equal(acceptance.residual(P, P), P)


def test_coupled_acceptance_matches_shared_gumbels():
    gumbels = np.random.default_rng(11).gumbel(size=(200_000, 6))
    with np.errstate(divide="ignore"):
        drafted = np.argmax(np.log(Q) + gumbels, axis=1)
        drawn = np.argmax(np.log(P) + gumbels, axis=1)
    rate = float(np.mean(drafted == drawn))
    assert acceptance.coupled_acceptance(P, Q) == pytest.approx(rate, abs=0.005)
    assert acceptance.coupled_acceptance(P, P) == pytest.approx(1.0)


@pytest.mark.parametrize("agreeing", range(4))
def test_greedy_keeps_the_agreeing_prefix(agreeing):
    target = [5, 6, 7, 8]
    proposal = [t if j < agreeing else 0 for j, t in enumerate(target[:3])]
    outcome = acceptance.accept_greedy(proposal, target)
    assert outcome == acceptance.Acceptance(agreeing, target[agreeing])


def test_coupled_output_ignores_the_proposal():
    p = np.stack([P, P[::-1], P])
    gumbels = np.random.default_rng(3).gumbel(size=(3, 6))
    target = np.argmax(np.log(p) + gumbels, axis=1)
    for proposal in itertools.product(range(6), repeat=2):
        outcome = acceptance.accept_coupled(proposal, p, gumbels)
        text = [*proposal[: outcome.num_accepted], outcome.bonus]
        np.testing.assert_array_equal(text, target[: outcome.num_accepted + 1])


def test_explicit_random_numbers_reproduce_the_law():
    grid = (np.arange(40) + 0.5) / 40
    law = np.zeros(6)
    for token, mass in enumerate(Q):
        for u, v in itertools.product(grid, grid):
            outcome = acceptance.accept_rejection(
                [token], np.array([CANDIDATES]), np.array([Q[CANDIDATES]]), np.stack([P, P]), [u], v
            )
            law[token if outcome.num_accepted else outcome.bonus] += mass / 1600
    np.testing.assert_allclose(law, P, atol=0.01)


def random_law(history, salt, sparse):
    rng = np.random.default_rng([salt, *history])
    weights = rng.random(4) ** 3
    if sparse:
        weights[rng.integers(4)] = 0
    return weights / weights.sum()


@pytest.mark.parametrize("sparse_target", [False, True])
def test_rounds_emit_the_target_law_exactly(sparse_target):
    def target(history):
        return random_law(history, 1, sparse_target)

    def drafter(start, tokens):
        return random_law((9, *start, 9, *tokens), 2, True)

    emitted = acceptance.emitted_law(target, drafter, gamma=2, length=4)
    assert sum(emitted.values()) == pytest.approx(1.0)
    for tokens in itertools.product(range(4), repeat=4):
        expected = np.prod([target(tokens[:i])[token] for i, token in enumerate(tokens)])
        assert emitted.get(tokens, 0.0) == pytest.approx(float(expected), abs=1e-12)

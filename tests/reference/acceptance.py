"""Acceptance of a proposal (docs/dflash2.md 4.4, 4.5) and the exact laws it obeys.

Greedy.  ``y_i`` is the target's argmax of verified row i.  The first N of them
check the proposal, num_accepted is the number of leading rows with
``d_j = y_{j-1}``, and the bonus is ``y_{num_accepted}``.

Rejection.  Draft j was drawn from q_j, which is zero outside its candidates.
With u_j uniform on [0, 1)::

    accept d_j        iff  u_j * q_j(d_j) < p_{j-1}(d_j)
    on rejection      bonus ~ max(p - q, 0) / total     (p when the total is 0)
    all accepted      bonus ~ p_N

so token b, if drafted, is accepted with probability min(1, p(b) / q(b)), and
the token that comes out has law::

    out(b) = q(b) * accept(b) + (1 - sum_d q(d) accept(d)) * residual(b) = p(b)

Coupled.  Drafter and target read the same Gumbel numbers g, keyed by position::

    d_j = argmax(S_j / T + g_j)      y_j = argmax(log p_{j-1} + g_j)

The y are the output whatever was drafted, so the text is that of plain
sampling with the same g; the proposal is kept while d_j = y_j.  The chance
that both pick the same token is::

    sum over b with p(b), q(b) > 0 of
        1 / sum over c of max(p(c) / p(b), q(c) / q(b))

Shape letters: N proposed tokens, K candidates, V vocabulary.  p has N + 1
rows, q has N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.selector import first_largest, inverse_cdf

History = tuple[int, ...]


@dataclass(frozen=True)
class Acceptance:
    """num_accepted (0 ... N) and the bonus token that follows."""

    num_accepted: int
    bonus: int


def accept_greedy(proposal: Sequence[int], target_tokens: Sequence[int]) -> Acceptance:
    """Longest prefix equal to the target's own tokens.

    Shapes:
        proposal: [N]; target_tokens: [N + 1]
    """
    accepted = 0
    while accepted < len(proposal) and proposal[accepted] == target_tokens[accepted]:
        accepted += 1
    return Acceptance(accepted, int(target_tokens[accepted]))


def dense(candidates: Sequence[int], q: Sequence[float], vocab: int) -> np.ndarray:
    """Scatter the K probabilities of a row over the vocabulary."""
    result = np.zeros(vocab)
    for token, mass in zip(candidates, q, strict=True):
        result[int(token)] += float(mass)
    return result


def acceptance_probability(p: np.ndarray, q: np.ndarray, token: int) -> float:
    """Chance that a drafted token is kept."""
    if q[token] <= 0:
        # Only a token the drafter could not draw gets here; the test
        # u * 0 < p then passes whenever the target allows it.
        return 1.0 if p[token] > 0 else 0.0
    return min(1.0, float(p[token]) / float(q[token]))


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Law of the correction after a rejection."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else np.array(p, dtype=np.float64)


def total_acceptance(p: np.ndarray, q: np.ndarray) -> float:
    """Chance that one drafted token is kept: sum of min(p, q)."""
    return float(sum(q[b] * acceptance_probability(p, q, b) for b in range(len(q))))


def output_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Exact law of the token one draft position emits; must equal p."""
    kept = np.array([q[b] * acceptance_probability(p, q, b) for b in range(len(q))])
    return kept + (1.0 - kept.sum()) * residual(p, q)


def accept_rejection(
    proposal: Sequence[int],
    candidates: np.ndarray,
    q: np.ndarray,
    p: np.ndarray,
    uniforms: Sequence[float],
    bonus_uniform: float,
) -> Acceptance:
    """One round of the p/q test with explicit random numbers.

    Shapes:
        proposal: [N]; candidates, q: [N, K]; p: [N + 1, V]; uniforms: [N]
    """
    vocab = p.shape[1]
    for j, token in enumerate(proposal):
        row_q = dense(candidates[j], q[j], vocab)
        if not uniforms[j] * row_q[token] < p[j, token]:
            return Acceptance(j, inverse_cdf(residual(p[j], row_q), bonus_uniform))
    return Acceptance(len(proposal), inverse_cdf(p[len(proposal)], bonus_uniform))


def accept_coupled(proposal: Sequence[int], p: np.ndarray, gumbels: np.ndarray) -> Acceptance:
    """One round of the coupled test.

    Shapes:
        proposal: [N]; p, gumbels: [N + 1, V]
    """
    with np.errstate(divide="ignore"):
        noisy = np.log(p) + gumbels
    return accept_greedy(proposal, [first_largest(row) for row in noisy])


def coupled_acceptance(p: np.ndarray, q: np.ndarray) -> float:
    """Chance that drafter and target pick the same token from shared Gumbels."""
    total = 0.0
    for b in range(len(p)):
        if p[b] > 0 and q[b] > 0:
            total += 1.0 / sum(max(p[c] / p[b], q[c] / q[b]) for c in range(len(p)))
    return total


def independent_acceptance(p: np.ndarray, q: np.ndarray) -> float:
    """Chance that two independent draws agree, for comparison."""
    return float(np.dot(p, q))


def round_law(
    target: Callable[[History], np.ndarray],
    drafter: Callable[[History], np.ndarray],
    gamma: int,
) -> dict[History, float]:
    """Exact law of the tokens one rejection round commits.

    Both callables map the tokens committed so far in the round to a law over
    the vocabulary.  The result maps every possible run of committed tokens
    (1 to gamma + 1 of them) to its probability.
    """
    law: dict[History, float] = {}

    def visit(history: History, mass: float) -> None:
        if mass == 0:
            return
        p = target(history)
        if len(history) == gamma:
            for token, share in enumerate(p):
                add((*history, token), mass * float(share))
            return
        q = drafter(history)
        for token in range(len(q)):
            if q[token] > 0:
                kept = float(q[token]) * acceptance_probability(p, q, token)
                visit((*history, token), mass * kept)
        rejected = mass * (1.0 - total_acceptance(p, q))
        for token, share in enumerate(residual(p, q)):
            add((*history, token), rejected * float(share))

    def add(tokens: History, mass: float) -> None:
        if mass > 0:
            law[tokens] = law.get(tokens, 0.0) + mass

    visit((), 1.0)
    return law


def emitted_law(
    target: Callable[[History], np.ndarray],
    drafter: Callable[[History, History], np.ndarray],
    gamma: int,
    length: int,
) -> dict[History, float]:
    """Exact law of the first ``length`` tokens over as many rounds as it takes.

    ``drafter`` gets the tokens committed before the round and those drafted in
    it.  Losslessness says the result is the product of the target's laws.
    """
    done: dict[History, float] = {}
    pending: dict[History, float] = {(): 1.0}
    while pending:
        start, mass = pending.popitem()
        law = round_law(
            lambda tokens, start=start: target(start + tokens),
            lambda tokens, start=start: drafter(start, tokens),
            gamma,
        )
        for tokens, share in law.items():
            history = start + tokens
            pool = done if len(history) >= length else pending
            history = history[:length]
            pool[history] = pool.get(history, 0.0) + mass * share
    return done

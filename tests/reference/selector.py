"""Candidate selector (docs/dflash2.md 3.9).

Row j of the block proposes one token.  Its K candidates are the ids of the K
largest logits, listed by (logit descending, id ascending).  With ``z_j`` the
final-norm hidden row, ``A`` the predecessor codebook, ``C`` the successor
codebook and ``gate_j = hidden_projection @ z_j``::

    S_j(a, b) = logit_j(b) + sum over r of A[a][r] * gate_j[r] * C[b][r]

The walk goes left to right.  ``prev`` starts as the anchor's token id and is
then the token just chosen::

    temperature 0:  d_j = the candidate with the largest S_j(prev, .)
    temperature T:  q_j = softmax over the candidates of S_j(prev, .) / T
                    d_j drawn from q_j

A draw is deterministic here: either by inverse CDF from one uniform per row,
or as ``argmax(S / T + g)`` from one Gumbel number per token id.  Ties go to
the candidate listed first.  The walk is greedy along the way; it does not
search for the best total path.

Shape letters: N proposed rows, V vocabulary, K candidates, R rank, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Walk:
    """Tokens of one proposal and what they were chosen from.

    tokens [N], candidates [N, K], scores [N, K] (conditioned on the token
    chosen before), q [N, K] or None when the walk was greedy.
    """

    tokens: np.ndarray
    candidates: np.ndarray
    scores: np.ndarray
    q: np.ndarray | None


def top_candidates(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the ids of the largest logits, larger first, lower id first on ties.

    Shapes:
        logits: [V]
    Returns:
        [K]
    """
    ids = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    return np.array(ids[:count], dtype=np.int64)


def pair_scores(
    logits: np.ndarray,
    candidates: np.ndarray,
    gate: np.ndarray,
    predecessor: np.ndarray,
    successor: np.ndarray,
    previous: int,
) -> np.ndarray:
    """Score every candidate of one row after the token ``previous``.

    Shapes:
        logits: [V]; candidates: [K]; gate: [R]; predecessor, successor: [V, R]
    Returns:
        [K]
    """
    result = np.zeros(len(candidates))
    for slot, token in enumerate(candidates):
        total = float(logits[token])
        for rank in range(len(gate)):
            total += float(predecessor[previous, rank]) * float(gate[rank]) * float(successor[token, rank])
        result[slot] = total
    return result


def softmax(scores: np.ndarray) -> np.ndarray:
    """Normalise exponentials over the last axis."""
    shifted = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return shifted / np.sum(shifted, axis=-1, keepdims=True)


def first_largest(values: np.ndarray) -> int:
    """Index of the largest value; the first one on ties."""
    best = 0
    for index in range(1, len(values)):
        if values[index] > values[best]:
            best = index
    return best


def inverse_cdf(probs: np.ndarray, uniform: float) -> int:
    """First index whose cumulative mass exceeds the uniform number."""
    total = 0.0
    for index, mass in enumerate(probs):
        total += float(mass)
        if uniform < total:
            return index
    # Rounding can leave the total a hair below the uniform: take the last
    # entry that has any mass.
    return int(np.nonzero(probs)[0][-1])


def walk(
    logits: np.ndarray,
    gates: np.ndarray,
    predecessor: np.ndarray,
    successor: np.ndarray,
    anchor: int,
    top_k: int,
    temperature: float = 0.0,
    uniforms: np.ndarray | None = None,
    gumbels: np.ndarray | None = None,
) -> Walk:
    """Choose one token per row, each conditioned on the one before.

    With a temperature above zero, pass exactly one of ``uniforms`` and
    ``gumbels``.

    Shapes:
        logits: [N, V]; gates: [N, R]; predecessor, successor: [V, R]
        uniforms: [N]; gumbels: [N, V]
    """
    logits = np.asarray(logits, dtype=np.float64)
    gates = np.asarray(gates, dtype=np.float64)
    sampled = temperature > 0
    if sampled and (uniforms is None) == (gumbels is None):
        raise ValueError("a sampled walk takes either uniforms or gumbels")
    tokens, candidate_rows, score_rows, q_rows = [], [], [], []
    previous = anchor
    for row in range(logits.shape[0]):
        candidates = top_candidates(logits[row], top_k)
        scores = pair_scores(logits[row], candidates, gates[row], predecessor, successor, previous)
        if not sampled:
            slot = first_largest(scores)
        elif uniforms is not None:
            slot = inverse_cdf(softmax(scores / temperature), float(uniforms[row]))
        else:
            slot = first_largest(scores / temperature + gumbels[row][candidates])
        if sampled:
            q_rows.append(softmax(scores / temperature))
        previous = int(candidates[slot])
        tokens.append(previous)
        candidate_rows.append(candidates)
        score_rows.append(scores)
    return Walk(
        tokens=np.array(tokens, dtype=np.int64),
        candidates=np.array(candidate_rows, dtype=np.int64),
        scores=np.array(score_rows),
        q=np.array(q_rows) if sampled else None,
    )

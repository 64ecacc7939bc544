"""From target logits to the law tokens are drawn from, in one fixed order.

1. bias          add logit_bias[id]
2. penalties     repetition r, for ids in prompt or generated:
                     l > 0: l / r        otherwise: l * r
                 presence a and frequency f, for generated ids:
                     l - a * [count > 0] - f * count
3. temperature   l / T; below 1e-5 the law is one-hot on the largest logit
4. top-k         keep exactly k ids
5. top-p         order by (probability descending, id ascending); keep the
                 entries whose *preceding* cumulative mass is below top_p
6. min-p         keep ids with probability >= min_p * (largest probability)

After each cut the kept mass is normalised.  Ties always go to the lower id,
so every cut keeps a definite set.  A value of 0 (top_k, min_p) or 1 (top_p,
repetition) switches a step off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

GREEDY_BELOW = 1e-5


def penalise(
    logits: np.ndarray,
    prompt: Sequence[int],
    generated: Sequence[int],
    *,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> np.ndarray:
    """Steps 1 and 2 for one row of logits [V]."""
    result = np.array(logits, dtype=np.float64)
    for token, bias in (logit_bias or {}).items():
        result[token] += bias
    for token in set(prompt) | set(generated):
        if result[token] > 0:
            result[token] /= repetition_penalty
        else:
            result[token] *= repetition_penalty
    for token in set(generated):
        count = list(generated).count(token)
        result[token] -= presence_penalty + frequency_penalty * count
    return result


def by_rank(values: np.ndarray) -> list[int]:
    """Ids ordered by (value descending, id ascending)."""
    return sorted(range(len(values)), key=lambda token: (-values[token], token))


def normalise(probs: np.ndarray) -> np.ndarray:
    """Scale to a total of one."""
    return probs / probs.sum()


def softmax(logits: np.ndarray) -> np.ndarray:
    """Law of a row of logits; minus infinity means zero."""
    return normalise(np.exp(logits - logits.max()))


def keep_top_k(logits: np.ndarray, top_k: int) -> np.ndarray:
    """Set all but the k largest logits to minus infinity."""
    if top_k <= 0 or top_k >= len(logits):
        return logits
    result = np.full(len(logits), -np.inf)
    for token in by_rank(logits)[:top_k]:
        result[token] = logits[token]
    return result


def keep_top_p(probs: np.ndarray, top_p: float) -> np.ndarray:
    """Keep the nucleus: entries with less than top_p of mass before them."""
    if top_p >= 1:
        return probs
    result = np.zeros(len(probs))
    before = 0.0
    for token in by_rank(probs):
        if before < top_p:
            result[token] = probs[token]
        before += float(probs[token])
    return normalise(result)


def keep_min_p(probs: np.ndarray, min_p: float) -> np.ndarray:
    """Keep entries with at least min_p times the largest probability."""
    if min_p <= 0:
        return probs
    return normalise(np.where(probs >= min_p * probs.max(), probs, 0.0))


def law(
    logits: np.ndarray,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray:
    """Steps 3 to 6 for one row of (already penalised) logits [V]."""
    logits = np.asarray(logits, dtype=np.float64)
    if temperature < GREEDY_BELOW:
        result = np.zeros(len(logits))
        result[by_rank(logits)[0]] = 1.0
        return result
    probs = softmax(keep_top_k(logits / temperature, top_k))
    return keep_min_p(keep_top_p(probs, top_p), min_p)

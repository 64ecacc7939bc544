"""Grouped-query attention of a few rows, one head and one row at a time.

Query head h reads key/value head h // (H / Hkv).  With s the keys a row sees::

    w_s = exp(q . k_s / sqrt(Dh)) / sum over seen keys of the same
    out = sum over seen keys of w_s v_s

Who sees whom is said by `tests.reference.masks`: a row at position p sees keys
before the end of its pass, by the rules of its layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reference.masks import visibility


def attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """One sequence.

    Shapes:
        queries: [H, L, Dh]; keys, values: [Hkv, M, Dh]; seen: [L, M] bool
    Returns:
        [H, L, Dh]
    """
    heads, rows, dim = queries.shape
    share = heads // len(keys)
    out = np.zeros((heads, rows, dim))
    for head in range(heads):
        for row in range(rows):
            visible = np.nonzero(seen[row])[0]
            scores = keys[head // share, visible] @ queries[head, row] / np.sqrt(dim)
            weights = np.exp(scores - scores.max())
            out[head, row] = (weights / weights.sum()) @ values[head // share, visible]
    return out


def seen_rows(
    start: int, rows: int, positions: Sequence[int], *, is_causal: bool, window: int | None, sink: int = 0
) -> np.ndarray:
    """Which buffer rows (their positions are given) the rows start ... start + rows - 1 of a pass see."""
    mask = visibility(range(start, start + rows), positions, is_causal=is_causal, window=window, sink=sink)
    return mask & (np.asarray(positions) < start + rows)

"""Who sees whom inside the drafter's attention (docs/dflash2.md 3.6).

The keys are the context rows (absolute positions below the anchor's) followed
by the block rows themselves.  A query at position p sees a key at position s
when all of these hold::

    sliding layer:   |p - s| < window
    causal layer:    s <= p

A full-attention, non-causal layer sees everything.  Causality of a layer: the
``is_causal`` key of the config when it is present, otherwise sliding layers
are causal and full layers are not (the rule of DFlash v1 files).

Consequence for a sliding non-causal layer with window W and anchor position
P: row 0 sees the W - 1 context rows P-W+1 ... P-1, row j sees W - 1 - j.

A sink (no checkpoint has one; a setting of this project) makes the keys at
positions 0 ... sink-1 visible to every query of a sliding layer as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def layer_is_causal(is_causal: bool | None, layer_type: str) -> bool:
    """Causality of one layer; ``is_causal`` None means the key is absent."""
    if is_causal is not None:
        return is_causal
    return layer_type == "sliding_attention"


def sees(query: int, key: int, *, is_causal: bool, window: int | None, sink: int = 0) -> bool:
    """Whether one query position sees one key position (window None: full)."""
    if window is not None and abs(query - key) >= window and key >= sink:
        return False
    return not (is_causal and key > query)


def visibility(
    query_positions: Sequence[int],
    key_positions: Sequence[int],
    *,
    is_causal: bool,
    window: int | None,
    sink: int = 0,
) -> np.ndarray:
    """Boolean mask over absolute positions.

    Shapes:
        query_positions: [L]; key_positions: [M]
    Returns:
        [L, M] bool, True where the query sees the key
    """
    mask = np.zeros((len(query_positions), len(key_positions)), dtype=bool)
    for row, query in enumerate(query_positions):
        for column, key in enumerate(key_positions):
            mask[row, column] = sees(int(query), int(key), is_causal=is_causal, window=window, sink=sink)
    return mask

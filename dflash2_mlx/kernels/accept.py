"""How metal/accept.metal is called; `sampling/acceptance.py` decides when. Decides nothing."""

from __future__ import annotations

from functools import cache

import mlx.core as mx

from .call import ROWS_STEP, KernelCall
from .top_candidates import check_candidates


@cache
def accept_call(lists: tuple[int, ...], drafted: int, vocab_size: int) -> KernelCall:
    """Rejection sampling over the target's best logits.

    Shapes:
        values, ids [B, L, blocks, K]; proposal [B, L - 1] int32; candidates, q [B, L - 1, drafted]; start [B] int32;
        seeds [4, 2] uint32; settings [3] float32 (temperature, top_p, min_p) -> count [B] int32, tokens [B, L] int32
    Args:
        lists: shape of values and ids.
        drafted: candidates of each position.
        vocab_size: columns of the target's logits.
    """
    batch, rows, blocks, k = lists
    check_candidates(k, blocks * k)
    check_candidates(drafted, drafted)
    reserved = -(-rows // ROWS_STEP) * ROWS_STEP
    simdgroups = min(ROWS_STEP, rows)
    template = (
        ("K", k),
        ("DRAFTED", drafted),
        ("BLOCKS", blocks),
        ("VOCAB", vocab_size),
        ("ROWS", reserved),
        ("SIMDGROUPS", ROWS_STEP),
    )
    return KernelCall(
        name="accept",
        inputs=("values", "ids", "proposal", "candidates", "q", "start", "seeds", "settings"),
        outputs=("count", "tokens"),
        template=template,
        grid=(32 * simdgroups, batch, 1),
        threadgroup=(32 * simdgroups, 1, 1),
        output_shapes=((batch,), (batch, rows)),
        output_dtypes=(mx.int32, mx.int32),
    )

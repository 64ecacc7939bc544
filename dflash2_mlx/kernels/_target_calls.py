"""How the kernels of the target's verify pass are called, as `_metal` does it for the drafter's.

Owns: the Python side of few_row_attention.metal, few_row_merge.metal, gated_delta_verify.metal and accept.metal.
Decides nothing.
"""

from __future__ import annotations

from functools import cache

import mlx.core as mx

from ._metal import ROWS_STEP, KernelCall, check_candidates

# Rows (query heads times rows of the pass) of one SIMD-group, and SIMD-groups that share a tile of keys; heads of
# more than 128 numbers need twice the registers.
ROWS_EACH = 8
MOST_SIMDGROUPS = 16
MOST_SIMDGROUPS_WIDE = 8
PART_ROWS = 128  # least keys of a part, as in few_row_attention.metal
MOST_PARTS = 32  # as in few_row_attention.metal: more would cost more than they spread
FIXED_PART = 256  # keys of a part where parts begin at fixed positions
MOST_DIM = 256
DELTA_LANES = 8  # lanes that share one row of a gated-delta state


def part_count(capacity: int) -> int:
    """Into how many parts the kernel divides a buffer; it computes the same."""
    rows = PART_ROWS
    while rows * MOST_PARTS < capacity:
        rows *= 2
    return -(-capacity // rows)


@cache
def few_row_attention(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    dtype: mx.Dtype,
    *,
    window: int | None,
    sink: int,
    causal: bool,
    fixed: bool = False,
) -> KernelCall:
    """Attention over a buffer of keys and values; with several parts, `few_row_merge` has the last word.

    Shapes:
        queries [B, H, L, Dh], keys, values [B, Hkv, capacity, Dh], start [B] int32, base [1] int32
        -> out [parts, B, H, L, Dh] (float32 where there are several parts), bounds [parts, B, H, L, 2] float32
    Args:
        queries, keys: the shapes.
        dtype: of queries, keys and values.
        fixed: parts begin at fixed positions, whatever the capacity is and wherever the buffer begins; without a sink.
    """
    batch, heads, length, dim = queries
    kv_heads, capacity = keys[1], keys[2]
    if heads % kv_heads or not 1 <= dim <= MOST_DIM or capacity == 0:
        raise ValueError(
            f"few_row_attention: got {heads} heads of size {dim} over {kv_heads} K/V heads and {capacity} rows, "
            f"expected a multiple, at most {MOST_DIM}, and some rows"
        )
    if fixed and sink:
        raise ValueError(f"few_row_attention: got a sink of {sink} with parts at fixed positions, expected none")
    rows = heads // kv_heads * length
    most = MOST_SIMDGROUPS if dim <= 128 else MOST_SIMDGROUPS_WIDE
    # Powers of two, so that few widths are few compilations.
    simdgroups = min(most, 1 << (-(-rows // ROWS_EACH) - 1).bit_length())
    blocks = -(-rows // (ROWS_EACH * simdgroups))
    parts = part_count(capacity)
    if fixed:  # one more where the first one may begin before the buffer; two at least, so that one text serves all
        parts = max(2, -(-capacity // FIXED_PART) + (window is not None))
    template = (
        ("T", dtype),
        ("OUT", dtype if parts == 1 else mx.float32),
        ("DIM", dim),
        ("WINDOW", window or 0),
        ("SINK", sink if window else 0),
        ("CAUSAL", causal),
        ("SIMDGROUPS", simdgroups),
        ("PART", FIXED_PART if fixed else 0),
    )
    return KernelCall(
        name="few_row_attention",
        inputs=("queries", "keys", "values", "start", "base"),
        outputs=("out", "bounds"),
        template=template,
        grid=(32 * simdgroups, kv_heads * blocks, batch * parts),
        threadgroup=(32 * simdgroups, 1, 1),
        output_shapes=((parts, *queries), (parts, *queries[:3], 2)),
        output_dtypes=(dtype if parts == 1 else mx.float32, mx.float32),
    )


@cache
def few_row_merge(parts: int, queries: tuple[int, ...], dtype: mx.Dtype) -> KernelCall:
    """The parts of `few_row_attention` put together.

    Shapes:
        sums [parts, N, Dh] float32, bounds [parts, N, 2] float32 -> out [N, Dh], N of all rows of `queries`
    """
    batch, heads, length, dim = queries
    rows = batch * heads * length
    return KernelCall(
        name="few_row_merge",
        inputs=("sums", "bounds"),
        outputs=("out",),
        template=(("T", dtype), ("DIM", dim)),
        grid=(32, rows, 1),
        threadgroup=(32, 1, 1),
        output_shapes=((rows, dim),),
        output_dtypes=(dtype,),
    )


@cache
def gated_delta_verify(state: tuple[int, ...], keys: tuple[int, ...], dtype: mx.Dtype) -> KernelCall:
    """Kept rows of the pass before, stored, then the rows of this pass.

    Shapes:
        state [B, Hv, Dv, Dk] float32; old_k [B, Lo, Hk, Dk], old_v [B, Lo, Hv, Dv], old_g, old_beta [B, Lo, Hv];
        keep [B] int32; q, k [B, L, Hk, Dk], v [B, L, Hv, Dv], g, beta [B, L, Hv]
        -> y [B, L, Hv, Dv], stored [B, Hv, Dv, Dk] float32
    Args:
        state, keys: shapes of state and k.
        dtype: of q, k, v and y.
    Raises:
        ValueError: sizes that the kernel cannot serve, named.
    """
    batch, heads, values, dim = state
    if dim % (4 * DELTA_LANES) or heads % keys[2]:
        raise ValueError(
            f"gated_delta_verify: got {heads} heads over {keys[2]} with keys of size {dim}, expected a multiple, and "
            f"one of {4 * DELTA_LANES}"
        )
    across = -(-values * DELTA_LANES // 32)
    return KernelCall(
        name="gated_delta_verify",
        inputs=("state", "old_k", "old_v", "old_g", "old_beta", "keep", "q", "k", "v", "g", "beta"),
        outputs=("y", "stored"),
        template=(("T", dtype), ("DK", dim), ("LANES", DELTA_LANES)),
        grid=(32, across, batch * heads),
        threadgroup=(32, min(4, across), 1),
        output_shapes=((batch, keys[1], heads, values), state),
        output_dtypes=(dtype, mx.float32),
    )


@cache
def accept(lists: tuple[int, ...], drafted: int, vocab_size: int) -> KernelCall:
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

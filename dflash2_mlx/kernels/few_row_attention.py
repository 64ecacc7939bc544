"""Attention of a few rows over a buffer of keys and values.

Owns: the choice between MLX's own attention (the twin) and metal/few_row_attention.metal, which reads keys and values
once for all rows and all query heads of a K/V head and finds out itself who sees whom. MLX has no such kernel where
rows times query heads per K/V head exceed 32. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import mlx.core as mx

from .call import KernelCall
from .dispatch import EXACT_ROWS, METAL, check_equal, dispatcher, inexact, rounding

NAME = "few_row_attention"


OURS, STOCK = "metal", "mlx"  # contenders of a race


FEWEST_ROWS, MOST_ROWS = 2, 16


SHORT = 2048  # rows of a buffer up to which a context counts as short


# Where MLX 0.32 has a kernel of its own: for some rows it keeps to one query at a time, for more to tiles of them.
_VECTOR_ROWS, _VECTOR_PRODUCT, _VECTOR_DIMS, _TILED_DIMS = 8, 32, (64, 96, 128, 256), (64, 80, 128)


_DTYPES = (mx.float32, mx.float16, mx.bfloat16)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sight:
    """Which rows of a buffer the rows of a pass see: as a mask for MLX, and the same in numbers for the kernel.

    A row at position p sees a key at position s before the end of the pass, if s <= p where `causal`, and
    |p - s| < window or s < sink where there is a window. Buffer row i < sink holds position i, the others base + i.

    Shapes:
        mask:  [B, 1, L, capacity] bool
        start: [B] int32, position of row 0
        base:  [] int32, where it is traced; else a number
    Attributes:
        exact: a row's numbers depend on nothing but what it sees, not on rows beside it, spare room or base; without a
            sink, for up to 32 rows.
    """

    mask: mx.array
    start: mx.array
    base: mx.array | int
    causal: bool = True
    window: int | None = None
    sink: int = 0
    exact: bool = False


def few_row_attention(queries: mx.array, keys: mx.array, values: mx.array, sight: Sight) -> mx.array:
    """Softmax attention, scores divided by sqrt(Dh); query heads are shared out evenly among K/V heads.

    Shapes:
        queries:      [B, H, L, Dh]
        keys, values: [B, Hkv, capacity, Dh], whole buffers
    Returns:
        [B, H, L, Dh]
    Raises:
        SettingError: exactness was asked for and the kernel does not run.
    """
    alike = queries.dtype == keys.dtype == values.dtype
    shapes = queries.shape, keys.shape
    if alike and (dispatcher().wants_metal(NAME) if sight.exact else wanted(*shapes, queries.dtype, sight.window)):
        inputs = (queries, keys, values, sight.start, _base_array(sight.base))
        call = _call(*shapes, queries.dtype, sight)
        if _passes(call, inputs, queries.shape, keys.shape[1], sight):
            return run_kernels(call, inputs)
    if sight.exact:
        raise inexact(dispatcher().why_not(NAME) if alike else f"attention of {queries.dtype} over {keys.dtype}")
    return attention_twin(queries, keys, values, sight.mask)


def exactness_problem(heads: int, kv_heads: int, dim: int, dtype: mx.Dtype, window: int | None) -> str | None:
    """Why attention of such heads cannot be exact here, or None after the kernel passed its test at every width."""
    if dim > MOST_DIM or dtype not in _DTYPES:
        return f"attention heads of {dim} {dtype}"
    if not dispatcher().wants_metal(NAME):
        return dispatcher().why_not(NAME)
    start = mx.zeros((1,), dtype=mx.int32)
    sight = Sight(mx.zeros((1, 1, 1, 1), dtype=mx.bool_), start, 0, window=window, exact=True)
    like = [*3 * (mx.zeros((1,), dtype=dtype),), start, start]
    for rows in range(1, EXACT_ROWS + 1):
        queries = (1, heads, rows, dim)
        call = _call(queries, (1, kv_heads, 1, dim), dtype, sight)
        if not _passes(call, like, queries, kv_heads, sight):
            return dispatcher().why_not(NAME)
    return None


def _passes(call: KernelCall, inputs: Sequence[mx.array], queries: Shape, kv_heads: int, sight: Sight) -> bool:
    return dispatcher().passes(call, inputs, lambda: _self_test(call, queries, kv_heads, sight))


def attention_twin(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
    """The twin of `few_row_attention`, shapes as there; `mask` is a `Sight`'s."""
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[-1] ** -0.5, mask=mask)


def wanted(queries: Shape, keys: Shape, dtype: mx.Dtype, window: int | None) -> bool:
    """Whether the kernel should run for arrays of these shapes.

    Where nobody asked for it by name, the winner of a race decides; before there was one, whether MLX has a kernel
    for that.
    """
    kernels = dispatcher()
    heads, rows, dim = queries[1], queries[2], queries[3]
    if not FEWEST_ROWS <= rows <= MOST_ROWS or dim > MOST_DIM or dtype not in _DTYPES:
        return False
    if keys[0] * keys[1] * keys[2] * dim >= 2**32 or not kernels.wants_metal(NAME):
        return False
    if kernels.wanted[NAME] == METAL:
        return True
    winner = kernels.winner(NAME, race_key(queries, keys, dtype, window))
    return not fused_by_mlx(rows, heads // keys[1], dim) if winner is None else winner == OURS


def fused_by_mlx(rows: int, share: int, dim: int) -> bool:
    """Whether MLX has a kernel for attention of `rows` rows and `share` query heads per K/V head under a mask.

    Elsewhere it writes out all scores.
    """
    if rows <= _VECTOR_ROWS:
        return rows * share <= _VECTOR_PRODUCT and dim in _VECTOR_DIMS
    return dim in _TILED_DIMS


def race_key(queries: Shape, keys: Shape, dtype: mx.Dtype, window: int | None) -> str:
    """What a winner at these shapes is kept under."""
    context = f"up to {SHORT}" if keys[2] <= SHORT else f"beyond {SHORT}"
    kind = str(dtype).rsplit(".", 1)[-1]
    sliding = "" if window is None else f" window {window}"
    return f"{queries[1]}/{keys[1]} heads of {queries[3]} {kind}{sliding} rows {queries[2]} context {context}"


def run_kernels(call: KernelCall, inputs: Sequence[mx.array]) -> mx.array:
    """The kernel and, where the buffer has several parts, the one that puts them together."""
    queries = inputs[0]
    out, bounds = dispatcher().run(call, inputs)
    parts = out.shape[0]
    if parts == 1:
        return out[0]
    merge = few_row_merge_call(parts, queries.shape, queries.dtype)
    sums = out.reshape(parts, -1, queries.shape[-1])
    return dispatcher().run(merge, (sums, bounds.reshape(parts, -1, 2)))[0].reshape(queries.shape)


def _call(queries: Shape, keys: Shape, dtype: mx.Dtype, sight: Sight) -> KernelCall:
    return few_row_attention_call(
        queries,
        keys,
        dtype,
        window=sight.window,
        sink=sight.sink,
        causal=sight.causal,
        fixed=sight.exact,
    )


def _self_test(call: KernelCall, queries: Shape, kv_heads: int, sight: Sight) -> None:
    """On small buffers of one part and of several, as far as Metal compiles the text of `call` for them."""
    for capacity in (80, 3 * PART_ROWS + 20):
        keys = (1, kv_heads, capacity, queries[3])
        if _call((1, *queries[1:]), keys, dict(call.template)["T"], sight).template == call.template:
            _test_at(capacity, call, queries, kv_heads, sight)


def _test_at(capacity: int, call: KernelCall, queries: Shape, kv_heads: int, sight: Sight) -> None:
    _, heads, rows, dim = queries
    dtype = dict(call.template)["T"]
    shapes = ((1, heads, rows, dim), *2 * ((1, kv_heads, capacity, dim),))
    few, keys, values = (
        mx.random.normal(shape, key=key).astype(dtype)
        for shape, key in zip(shapes, mx.random.split(mx.random.key(0), 3), strict=True)
    )
    base = 100 if sight.window else 0
    # The window's edge lies inside, or else the end of what is seen.
    start = base + (29 + sight.window if sight.window else capacity - rows - 15)
    position, causal = mx.array([start], dtype=mx.int32), sight.causal
    mask = mask_of(position, base, rows, capacity, causal=causal, window=sight.window, sink=sight.sink)
    seen = replace(sight, mask=mask, start=position, base=base)
    got = run_kernels(_call(few.shape, keys.shape, dtype, seen), (few, keys, values, position, _base_array(base)))
    want = attention_twin(few, keys, values, mask)
    check_equal(got, want, tolerance=rounding(dtype), what=NAME)


def mask_of(
    start: mx.array, base: int, rows: int, capacity: int, *, causal: bool, window: int | None, sink: int
) -> mx.array:
    """The mask of a `Sight`: [B, 1, rows, capacity] bool."""
    index = mx.arange(capacity, dtype=mx.int32)
    at = mx.where(index < sink, index, index + base)
    first = start[:, None, None, None]
    distance = first + mx.arange(rows, dtype=mx.int32)[:, None] - at
    seen = at < first + rows
    if window is not None:
        seen = seen & ((mx.abs(distance) < window) | (at < sink))
    if causal:
        seen = seen & (distance >= 0)
    return mx.broadcast_to(seen, (start.shape[0], 1, rows, capacity))


def _base_array(base: mx.array | int) -> mx.array:
    return _number(base) if isinstance(base, int) else base.reshape(1)


@lru_cache(maxsize=64)
def _number(number: int) -> mx.array:
    """[1] int32; the layers of a pass share it."""
    return mx.array([number], dtype=mx.int32)


# Rows (query heads times rows of the pass) of one SIMD-group, and SIMD-groups that share a tile of keys; heads of
# more than 128 numbers need twice the registers.
ROWS_EACH = 8


MOST_SIMDGROUPS = 16


MOST_SIMDGROUPS_WIDE = 8


PART_ROWS = 128  # least keys of a part, as in few_row_attention.metal


MOST_PARTS = 32  # as in few_row_attention.metal: more would cost more than they spread


FIXED_PART = 256  # keys of a part where parts begin at fixed positions


MOST_DIM = 256


def part_count(capacity: int) -> int:
    """Into how many parts the kernel divides a buffer; it computes the same."""
    rows = PART_ROWS
    while rows * MOST_PARTS < capacity:
        rows *= 2
    return -(-capacity // rows)


@cache
def few_row_attention_call(
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
def few_row_merge_call(parts: int, queries: tuple[int, ...], dtype: mx.Dtype) -> KernelCall:
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

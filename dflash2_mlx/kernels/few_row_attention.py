"""Attention of a few rows over a buffer of keys and values.

Owns: the choice between MLX's own attention (the twin) and metal/few_row_attention.metal, which reads keys and values
once for all rows and all query heads of a K/V head and finds out itself who sees whom. MLX has no such kernel where
rows times query heads per K/V head exceed 32. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import mlx.core as mx

from . import _target_calls
from ._dispatch import EXACT_ROWS, METAL, check_equal, dispatcher, inexact, rounding
from ._metal import KernelCall

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
    if dim > _target_calls.MOST_DIM or dtype not in _DTYPES:
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
    if not FEWEST_ROWS <= rows <= MOST_ROWS or dim > _target_calls.MOST_DIM or dtype not in _DTYPES:
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
    merge = _target_calls.few_row_merge(parts, queries.shape, queries.dtype)
    sums = out.reshape(parts, -1, queries.shape[-1])
    return dispatcher().run(merge, (sums, bounds.reshape(parts, -1, 2)))[0].reshape(queries.shape)


def _call(queries: Shape, keys: Shape, dtype: mx.Dtype, sight: Sight) -> KernelCall:
    return _target_calls.few_row_attention(
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
    for capacity in (80, 3 * _target_calls.PART_ROWS + 20):
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

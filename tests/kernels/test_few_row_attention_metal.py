"""metal/few_row_attention.metal and few_row_merge.metal, and their twin, against the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.accept import KernelCall
from dflash2_mlx.kernels.few_row_attention import (
    attention_twin,
    few_row_attention_call,
    few_row_merge_call,
    mask_of,
    part_count,
)
from tests.reference.attention import attend, seen_rows

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


@dataclass(frozen=True)
class Case:
    """`context`: keys before the pass; `base`: position of the first buffer row behind the sink, if that is dropped."""

    rows: int
    share: int
    dim: int
    context: int
    kv_heads: int = 1
    batch: int = 1
    window: int | None = None
    sink: int = 0
    causal: bool = True
    base: int = 0
    spare: int = 5  # rows of the buffer after the pass, with other numbers in them
    dtype: mx.Dtype = F32
    fixed: bool = False

    @property
    def capacity(self) -> int:
        return self.context - self.base + self.rows + self.spare + 3 * (self.batch - 1)

    def start(self, sequence: int) -> int:
        """Sequences of a batch stand at different positions."""
        return self.context + 3 * sequence

    def arrays(self) -> list[mx.array]:
        """queries, keys, values, start, base."""
        rng = np.random.default_rng(self.rows + self.context)
        kv = (self.batch, self.kv_heads, self.capacity, self.dim)
        shapes = ((self.batch, self.kv_heads * self.share, self.rows, self.dim), kv, kv)
        wide = [mx.array(rng.normal(size=shape).astype(np.float32)).astype(self.dtype) for shape in shapes]
        # Peaked scores: a wrong maximum or a forgotten key shows.
        wide[0] = wide[0] * 3
        start = mx.array([self.start(sequence) for sequence in range(self.batch)], dtype=mx.int32)
        return [*wide, start, mx.array([self.base], dtype=mx.int32)]

    def call(self) -> KernelCall:
        queries, keys, *_ = self.arrays()
        return few_row_attention_call(
            queries.shape,
            keys.shape,
            self.dtype,
            window=self.window,
            sink=self.sink,
            causal=self.causal,
            fixed=self.fixed,
        )

    def positions(self) -> list[int]:
        return [row if row < self.sink else row + self.base for row in range(self.capacity)]

    def by_reference(self) -> np.ndarray:
        queries, keys, values = (np.array(array.astype(F32), dtype=np.float64) for array in self.arrays()[:3])
        rules = {"is_causal": self.causal, "window": self.window, "sink": self.sink}
        seen = [seen_rows(self.start(b), self.rows, self.positions(), **rules) for b in range(self.batch)]
        return np.stack([attend(*row) for row in zip(queries, keys, values, seen, strict=True)])

    def by_twin(self) -> mx.array:
        queries, keys, values, start, _ = self.arrays()
        rules = {"causal": self.causal, "window": self.window, "sink": self.sink}
        mask = mask_of(start, self.base, self.rows, self.capacity, **rules)
        return attention_twin(queries, keys, values, mask)


def run(on_metal, case: Case, **rules) -> mx.array:
    """Both kernels, as `few_row_attention` calls them."""
    return run_on(on_metal, case, case.arrays(), **rules)


def run_on(on_metal, case: Case, arrays: list[mx.array], **rules) -> mx.array:
    """The same on other arrays, of a call that `case` describes."""
    out, bounds = on_metal(case.call(), arrays, **rules)
    parts, queries = out.shape[0], arrays[0]
    if parts == 1:
        return out[0]
    merge = few_row_merge_call(parts, queries.shape, case.dtype)
    inputs = [out.reshape(parts, -1, case.dim), bounds.reshape(parts, -1, 2)]
    return on_metal(merge, inputs, **rules)[0].reshape(queries.shape)


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(F32), dtype=np.float64)


def check(got: mx.array, case: Case) -> None:
    want = case.by_reference()
    assert got.dtype == case.dtype and got.shape == want.shape
    tolerance = {F32: 2e-5, F16: 2e-3, BF16: 2e-2}[case.dtype]
    np.testing.assert_allclose(wide(got), want, rtol=0, atol=tolerance)


# Rows 2 to 16, shares 1 to 8, sizes of heads and contexts go through all values without being multiplied out.
CONTEXTS = [
    Case(2, 1, 64, 0, kv_heads=3),
    Case(5, 8, 64, 1),
    Case(3, 2, 128, 31, kv_heads=2, spare=0),
    Case(8, 6, 64, 32),
    Case(16, 8, 32, 33),
    Case(5, 3, 256, 121, batch=2, spare=0),
    Case(16, 9, 16, 129),  # more rows than one threadgroup takes
    Case(8, 4, 80, 256, spare=300),
    Case(7, 7, 64, 1000),
    Case(2, 1, 128, 5000, kv_heads=2, spare=0),
]


@pytest.mark.parametrize("case", CONTEXTS, ids=lambda case: f"{case.rows}x{case.share}x{case.dim}at{case.context}")
def test_equals_the_reference(on_metal, case):
    check(run(on_metal, case, seed=case.rows), case)
    check(case.by_twin(), case)


# The edge falls on every place of a tile, the window is wider than the context, narrower than the pass, ...
WINDOWS = [
    Case(5, 2, 32, 40, window=8, base=20),
    Case(16, 1, 32, 200, window=8, base=150),
    Case(5, 1, 32, 41, window=33, causal=False),
    Case(6, 1, 32, 95, window=33, base=31, causal=False, spare=40),
    Case(3, 1, 32, 600, window=150, base=333, kv_heads=2, batch=2),
    Case(4, 1, 32, 30, window=150),
    Case(5, 2, 32, 500, window=40, sink=3, base=450, causal=False),
    Case(5, 2, 32, 40, window=6, sink=37, base=2, causal=False),
    Case(8, 2, 32, 9, window=6, sink=37, causal=False),
    Case(8, 2, 32, 60, window=6, sink=37, base=15, causal=False),  # the first row does not see the last one
    Case(8, 1, 32, 300, causal=False, spare=90),
]


@pytest.mark.parametrize("case", WINDOWS, ids=lambda case: f"{case.window}+{case.sink}at{case.context}from{case.base}")
@pytest.mark.parametrize("shift", [0, 1])
def test_who_sees_whom_at_the_edges(on_metal, case, shift):
    case = replace(case, context=case.context + shift)
    check(run(on_metal, case, seed=case.context), case)
    check(case.by_twin(), case)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_half_precision_is_rounded_once(on_metal, dtype):
    for case in (Case(5, 4, 64, 70, dtype=dtype), *[Case(5, 4, 64, 300, dtype=dtype)] * (dtype == BF16)):
        got = run(on_metal, case)
        check(got, case)
        exact = mx.array(case.by_reference().astype(np.float32)).astype(dtype)
        assert (wide(got) == wide(exact)).mean() > 0.98  # sums in float32: only ties of rounding may fall otherwise


@pytest.mark.parametrize("case", [Case(7, 2, 64, 60), Case(7, 2, 64, 300, window=90, base=40)])
def test_a_rows_numbers_depend_neither_on_the_pass_nor_on_spare_room(on_metal, case):
    """The verify pass of any width gives what a narrower one would have given."""
    whole = wide(run(on_metal, case))
    arrays = case.arrays()
    for rows in (2, 5):
        fewer = replace(case, rows=rows)
        queries = arrays[0][:, :, :rows]
        call = few_row_attention_call(queries.shape, arrays[1].shape, F32, window=case.window, sink=0, causal=True)
        out, bounds = on_metal(call, [queries, *arrays[1:]])
        if out.shape[0] > 1:
            merge = few_row_merge_call(out.shape[0], queries.shape, F32)
            parts = [a.reshape(len(out), -1, a.shape[-1]) for a in (out, bounds)]
            out = on_metal(merge, parts)[0].reshape(1, *queries.shape)
        np.testing.assert_array_equal(wide(out[0]), whole[:, :, : fewer.rows])
    # Room after the pass, up to more parts than before.
    roomy = mx.zeros((*arrays[1].shape[:2], 900, case.dim))
    grown = [mx.slice_update(roomy, array, mx.array([0]), axes=(2,)) for array in arrays[1:3]]
    call = few_row_attention_call(arrays[0].shape, roomy.shape, F32, window=case.window, sink=0, causal=True)
    out, bounds = on_metal(call, [arrays[0], *grown, *arrays[3:]])
    merge = few_row_merge_call(len(out), arrays[0].shape, F32)
    merged = on_metal(merge, [a.reshape(len(out), -1, a.shape[-1]) for a in (out, bounds)])[0]
    np.testing.assert_allclose(wide(merged.reshape(whole.shape)), whole, rtol=0, atol=1e-6)


FIXED = [
    Case(7, 2, 32, 300, fixed=True),
    Case(3, 1, 32, 8300, fixed=True, spare=0),  # more than 32 parts
    Case(7, 2, 32, 600, window=90, base=500, fixed=True),
    Case(5, 1, 32, 515, window=40, base=470, kv_heads=2, fixed=True),
]


@pytest.mark.parametrize("case", FIXED, ids=lambda case: f"at{case.context}from{case.base}")
def test_with_fixed_parts_a_row_depends_on_nothing_but_what_it_sees(on_metal, case):
    """Neither on the rows beside it, nor on spare room, nor on where the buffer begins, nor on who fuses what."""
    arrays = case.arrays()
    whole = run_on(on_metal, case, arrays)
    check(whole, case)
    queries, keys, values, start, _ = arrays

    def same(rows: int, skip: int, room: int, drop: int, **rules) -> None:
        """Rows skip.. of the pass as a pass of their own, over buffers that begin and end elsewhere."""
        moved = [mx.pad(array[:, :, drop:], [(0, 0), (0, 0), (0, room), (0, 0)]) for array in (keys, values)]
        part = queries[:, :, skip : skip + rows]
        call = few_row_attention_call(
            part.shape, moved[0].shape, F32, window=case.window, sink=0, causal=True, fixed=True
        )
        base = mx.array([case.base + drop], dtype=mx.int32)
        out, bounds = on_metal(call, [part, *moved, start + skip, base], **rules)
        merge = few_row_merge_call(len(out), part.shape, F32)
        (got,) = on_metal(merge, [a.reshape(len(out), -1, a.shape[-1]) for a in (out, bounds)], **rules)
        np.testing.assert_array_equal(wide(got.reshape(part.shape)), wide(whole)[:, :, skip : skip + rows])

    same(1, 0, 0, 0)
    same(2, 1, 4000, 0, seed=5)  # so much room that parts would be larger
    if case.window:
        for drop in (1, 8):
            same(case.rows - 2, 2, 40, drop)
    same(case.rows, 0, 0, 0, fused=True)


@pytest.mark.parametrize("parts", [2, 40])
def test_parts_of_very_different_scores(on_metal, parts):
    """The last part has the largest scores by far, the first one saw nothing."""
    rng = np.random.default_rng(parts)
    sums, totals = rng.normal(size=(parts, 3, 40)), rng.uniform(1, 2, size=(parts, 3))
    most = rng.normal(size=(parts, 3))
    most[-1], most[0], totals[0], sums[0] = 200, -np.inf, 0, 0
    bounds = np.stack([most, totals], axis=-1)
    arrays = [mx.array(array.astype(np.float32)) for array in (sums, bounds)]
    (got,) = on_metal(few_row_merge_call(parts, (1, 1, 3, 40), F32), arrays)
    np.testing.assert_allclose(wide(got), sums[-1] / totals[-1][:, None], rtol=1e-5)


def test_a_compiler_has_no_choice_of_what_to_fuse(on_metal):
    case = replace(FIXED[0], rows=16, share=4, context=1500)  # many sums, and maxima that grow on the way
    plain, fused = (on_metal(case.call(), case.arrays(), fused=fused) for fused in (False, True))
    for mine, other in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(wide(mine), wide(other))


def test_with_fused_multiply_add(on_metal):
    check(run(on_metal, WINDOWS[4], fused=True), WINDOWS[4])


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_rule_of_memory_is_broken(on_metal, sanitizer):
    # Two SIMD-groups, two parts; heads that do not fill a chunk, a buffer that does not fill a tile.
    case = Case(5, 2, 40, 150, kv_heads=2, batch=2, window=60, spare=0)
    check(run(on_metal, case, sanitizer=sanitizer), case)


@pytest.mark.parametrize("case", [Case(5, 2, 64, 70, dtype=BF16), Case(2, 1, 2, 0, spare=0)])
def test_address_spaces(on_metal, case):
    on_metal.check_address_spaces(case.call(), case.arrays())
    # Few numbers are passed in another way.
    merge = few_row_merge_call(2, (1, 1, 1, 2), F32)
    for rows in (1, 9):
        on_metal.check_address_spaces(merge, [mx.zeros((2, rows, 2)), mx.zeros((2, rows, 2))])


def test_impossible_shapes_are_refused():
    for queries, keys in (((1, 3, 2, 8), (1, 2, 4, 8)), ((1, 2, 2, 300), (1, 2, 4, 300)), ((1, 2, 2, 8), (1, 2, 0, 8))):
        with pytest.raises(ValueError, match="few_row_attention: got"):
            few_row_attention_call(queries, keys, F32, window=None, sink=0, causal=True)


def test_fixed_parts_are_counted_from_position_0():
    def parts(capacity: int, window: int | None = None) -> int:
        shapes = (1, 1, 2, 8), (1, 1, capacity, 8)
        call = few_row_attention_call(*shapes, F32, window=window, sink=0, causal=True, fixed=True)
        return call.output_shapes[0][0]

    assert [parts(n) for n in (1, 512, 513, 10**5)] == [2, 2, 3, 391]
    assert [parts(n, window=9) for n in (1, 256, 257, 512)] == [2, 2, 3, 3]  # the first one may have begun before
    with pytest.raises(ValueError, match="got a sink of 3 with parts at fixed positions"):
        few_row_attention_call((1, 1, 2, 8), (1, 1, 9, 8), F32, window=4, sink=3, causal=True, fixed=True)


def test_parts_are_few_and_grow_with_the_buffer():
    assert [part_count(n) for n in (1, 128, 129, 4096, 4097, 32768, 10**6)] == [1, 1, 2, 32, 17, 32, 31]

"""The emulator itself: SIMD operations, thread numbers, buffers and rounding mean what Metal means by them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from .build import Builder, KernelError
from .emulator import Emulator

LANES = np.arange(32)


@pytest.fixture
def run(msl_cache):
    """Run a body once for each of `threads`, with output y and inputs by name."""

    def call(
        body, threads=32, group=32, *, shape=None, dtype=mx.float32, seed=1, init_value=None, template=(), **inputs
    ):
        kernel = Emulator(Builder(msl_cache), seed).metal_kernel("sample", list(inputs), ["y"], body)
        grid, group = ((n, 1, 1) if isinstance(n, int) else n for n in (threads, group))
        (y,) = kernel(
            inputs=list(inputs.values()),
            output_shapes=[shape or (int(np.prod(grid)),)],
            output_dtypes=[dtype],
            grid=grid,
            threadgroup=group,
            template=list(template),
            init_value=init_value,
        )
        return np.array(y.astype(mx.float32) if dtype == mx.bfloat16 else y)

    return call


VALUES = np.random.default_rng(0).normal(size=32).astype(np.float32)


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("simd_max(VALUE)", np.full(32, VALUES.max())),
        ("simd_min(VALUE)", np.full(32, VALUES.min())),
        ("simd_shuffle(VALUE, ushort(5))", np.full(32, VALUES[5])),
        ("simd_shuffle(VALUE, ushort(31 - lane))", VALUES[::-1]),
        ("simd_broadcast(VALUE, ushort(9))", np.full(32, VALUES[9])),
        ("simd_shuffle_xor(VALUE, ushort(1))", VALUES[LANES ^ 1]),
        ("simd_shuffle_down(VALUE, ushort(3))", VALUES[np.where(LANES < 29, LANES + 3, LANES)]),
        ("simd_shuffle_up(VALUE, ushort(3))", VALUES[np.where(LANES > 2, LANES - 3, LANES)]),
        ("float(simd_or(1u << lane))", np.full(32, 2.0**32)),
        ("float(simd_and(lane | 4u))", np.full(32, 4.0)),
        ("float(simd_sum(lane))", np.full(32, 496.0)),
        ("float(simd_prefix_inclusive_sum(lane))", np.cumsum(LANES)),
        ("float(simd_prefix_exclusive_sum(lane))", np.cumsum(LANES) - LANES),
        ("float(simd_product(lane < 3 ? 2 : 1))", np.full(32, 8.0)),
        ("simd_any(lane == 7) ? 1.0f : 0.0f", np.ones(32)),
        ("simd_all(lane != 7) ? 1.0f : 0.0f", np.zeros(32)),
        ("as_type<float>(as_type<uint>(VALUE))", VALUES),
        ("fma(VALUE, 2.0f, 1.0f)", VALUES * 2 + 1),
        ("max(VALUE, 0.0f) + min(VALUE, 0.0f)", VALUES),
    ],
)
def test_operations_of_a_simdgroup(run, expression, want):
    expression = expression.replace("VALUE", "x[lane]")
    y = run(f"uint lane = thread_index_in_simdgroup; y[lane] = {expression};", x=mx.array(VALUES))
    np.testing.assert_array_equal(y, want.astype(np.float32))


def test_sums_of_floats_and_functions(run):
    y = run("float v = x[thread_index_in_simdgroup]; y[thread_index_in_simdgroup] = simd_sum(v);", x=mx.array(VALUES))
    np.testing.assert_allclose(y, VALUES.astype(float).sum(), rtol=1e-6)
    for name, function in (("exp", np.exp), ("tanh", np.tanh)):
        for space in ("", "precise::"):
            body = f"uint i = thread_index_in_simdgroup; y[i] = {space}{name}(x[i]);"
            np.testing.assert_allclose(run(body, x=mx.array(VALUES)), function(VALUES), rtol=1e-6)
    body = "uint i = thread_index_in_simdgroup; y[i] = rsqrt(abs_x[i]) * sqrt(abs_x[i]) + log(exp(abs_x[i]));"
    np.testing.assert_allclose(run(body, abs_x=mx.array(abs(VALUES))), 1 + abs(VALUES), rtol=1e-5)


def test_lanes_that_have_returned_take_no_part(run):
    body = "uint lane = thread_index_in_simdgroup; if (lane >= 20) { return; } y[lane] = float(simd_sum(lane));"
    y = run(body)
    np.testing.assert_array_equal(y[:20], np.full(20, 190.0))
    assert np.isnan(y[20:]).all()  # nobody wrote there


def test_thread_numbers_in_three_dimensions(run):
    # 5 x 3 x 2 threads in groups of 2 x 2 x 2: groups at the edge are smaller.
    body = """
    uint3 p = thread_position_in_grid;
    uint at = (p.z * 3 + p.y) * 5 + p.x;
    uint3 g = threadgroup_position_in_grid;
    uint3 n = threadgroups_per_grid;
    uint3 t = thread_position_in_threadgroup;
    uint3 size = threads_per_threadgroup;
    uint3 whole = dispatch_threads_per_threadgroup;
    bool right = p.x == g.x * whole.x + t.x && p.y == g.y * whole.y + t.y && p.z == g.z * whole.z + t.z;
    right = right && n.x == 3 && n.y == 2 && n.z == 1 && threads_per_grid.x == 5 && grid_size.y == 3;
    right = right && size.x == (g.x == 2 ? 1u : 2u) && size.y == (g.y == 1 ? 1u : 2u) && whole.x == 2;
    right = right && thread_index_in_threadgroup == (t.z * size.y + t.y) * size.x + t.x && grid_origin.x == 0;
    y[at] = right ? float(at) : -1.0f;
    """
    np.testing.assert_array_equal(run(body, (5, 3, 2), (2, 2, 2)), np.arange(30))


def test_numbers_within_a_threadgroup(run):
    body = """
    uint i = thread_index_in_threadgroup;
    bool right = thread_index_in_simdgroup == i % 32 && simdgroup_index_in_threadgroup == i / 32;
    right = right && simdgroups_per_threadgroup == 3 && threads_per_simdgroup == 32 && thread_execution_width == 32;
    y[i] = right ? 1.0f : 0.0f;
    """
    np.testing.assert_array_equal(run(body, 70, 70), np.ones(70))


def test_threadgroups_are_cut_to_the_grid(run):
    body = "y[thread_index_in_threadgroup] = float(dispatch_threads_per_threadgroup.x);"
    np.testing.assert_array_equal(run(body, 12, 256), np.full(12, 12.0))


def test_shapes_strides_scalars_and_templates(run):
    body = """
    uint i = thread_index_in_threadgroup;
    y[i] = s * x[i] + float(x_shape[1]) + 10.0f * float(x_strides[0]) + 100.0f * float(x_ndim) + (ON ? 1000.0f : 0.0f);
    """
    x = mx.arange(12, dtype=mx.float32).reshape(3, 4)
    y = run(body, 12, 12, x=x, s=mx.array(0.5), template=[("ON", True), ("N", 3)])
    np.testing.assert_array_equal(y, 0.5 * np.arange(12) + 4 + 40 + 200 + 1000)


def test_outputs_are_filled_as_asked_or_not_at_all(run):
    body = "if (thread_index_in_threadgroup == 1) { y[1] = 5.0f; }"
    np.testing.assert_array_equal(run(body, 3, 3, init_value=2.0), [2, 5, 2])
    np.testing.assert_array_equal(run(body, 3, 3), [np.nan, 5, np.nan])


def test_threadgroup_memory_is_fresh_for_every_threadgroup(run):
    body = """
    threadgroup float seen;
    float before = seen;
    seen = 3.0f;
    y[thread_position_in_grid.x] = before;
    """
    assert np.isnan(run(body, 4, 1)).all()


def test_bfloat16_rounds_as_mlx_does(run):
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(size=200), [0.0, -0.0, 1e38, -1e38, 3.4e38, 1e-40, np.inf, -np.inf, np.nan]])
    x = mx.array(values.astype(np.float32))
    halfway = mx.array(np.arange(0x3F800000, 0x3F900000, 0x8000, dtype=np.uint32)).view(mx.float32)
    for array in (x, halfway):
        body = "uint i = thread_position_in_grid.x; y[i] = T(x[i]);"
        y = run(body, array.size, 32, dtype=mx.bfloat16, x=array, template=[("T", mx.bfloat16)])
        np.testing.assert_array_equal(y, np.array(array.astype(mx.bfloat16).astype(mx.float32)))


def test_arithmetic_of_bfloat16_rounds_after_every_operation(run):
    a, b = (mx.array(VALUES * scale).astype(mx.bfloat16) for scale in (1, 3))
    body = "uint i = thread_position_in_grid.x; y[i] = a[i] * b[i] + a[i] - b[i];"
    y = run(body, dtype=mx.bfloat16, a=a, b=b)
    np.testing.assert_array_equal(y, np.array((a * b + a - b).astype(mx.float32)))


def test_lanes_and_threadgroups_run_in_an_order_that_depends_on_the_seed(run):
    # The last one to write wins.
    last = "y[0] = float(thread_position_in_grid.x);"
    assert len({float(run(last, 64, 64, shape=(1,), seed=seed)[0]) for seed in range(8)}) > 4
    assert len({float(run(last, 64, 1, shape=(1,), seed=seed)[0]) for seed in range(8)}) > 4


def test_a_threadgroup_that_is_too_large_or_empty(run):
    body = "y[thread_position_in_grid.x] = 0.0f;"
    with pytest.raises(KernelError, match="larger than 1024"):
        run(body, 2048, 1025)
    with pytest.raises(KernelError, match="empty grid"):
        run(body, 4, 0)


def test_arrays_in_another_order_are_copied_first(run):
    x = mx.arange(6, dtype=mx.float32).reshape(2, 3).T
    body = "uint i = thread_index_in_threadgroup; y[i] = x[i];"
    np.testing.assert_array_equal(run(body, 6, 6, x=x), [0, 3, 1, 4, 2, 5])


@pytest.mark.parametrize(("fused", "rest"), [(False, 0.0), (True, 2.0**-24)])
def test_products_are_fused_with_sums_where_that_is_asked_for(msl_cache, fused, rest):
    # (1 + 2^-12)^2 is 1 + 2^-11 + 2^-24, of which float32 keeps all but the last part.
    a, c = mx.full((32,), 1 + 2.0**-12), mx.full((32,), -(1 + 2.0**-11))
    body = "uint i = thread_position_in_grid.x; y[i] = a[i] * a[i] + c[i];"
    kernel = Emulator(Builder(msl_cache, fused=fused)).metal_kernel("fuse", ["a", "c"], ["y"], body)
    launch = {"output_shapes": [(32,)], "output_dtypes": [mx.float32], "grid": (32, 1, 1), "threadgroup": (32, 1, 1)}
    (y,) = kernel(inputs=[a, c], **launch)
    np.testing.assert_array_equal(np.array(y), rest)

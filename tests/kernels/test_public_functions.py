"""Each operation's public function, with Metal and without: the same numbers, and every argument counts."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.conv_add_norm import AFTER, add_norm, conv_add_norm
from dflash2_mlx.kernels.dispatch import KERNELS, dispatcher
from dflash2_mlx.kernels.dynamic_conv import convolve, dynamic_conv, split_base
from dflash2_mlx.kernels.few_row_attention import Sight, attention_twin, few_row_attention, mask_of
from dflash2_mlx.kernels.gated_delta_verify import Rows, gated_delta_twin, gated_delta_verify
from dflash2_mlx.kernels.norm_rope import norm_rope, norm_rope_twin
from dflash2_mlx.kernels.select_walk import Selector, select, select_twin
from dflash2_mlx.kernels.top_candidates import candidate_lists, top_candidates
from dflash2_mlx.sampling import rng
from dflash2_mlx.sampling.acceptance import Drafted, accept, accept_twin
from dflash2_mlx.sampling.acceptance import wanted as accept_wanted
from dflash2_mlx.sampling.config import SamplingConfig

BATCH, ROWS, CHANNELS, GROUP = 2, 5, 24, 4


def random(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def ran_on_metal(name: str) -> bool:
    (state,) = (state for state in dispatcher().states() if state.name == name)
    return state.runs == "metal" and state.tested


def close(got: mx.array, want: mx.array) -> None:
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=2e-5, atol=2e-5)


def convolution() -> tuple[mx.array, mx.array, mx.array]:
    return (
        random(BATCH, ROWS, CHANNELS),
        random(2, 2, CHANNELS, seed=1),
        random(BATCH, ROWS, 2, 2, CHANNELS // GROUP, seed=2),
    )


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("batched", [True, False])
def test_dynamic_conv(metal, side, batched):
    x, base, delta = convolution()
    if not batched:
        x, delta = x[0], delta[0]
    close(dynamic_conv(x, base, delta, side), convolve(x, split_base(base, CHANNELS // GROUP), delta, side))
    assert ran_on_metal("dynamic_conv")


@pytest.mark.parametrize("eps", [1e-6, 0.3])
@pytest.mark.parametrize("batched", [True, False])
def test_conv_add_norm(metal, eps, batched):
    y, base, delta = convolution()
    residual, weight = random(*y.shape, seed=3), random(CHANNELS, seed=4)
    if not batched:
        y, delta, residual = y[0], delta[0], residual[0]
    got = conv_add_norm(y, base, delta, residual, weight, eps)
    want = add_norm(convolve(y, split_base(base, CHANNELS // GROUP), delta, AFTER), residual, weight, eps)
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs)
    assert ran_on_metal("conv_add_norm")


@pytest.mark.parametrize(("theta", "eps"), [(1e4, 1e-6), (1e6, 1e-6), (1e4, 0.4)])
def test_norm_rope(metal, theta, eps):
    rows, norms, start = random(BATCH, ROWS, 4, 16), random(3, 16, seed=1), mx.array([7, 900], dtype=mx.int32)
    close(norm_rope(rows, norms, start, theta=theta, eps=eps), norm_rope_twin(rows, norms, start, theta=theta, eps=eps))
    assert ran_on_metal("norm_rope")


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.5])
@pytest.mark.parametrize(("multiplier", "cap"), [(1.0, None), (0.2, None), (3.0, 2.0)])
def test_select(metal, temperature, multiplier, cap):
    books = [random(300, 8, seed=seed) for seed in (1, 2)]
    lists = candidate_lists(random(BATCH, 4, 300, seed=3), 6)
    gate, anchor, selector = random(BATCH, 4, 8, seed=4), mx.array([9, 400]), Selector(*books, multiplier, cap)
    noise = mx.random.gumbel((BATCH, 4, 6), key=mx.random.key(5)) if temperature else None
    got = select(lists, gate, anchor, selector, temperature=temperature, noise=noise)
    want = select_twin(lists, gate, anchor, selector, temperature, noise)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.candidates, want.candidates)
    close(got.unary, want.unary)
    assert (got.q is None) == (want.q is None) == (temperature == 0)
    if want.q is not None:
        close(got.q, want.q)
    assert ran_on_metal("select_walk") and ran_on_metal("top_candidates")


@pytest.mark.parametrize(("causal", "window", "sink"), [(True, None, 0), (True, 6, 0), (False, 6, 3)])
@pytest.mark.parametrize("capacity", [40, 140])
@pytest.mark.parametrize("traced", [True, False])
def test_few_row_attention(metal, causal, window, sink, capacity, traced):
    base = 0 if window is None else 11
    queries, keys, values = (random(1, heads, n, 16, seed=n) for heads, n in ((4, 3), (2, capacity), (2, capacity)))
    start = mx.array([base + 30], dtype=mx.int32)
    mask = mask_of(start, base, 3, capacity, causal=causal, window=window, sink=sink)
    sight = Sight(mask, start, mx.array(base) if traced else base, causal, window, sink)
    close(few_row_attention(queries, keys, values, sight), attention_twin(queries, keys, values, mask))
    assert ran_on_metal("few_row_attention")


@pytest.mark.parametrize("keep", [0, 2, 4])
def test_gated_delta_verify(metal, keep):
    def side(seed: int, rows: int) -> Rows:
        q, k = (random(1, rows, 2, 32, seed=seed + n) / 6 for n in (0, 1))
        v, g, beta = (
            random(1, rows, 4, 5, seed=seed + 2),
            random(1, rows, 4, seed=seed + 3),
            random(1, rows, 4, seed=seed),
        )
        return Rows(q, k, v, mx.sigmoid(g), mx.sigmoid(beta))

    state, old, new, count = random(1, 4, 5, 32), side(10, 4), side(20, 3), mx.array([keep], dtype=mx.int32)
    got, want = gated_delta_verify(state, old, count, new), gated_delta_twin(state, old, count, new)
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs)
    assert ran_on_metal("gated_delta_verify")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(
    "settings",
    [{"top_k": 5}, {"top_k": 5, "top_p": 0.6}, {"top_k": 8, "min_p": 0.2, "temperature": 2.0}],
    ids=["k", "p", "min"],
)
def test_accept(metal, dtype, settings):
    logits = (2 * random(40, 4, 50)).astype(dtype)
    candidates, values = top_candidates(logits[:, :-1] + random(40, 3, 50, seed=1).astype(dtype), 6)
    drafted = Drafted(candidates[..., 0], candidates, mx.softmax(values, axis=-1))
    start, keys = mx.arange(40, dtype=mx.int32), rng.base_keys(2)
    sampling = SamplingConfig(**{"temperature": 0.7, **settings})
    got, want = (rule(logits, start, drafted, sampling, keys) for rule in (accept, accept_twin))
    np.testing.assert_array_equal(got.num_accepted, want.num_accepted)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert ran_on_metal("accept")


@pytest.mark.parametrize("settings", [{"top_p": 0.9}, {}, {"top_k": 33}, {"top_k": 50}, {"min_p": 0.1}])
def test_accept_leaves_to_the_twin_what_needs_the_vocabulary(metal, settings):
    sampling = SamplingConfig(temperature=0.7, **settings)
    assert not accept_wanted(sampling, 4, 50, 6)
    assert accept_wanted(SamplingConfig(temperature=0.7, top_k=32), 4, 50, 6)
    assert not accept_wanted(SamplingConfig(temperature=0.7, top_k=32), 4, 50, 33)


def test_every_kernel_has_its_test_here():
    tested = {name.removeprefix("test_") for name in globals()}
    products = {name for name in KERNELS if name.startswith("qmm_")}  # in test_qmm_rows.py
    assert set(KERNELS) - {"top_candidates", "select_walk"} - products <= tested

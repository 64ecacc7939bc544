"""The gated delta recurrence: a case by hand, splitting, and rollback windows."""

import mlx.core as mx
import numpy as np
from mlx_lm.models import gated_delta as mlx_lm_gated_delta

from tests.reference import gated_delta


def random_rows(rows, seed=2):
    # Sizes odd and distinct: a transposed state cannot pass.
    rng = np.random.default_rng(seed)
    q, k = gated_delta.normalize_queries_keys(rng.normal(size=(rows, 2, 3)), rng.normal(size=(rows, 2, 3)))
    v = rng.normal(size=(rows, 4, 5))
    g = gated_delta.decay(rng.normal(size=(rows, 4)), rng.normal(size=4), rng.normal(size=4))
    return q, k, v, g, gated_delta.write_strength(rng.normal(size=(rows, 4)))


def test_two_tokens_by_hand():
    k = np.array([[[1.0, 0.0]], [[0.6, 0.8]]])
    q = np.array([[[1.0, 1.0]], [[1.0, 1.0]]])
    v = np.array([[[2.0]], [[1.0]]])
    g = np.array([[0.5], [0.5]])
    beta = np.array([[1.0], [0.5]])
    y, states = gated_delta.run(q, k, v, g, beta)
    # Token 1 writes 2 at (1, 0). Token 2 decays it to 1, reads 0.6, and writes
    # 0.5 * 0.4 = 0.2 along (0.6, 0.8).
    np.testing.assert_allclose(states[:, 0, 0], [[2, 0], [1.12, 0.16]])
    np.testing.assert_allclose(y[:, 0, 0], [2, 1.28])


def test_full_strength_write_is_read_back_exactly():
    q, k, v, g, beta = random_rows(6)
    _, states = gated_delta.run(q, k, v, g, np.ones_like(beta))
    for head in range(4):
        np.testing.assert_allclose(states[-1, head] @ k[-1, head // 2], v[-1, head], atol=1e-5)


def test_splitting_the_rows_changes_nothing():
    q, k, v, g, beta = random_rows(7)
    y, states = gated_delta.run(q, k, v, g, beta)
    head, mid = gated_delta.run(q[:3], k[:3], v[:3], g[:3], beta[:3])
    tail, last = gated_delta.run(q[3:], k[3:], v[3:], g[3:], beta[3:], mid[-1])
    np.testing.assert_array_equal(np.concatenate([head, tail]), y)
    np.testing.assert_array_equal(last[-1], states[-1])


def test_normalisation():
    q, k, *_ = random_rows(3)
    np.testing.assert_allclose(np.sum(k * k, axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(np.sum(q * q, axis=-1), 1 / 3, atol=1e-5)


def test_convolution_window_after_keeping_some_rows():
    rng = np.random.default_rng(4)
    inputs, weight = rng.normal(size=(5, 3)), rng.normal(size=(3, 4))
    window = rng.normal(size=(3, 3))
    whole, windows = gated_delta.short_convolution(inputs, weight, window)
    np.testing.assert_array_equal(windows[0], window)
    for kept in range(1, 6):
        output, after = gated_delta.short_convolution(inputs[:kept], weight, window)
        np.testing.assert_allclose(output, whole[:kept])
        np.testing.assert_array_equal(after[-1], windows[kept])


def test_semantics_are_those_of_mlx_lm():
    rng = np.random.default_rng(6)
    q, k, v = rng.normal(size=(7, 2, 3)), rng.normal(size=(7, 2, 3)), rng.normal(size=(7, 4, 5))
    a, b = rng.normal(size=(7, 4)), rng.normal(size=(7, 4))
    a_log, dt_bias, state = rng.normal(size=4), rng.normal(size=4), rng.normal(size=(4, 5, 3))
    normal_q, normal_k = gated_delta.normalize_queries_keys(q, k)
    strength = gated_delta.write_strength(b)
    y, states = gated_delta.run(normal_q, normal_k, v, gated_delta.decay(a, a_log, dt_bias), strength, state)

    def batched(x):
        return mx.array(x.astype(np.float32))[None]

    mlx_q, mlx_k = mlx_lm_gated_delta.normalize_qk(batched(q), batched(k), inv_scale=3**-0.5, eps=1e-6)
    parameters = batched(a_log)[0], batched(dt_bias)[0], batched(state)
    mlx_y, mlx_state = mlx_lm_gated_delta.gated_delta_update(
        mlx_q, mlx_k, batched(v), batched(a), batched(b), *parameters, use_kernel=False
    )
    np.testing.assert_allclose(np.array(mlx_y[0]), y, atol=1e-5)
    np.testing.assert_allclose(np.array(mlx_state[0]), states[-1], atol=1e-5)

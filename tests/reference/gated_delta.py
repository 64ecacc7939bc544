"""Gated delta rule of Qwen3.5-style layers, one token and one head at a time.

Inputs of token t for value head h (key heads are shared by Hv / Hk of them)::

    q = q / sqrt(sum q^2 + 1e-6) / sqrt(Dk)        k = k / sqrt(sum k^2 + 1e-6)
    g = exp(-exp(A_log[h]) * softplus(a + dt_bias[h]))        decay, 0 ... 1
    beta = sigmoid(b)                                          write strength

The state M [Dv, Dk] maps a key to a value.  Each token decays it, reads what
it holds at k, writes the difference to v back, and is read out at q::

    M = g * M
    delta = beta * (v - M k)
    M = M + delta k^T
    y = M q

Before q, k and v are split, a causal depthwise convolution with Kc taps and a
SiLU runs over the channels.  Its state is the last Kc - 1 input rows.

Rolling back: after a pass over L rows of which the first n are kept, the
state must be the one reached by feeding only those n rows, for M and for the
convolution window alike (rows n ... n + Kc - 2 of [old window ; L new rows]).

Shape letters: L rows, Hk/Hv key/value heads, Dk/Dv their sizes, C channels.
"""

from __future__ import annotations

import numpy as np

NORM_EPS = 1e-6


def normalize_queries_keys(q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L2-normalise the last axis; the queries also get the 1/sqrt(Dk) scale."""
    q = q / np.sqrt(np.sum(q * q, axis=-1, keepdims=True) + NORM_EPS)
    k = k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True) + NORM_EPS)
    return q / np.sqrt(q.shape[-1]), k


def decay(a: np.ndarray, a_log: np.ndarray, dt_bias: np.ndarray) -> np.ndarray:
    """Decay of every row and value head: a [L, Hv] -> [L, Hv]."""
    return np.exp(-np.exp(a_log) * np.logaddexp(0.0, a + dt_bias))


def write_strength(b: np.ndarray) -> np.ndarray:
    """Sigmoid of b [L, Hv]."""
    return 1.0 / (1.0 + np.exp(-b))


def run(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Feed L rows; q and k already normalised.

    Shapes:
        q, k: [L, Hk, Dk]; v: [L, Hv, Dv]; g, beta: [L, Hv]
        state: [Hv, Dv, Dk] or None for zeros
    Returns:
        y [L, Hv, Dv] and the states after every row [L, Hv, Dv, Dk]
    """
    rows, key_heads, key_dim = k.shape
    value_heads, value_dim = v.shape[1:]
    share = value_heads // key_heads
    memory = np.zeros((value_heads, value_dim, key_dim))
    if state is not None:
        memory = np.array(state, dtype=np.float64)
    y = np.zeros((rows, value_heads, value_dim))
    states = np.zeros((rows, value_heads, value_dim, key_dim))
    for row in range(rows):
        for head in range(value_heads):
            key, query = k[row, head // share], q[row, head // share]
            held = g[row, head] * memory[head]
            delta = beta[row, head] * (v[row, head] - held @ key)
            memory[head] = held + np.outer(delta, key)
            y[row, head] = memory[head] @ query
        states[row] = memory
    return y, states


def short_convolution(
    inputs: np.ndarray, weight: np.ndarray, window: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Causal depthwise convolution with SiLU, and the windows it leaves behind.

    Shapes:
        inputs: [L, C]; weight: [C, Kc], the last tap on the current row
        window: [Kc - 1, C] or None for zeros
    Returns:
        [L, C] and the window after keeping 0 ... L rows [L + 1, Kc - 1, C]
    """
    rows, channels = inputs.shape
    taps = weight.shape[1]
    if window is None:
        window = np.zeros((taps - 1, channels))
    stream = np.concatenate([window, inputs])
    output = np.zeros((rows, channels))
    for row in range(rows):
        for tap in range(taps):
            output[row] += weight[:, tap] * stream[row + tap]
    output = output / (1.0 + np.exp(-output))
    windows = np.array([stream[keep : keep + taps - 1] for keep in range(rows + 1)])
    return output, windows

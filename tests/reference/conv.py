"""Grouped dynamic convolution over the rows of one block (docs/dflash2.md 3.7).

One module sits around a sublayer and has two sides: side 0 mixes the rows
before the sublayer, side 1 mixes the sublayer's output.  With ``x`` the
normalised input rows, the coefficients of *both* sides come from ``x``::

    c[i]                   = kernel_projection @ x[i]
    dynamic[i][s][t][grp]  = c[i][(s * W + t) * G + grp]

    prepare(x)[i][ch] = sum over taps t <= i of
                        (base[0][t][ch] + dynamic[i][0][t][ch // g]) * x[i - t][ch]
    finish(y)[i][ch]  = sum over taps t <= i of
                        (base[1][t][ch] + dynamic[i][1][t][ch // g]) * y[i - t][ch]

``g`` is the number of channels per group and ``G = D / g`` the number of
groups.  Every tap of row i uses the coefficients of row i.  Row 0 is the
anchor: it has no predecessor and reads zero there.  Nothing is carried from
one block to the next.

Shape letters: L rows of the block, D hidden size, W taps, G groups.
"""

from __future__ import annotations

import numpy as np


def dynamic_coefficients(x: np.ndarray, kernel_projection: np.ndarray, taps: int, group_size: int) -> np.ndarray:
    """Project every row to its own coefficients.

    Shapes:
        x:                 [L, D]
        kernel_projection: [2 * W * G, D]
    Returns:
        [L, 2, W, G]
    """
    rows, channels = x.shape
    groups = channels // group_size
    result = np.zeros((rows, 2, taps, groups))
    for i in range(rows):
        for side in range(2):
            for tap in range(taps):
                for group in range(groups):
                    index = (side * taps + tap) * groups + group
                    result[i, side, tap, group] = np.dot(kernel_projection[index], x[i])
    return result


def convolve(values: np.ndarray, base: np.ndarray, dynamic: np.ndarray, group_size: int) -> np.ndarray:
    """Mix each row with its predecessors, one channel at a time.

    Shapes:
        values:  [L, D]
        base:    [W, D]     one side of base_kernel
        dynamic: [L, W, G]  the same side of the dynamic coefficients
    Returns:
        [L, D]
    """
    rows, channels = values.shape
    taps = base.shape[0]
    result = np.zeros((rows, channels))
    for i in range(rows):
        for channel in range(channels):
            for tap in range(taps):
                if tap > i:
                    continue  # the block starts at row 0: nothing before it
                coefficient = base[tap, channel] + dynamic[i, tap, channel // group_size]
                result[i, channel] += coefficient * values[i - tap, channel]
    return result


def prepare(
    x: np.ndarray, base_kernel: np.ndarray, kernel_projection: np.ndarray, group_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Convolve the sublayer's input; return it with the coefficients for finish.

    Shapes:
        x:                 [L, D]
        base_kernel:       [2, W, D]
        kernel_projection: [2 * W * G, D]
    Returns:
        [L, D] and the side-1 coefficients [L, W, G]
    """
    x = np.asarray(x, dtype=np.float64)
    base_kernel = np.asarray(base_kernel, dtype=np.float64)
    kernel_projection = np.asarray(kernel_projection, dtype=np.float64)
    dynamic = dynamic_coefficients(x, kernel_projection, base_kernel.shape[1], group_size)
    return convolve(x, base_kernel[0], dynamic[:, 0], group_size), dynamic[:, 1]


def finish(y: np.ndarray, after: np.ndarray, base_kernel: np.ndarray, group_size: int) -> np.ndarray:
    """Convolve the sublayer's output with the coefficients prepare returned.

    Shapes:
        y:           [L, D]
        after:       [L, W, G]
        base_kernel: [2, W, D]
    Returns:
        [L, D]
    """
    y = np.asarray(y, dtype=np.float64)
    base_kernel = np.asarray(base_kernel, dtype=np.float64)
    return convolve(y, base_kernel[1], after, group_size)


def conv_add_norm(
    y: np.ndarray,
    residual: np.ndarray,
    after: np.ndarray,
    base_kernel: np.ndarray,
    weight: np.ndarray,
    eps: float,
    group_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Finish a sublayer and normalise what the next one reads.

    ``stream = residual + finish(y)`` and
    ``normed[i] = weight * stream[i] / sqrt(mean(stream[i] ** 2) + eps)``.

    Shapes:
        y, residual: [L, D]
        after:       [L, W, G]
        base_kernel: [2, W, D]
        weight:      [D]
    Returns:
        stream and normed, both [L, D]
    """
    stream = np.asarray(residual, dtype=np.float64) + finish(y, after, base_kernel, group_size)
    normed = np.zeros_like(stream)
    for i, row in enumerate(stream):
        normed[i] = np.asarray(weight, dtype=np.float64) * row / np.sqrt(np.mean(row * row) + eps)
    return stream, normed

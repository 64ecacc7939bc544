"""The two-sided grouped dynamic convolution around a sublayer.

Owns: the coefficients (base kernel plus a projection of the module's input) and the two sides. The
arithmetic is `kernels.dynamic_conv`. Names follow the checkpoint.

Reference: DFlash 2 specification 3.7.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..kernels.dynamic_conv import dynamic_conv

BEFORE, AFTER = 0, 1


class DynamicConv(nn.Module):
    """Convolution before and after one sublayer, both with coefficients computed from the sublayer's input.

    Args:
        channels: D.
        kernel_size: W, taps: this row and the W - 1 rows before it.
        group_size: neighbouring channels that share the dynamic part of a coefficient.
    """

    def __init__(self, channels: int, kernel_size: int, group_size: int):
        super().__init__()
        self.taps = kernel_size
        self.groups = channels // group_size
        self.base_kernel = mx.zeros((2, kernel_size, channels))
        self.kernel_projection = nn.Linear(channels, 2 * kernel_size * self.groups, bias=False)

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Convolve the sublayer's input; also return the coefficients for `finish`.

        Shapes:
            x: [B, L, D] -> [B, L, D] and [B, L, W, G]
        """
        batch, length, _ = x.shape
        delta = self.kernel_projection(x).reshape(batch, length, 2, self.taps, self.groups)
        out = dynamic_conv(x, self._base(BEFORE), delta[:, :, BEFORE])
        return out, delta[:, :, AFTER]

    def finish(self, y: mx.array, delta: mx.array) -> mx.array:
        """Convolve the sublayer's output [B, L, D] with the coefficients `prepare` returned."""
        return dynamic_conv(y, self._base(AFTER), delta)

    def _base(self, side: int) -> mx.array:
        return self.base_kernel[side : side + 1].squeeze(0)  # a view; base_kernel[side] would copy


class NoConv(nn.Module):
    """DFlash v1: no convolution around the sublayer."""

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        return x, mx.zeros((), dtype=x.dtype)

    def finish(self, y: mx.array, delta: mx.array) -> mx.array:
        return y

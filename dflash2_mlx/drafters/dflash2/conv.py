"""The two-sided grouped dynamic convolution around a sublayer.

Owns: the coefficients (base kernel plus a projection of the module's input), the two sides, and the residual sum and
norm that follow the second one. The arithmetic is in `kernels`. Names follow the checkpoint.

Reference: docs/dflash2.md 3.7.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ...kernels.conv_add_norm import add_norm, conv_add_norm, conv_add_norm_twin
from ...kernels.dynamic_conv import convolve, dynamic_conv, split_base

BEFORE = 0


class DynamicConv(nn.Module):
    """Convolution before and after one sublayer, both with coefficients computed from the sublayer's input.

    Until its base is frozen it runs the twins only: Metal kernels have no gradients.

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
        self._split: list[mx.array] | None = None

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Convolve the sublayer's input; also return the coefficients, for `finish`.

        Shapes:
            x: [..., L, D] -> [..., L, D] and [..., L, 2, W, G]
        """
        delta = self.kernel_projection(x).reshape(*x.shape[:-1], 2, self.taps, self.groups)
        if self._split is None:
            return convolve(x, split_base(self.base_kernel, self.groups), delta, BEFORE), delta
        return dynamic_conv(x, self.base_kernel, delta, BEFORE, split=self._split), delta

    def finish(self, y: mx.array, delta: mx.array, residual: mx.array, norm: nn.RMSNorm) -> tuple[mx.array, mx.array]:
        """Convolve the sublayer's output, add it to the stream, and norm the sum for what comes next.

        Shapes:
            y, residual: [..., L, D] -> stream and normed [..., L, D]
        Args:
            delta: what `prepare` returned.
        """
        if self._split is None:
            split = split_base(self.base_kernel, self.groups)
            return conv_add_norm_twin(y, split, delta, residual, norm.weight, norm.eps)
        return conv_add_norm(y, self.base_kernel, delta, residual, norm.weight, norm.eps, split=self._split)

    def freeze_base(self) -> None:
        """Split the base kernel once; it may not change afterwards."""
        self._split = split_base(self.base_kernel, self.groups)
        mx.eval(self._split)


class NoConv(nn.Module):
    """DFlash v1: no convolution around the sublayer; called as the convolution is."""

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """The rows as they are, and nothing for `finish`."""
        return x, mx.zeros((), dtype=x.dtype)

    def finish(self, y: mx.array, delta: mx.array, residual: mx.array, norm: nn.RMSNorm) -> tuple[mx.array, mx.array]:
        """Residual sum, and its norm: [B, L, D] each."""
        return add_norm(y, residual, norm.weight, norm.eps)

    def freeze_base(self) -> None:
        """Nothing to prepare."""

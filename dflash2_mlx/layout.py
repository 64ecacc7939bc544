"""How dense weights lie in memory on MLX's CPU back-end.

Owns: one decision. A linear layer multiplies by its weight's transpose; a BLAS that finds the weight stored
output-major packs it anew at every call with two or more rows, and for a handful of rows that packing costs
more than the product. Stored input-major (the array keeps its [out, in] shape, only its strides change) the
same call is faster for one row too. Values are untouched. The GPU's kernels want the usual order.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


def on_cpu() -> bool:
    """Whether MLX's default device is the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def store_for_device(model: nn.Module) -> None:
    """Evaluate a model's parameters, with dense matrices input-major where the CPU runs them."""
    if on_cpu():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight = mx.contiguous(module.weight.T).T
    mx.eval(model.parameters())

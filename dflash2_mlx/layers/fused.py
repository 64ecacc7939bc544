"""Several linear layers of one input, run as one product.

Owns: joining of weights that the checkpoint stores apart (q, k, v; gate, up; K and V of all layers). One product
of all rows costs less than several: fewer launches on a GPU, fewer hand-overs between threads on the CPU. Values
are those of the separate products. Training keeps the parts apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from ..device.layout import store_for_device
from .quantized import with_rows


@dataclass(frozen=True)
class Joined:
    """One layer that stands for several; no module, so that walks through a model see the checkpoint's layers only."""

    layer: nn.Module

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array = self.layer(x)
        return output


def run_joined(joined: Joined | None, parts: Sequence[nn.Module], x: mx.array) -> mx.array:
    """Outputs of `parts` side by side, through `joined` where there is one: [..., D] -> [..., sum of widths]."""
    if joined is not None:
        return joined(x)
    return mx.concatenate([part(x) for part in parts], axis=-1)


def join(parts: Sequence[nn.Module]) -> Joined | None:
    """One linear layer with the rows of all parts; None where parts are stored in different ways."""
    if not all(_storage(part) == _storage(parts[0]) for part in parts):
        return None
    first = parts[0]
    layer: nn.Module
    if isinstance(first, nn.QuantizedLinear):
        columns = first.weight.shape[1] * 32 // first.bits
        layer = nn.QuantizedLinear(columns, 1, False, first.group_size, first.bits, mode=first.mode)
    else:
        layer = nn.Linear(1, 1, bias=False)
    layer.update({name: mx.concatenate([part[name] for part in parts]) for name in first.parameters()})
    store_for_device(layer)
    return Joined(with_rows(layer))


def share(joined: Joined | None, parts: Sequence[nn.Module]) -> None:
    """Make the parts views of the joined weights, so that nothing is in memory twice."""
    if joined is None:
        return
    start = 0
    for part in parts:
        rows = part["weight"].shape[0]
        part.update({name: array[start : start + rows] for name, array in joined.layer.parameters().items()})
        mx.eval(part.parameters())
        start += rows


def _storage(part: nn.Module) -> tuple[object, ...]:
    if isinstance(part, nn.QuantizedLinear):
        return type(part), part.group_size, part.bits, part.mode
    return type(part), part["weight"].dtype

"""MLX's CPU back-end: how dense weights lie in memory there, what a block of rows costs, and what memory is free.

A linear layer multiplies by its weight's transpose; a BLAS that finds the weight stored output-major packs it anew
at every call with two or more rows, and for a handful of rows that packing costs more than the product. Stored
input-major (the array keeps its [out, in] shape, only its strides change) the same call is faster for one row too.
Values are untouched. The GPU's kernels want the usual order.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from .runtime import owner

BLOCK_ROWS = 8
_FAST_BELOW = 4.0  # single rows that a block of 8 may cost; OpenBLAS takes 1.2, the reference BLAS 7 and more
_SHAPE = (1024, 4096)
_REPEATS = 7
_MEMINFO = Path("/proc/meminfo")


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


@functools.cache
def block_cost() -> float:
    """Seconds of a float32 product of 8 rows on the default device, in single rows: 8 where a block saves nothing.

    Timed once per process, in up to a third of a second.
    """
    return owner().call(_time_block)


def fast_blas() -> bool:
    """Whether a block of rows pays on MLX's CPU back-end, found by timing one product and not by a library's name."""
    return block_cost() < _FAST_BELOW


def _time_block() -> float:
    inner, outer = _SHAPE
    weight = mx.contiguous(mx.full((inner, outer), 0.5)).T  # as `store_for_device` leaves a layer of this size
    inputs = [mx.full((rows, inner), 0.5) for rows in (1, BLOCK_ROWS)]
    mx.eval(weight, *inputs)
    best = [float("inf"), float("inf")]
    for _ in range(_REPEATS):  # in turns, and the best of each: others use this machine too
        for which, rows in enumerate(inputs):
            began = time.perf_counter()
            mx.eval(rows @ weight.T)
            best[which] = min(best[which], time.perf_counter() - began)
    return best[1] / best[0]


def system_memory(field: str) -> int | None:
    """Bytes that Linux tells under a name of /proc/meminfo, such as "MemTotal" or "MemAvailable"; None elsewhere."""
    if not _MEMINFO.is_file():
        return None
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None

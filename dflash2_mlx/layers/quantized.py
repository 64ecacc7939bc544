"""Quantized layers that multiply a few rows through `kernels.qmm_rows`.

Owns: the two modules that take the place of MLX's own in a loaded model, leaf by leaf, and which leaves that can be.
They hold the same arrays under the same names, so parameters, saving and counting see no difference. No class is
changed, and a model that was loaded elsewhere keeps its own modules. Layers of experts stay MLX's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from ..errors import SettingError
from ..kernels import few_row_attention
from ..kernels.dispatch import dispatcher, inexact
from ..kernels.qmm_calls import MATRIX, TENSOR, TILE
from ..kernels.qmm_forms import AFFINE
from ..kernels.qmm_rows import Packed, exactness_problem, quantized_rows, stock_product

FAST, EXACT = "fast", "exact"
EXACTNESS = (FAST, EXACT)


class RowsLinear(nn.QuantizedLinear):
    """A quantized linear layer.

    Args:
        layer: whose arrays it takes over.
        exact: a row's result does not depend on the rows beside it; see `quantized_rows`.
    """

    def __init__(self, layer: nn.QuantizedLinear, *, exact: bool = False):
        nn.Module.__init__(self)  # not the parent's own, which would make up weights
        self.group_size, self.bits, self.mode = layer.group_size, layer.bits, layer.mode
        for name, array in layer.parameters().items():
            self[name] = array
        self.exact = exact
        self.freeze()
        self.train(layer.training)

    def __call__(self, x: mx.array) -> mx.array:
        return _multiply(self, x)

    def packed(self) -> Packed:
        """The weights, for a product."""
        return _packed(self)


class RowsEmbedding(nn.QuantizedEmbedding):
    """A quantized embedding table that may serve as the head; arguments as for `RowsLinear`."""

    def __init__(self, layer: nn.QuantizedEmbedding, *, exact: bool = False):
        nn.Module.__init__(self)
        self.group_size, self.bits, self.mode = layer.group_size, layer.bits, layer.mode
        self.num_embeddings, self.dims = layer.num_embeddings, layer.dims
        for name, array in layer.parameters().items():
            self[name] = array
        self.exact = exact
        self.freeze()
        self.train(layer.training)

    def as_linear(self, x: mx.array) -> mx.array:
        """The table as a head: [..., D] to [..., V]."""
        return _multiply(self, x)

    def packed(self) -> Packed:
        """The weights, for a product."""
        return _packed(self)


RowLayer = RowsLinear | RowsEmbedding


def use_row_kernels(model: nn.Module, *, exact: bool = False) -> None:
    """Put our modules in the place of MLX's quantized ones; does nothing where no kernel can run.

    Raises:
        ConfigError: `DFLASH2_KERNELS` cannot be read, or asks for Metal where there is none.
    """
    if not _kernels_run():
        return
    leaves: Any = model.leaf_modules()
    model.update_modules(tree_map(lambda leaf: with_rows(leaf, exact=exact), leaves, is_leaf=nn.Module.is_module))


def with_rows(layer: nn.Module, *, exact: bool = False) -> nn.Module:
    """Our module for one of MLX's where it is quantized in affine mode and a kernel can run; any other as it is."""
    if _suits(layer) and _kernels_run():
        if isinstance(layer, nn.QuantizedLinear):
            return RowsLinear(layer, exact=exact)
        if isinstance(layer, nn.QuantizedEmbedding):
            return RowsEmbedding(layer, exact=exact)
    return layer


def row_layers(model: nn.Module) -> Iterator[tuple[str, RowLayer]]:
    """Paths and layers of a model that `quantized_rows` serves."""
    for path, module in model.named_modules():
        if isinstance(module, RowsLinear | RowsEmbedding):
            yield path, module


def trainable_product(layer: nn.Module, hidden: mx.array) -> mx.array:
    """What a head computes of [..., D] rows, by operations that have a gradient."""
    if isinstance(layer, RowsLinear | RowsEmbedding):
        return stock_product(hidden, layer.packed())
    table = isinstance(layer, nn.Embedding | nn.QuantizedEmbedding)
    output: mx.array = layer.as_linear(hidden) if table else layer(hidden)
    return output


def check_exactness(model: nn.Module, *, tied: bool) -> None:
    """Refuse a model that has products which exactness does not cover.

    Args:
        model: loaded, with MLX's own modules.
        tied: whether its embedding table is its head.
    Raises:
        SettingError: naming the first such layer, or why the kernel does not run.
    """
    matrices = [(path, module) for path, module in model.named_modules() if _multiplies(module, tied)]
    others = [path for path, leaf in matrices if not _suits(leaf)]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise inexact(f"{others[0]}{more}: not a linear layer quantized in affine mode")
    seen = set()
    for path, leaf in matrices:
        packed = _packed(leaf)
        variant = (packed.bits, packed.group_size, packed.scales.dtype, packed.offset is None or packed.offset.dtype)
        if variant in seen:
            continue
        seen.add(variant)
        problem = exactness_problem(packed.scales.dtype, packed)
        if problem is not None:
            raise inexact(f"{path}: {problem}")


def check_exactness_word(exactness: str) -> bool:
    """Whether exactness is wanted.

    Raises:
        SettingError: an unknown word.
    """
    if exactness not in EXACTNESS:
        raise SettingError(f"exactness: got {exactness!r}, expected fast or exact")
    return exactness == EXACT


def refuse_exactness_early(quantized: bool, dequantized: bool) -> None:
    """What can be refused before any weights are read.

    Args:
        quantized: whether the target's files are.
        dequantized: whether they are to be unpacked on load.
    Raises:
        SettingError: exactness is impossible with such a target, or on this machine.
    """
    if not quantized:
        raise inexact("the target is not quantized")
    if dequantized:
        raise inexact("target_dtype float32 unpacks the quantized weights")
    if dispatcher().factory is None:
        raise inexact("MLX has no Metal here")
    for name in (TILE, few_row_attention.NAME):
        if not dispatcher().wants_metal(name):
            raise inexact(f"kernel {name} is switched off")


def _kernels_run() -> bool:
    wanted = [dispatcher().wants_metal(name) for name in (TILE, MATRIX, TENSOR)]
    return any(wanted)


def _suits(layer: nn.Module) -> bool:
    """Whether this is one of MLX's own modules (not of a subclass, which may do more), in affine mode."""
    return type(layer) in (nn.QuantizedLinear, nn.QuantizedEmbedding) and layer.mode == AFFINE


def _multiplies(module: nn.Module, tied: bool) -> bool:
    """Whether a module multiplies rows by a matrix of its own. A depthwise convolution takes every row by itself."""
    if isinstance(module, nn.Embedding | nn.QuantizedEmbedding):
        return tied
    if isinstance(module, nn.Conv1d):
        return False
    return any(isinstance(array, mx.array) and array.ndim >= 2 for array in module.values())


def _packed(layer: Any) -> Packed:
    biases, offset = layer.get("biases"), layer.get("bias")
    return Packed(layer["weight"], layer["scales"], biases, layer.group_size, layer.bits, layer.mode, offset)


def _multiply(layer: RowLayer, x: mx.array) -> mx.array:
    return quantized_rows(
        x,
        layer["weight"],
        layer["scales"],
        layer.get("biases"),
        layer.group_size,
        layer.bits,
        layer.mode,
        offset=layer.get("bias"),
        exact=layer.exact,
    )

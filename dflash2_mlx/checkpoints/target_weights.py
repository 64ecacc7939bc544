"""A target's weights, from files to arrays in the dtype they are held in.

Owns: what is cast and what is not, and the refusal of files that mlx-lm cannot read or that hold no numbers. All of
it runs on the thread that owns MLX.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import dequantize_model, load_model

from ..device.layout import on_cpu, store_for_device
from ..errors import CheckpointError, SettingError

PLAIN_EXPERTS = "experts that are not quantized"


def read_target(
    folder: Path, dtype: mx.Dtype | None, *, dequantize: bool, quantization: Mapping[str, Any] | None = None
) -> nn.Module:
    """mlx-lm's model with its weights read.

    Args:
        folder: a whole checkpoint.
        quantization: as `file_quantization` finds it; mlx-lm itself looks under one name only. Settings by module
            whose names are not mlx-lm's paths do no harm: it then reads bits and group size off the shapes.
        dtype: of all numbers that are not packed; None keeps the files' own.
        dequantize: unpack quantized matrices.
    Raises:
        CheckpointError: mlx-lm refuses the files, or a vector holds a number that is not finite.
        SettingError: experts cannot run in this dtype here.
    """
    try:
        found = {"quantization": quantization} if quantization else None
        model, _ = load_model(folder, lazy=True, model_config=found)
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        line = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: got weights mlx-lm refuses ({line[:300]}), expected a complete checkpoint"
        ) from None
    if dtype == mx.float32:
        # Scales and biases too: 4-bit weights then run with float32 activations, and dequantize without rounding.
        model.set_dtype(dtype)
    elif dtype is not None:
        if on_cpu() and any(isinstance(module, SwitchLinear) for module in model.modules()):
            raise no_half_experts(str(dtype).rsplit(".", 1)[-1])  # its config did not tell; nothing was read yet
        _cast(model, dtype)
    if dequantize:
        model = dequantize_model(model)
    store_for_device(model)
    _check_finite(model, folder)
    return model


def no_half_experts(dtype: str) -> SettingError:
    """The refusal of a dtype in which MLX's CPU back-end cannot multiply a target's experts; to be raised."""
    return SettingError(
        f"target_dtype: got {dtype!r}, expected 'auto' or 'float32': MLX's CPU back-end runs {PLAIN_EXPERTS} in "
        "float32 only"
    )


def _check_finite(model: nn.Module, folder: Path) -> None:
    """Refuse vectors (norms, biases, scales of decay) with numbers that would spoil every token; reads little."""
    vectors = dict(tree_flatten(model.parameters()))
    small = {
        name: array for name, array in vectors.items() if array.ndim == 1 and mx.issubdtype(array.dtype, mx.floating)
    }
    fine = {name: mx.isfinite(array).all() for name, array in small.items()}
    mx.eval(list(fine.values()))
    for name, good in fine.items():
        if not good.item():
            raise CheckpointError(f"{folder}: got a number that is not finite in {name}, expected finite weights")


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    """Cast all but the decay of gated-delta layers, which mlx-lm keeps in float32 as well."""

    def cast(path: str, array: mx.array) -> mx.array:
        if path.endswith("A_log") or not mx.issubdtype(array.dtype, mx.floating):
            return array
        return array.astype(dtype)

    model.update(tree_map_with_path(cast, model.parameters()))

"""Drafter checkpoint files: what must be in them, checked before a single weight is read.

Owns: the missing/unknown/wrong-shape report, and quantization on load. Knows nothing of targets. Invariant: the
tensors in a model are exactly those the config asks for.

Reference: docs/dflash2.md 2.3 and 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from ..device.layout import store_for_device
from ..drafters.dflash2.config import DrafterConfig
from ..drafters.dflash2.model import DraftModel
from ..errors import CheckpointError, ConfigError, SettingError
from ..names import CODEBOOKS, drafter_name
from .headers import TensorInfo, read_headers

DRAFT_BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)
# Quantized on load; everything else stays as it is: about a tenth of the weights, and sensitive.
QUANTIZED_ON_LOAD = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "fc")
_QUANT_SUFFIXES = (".scales", ".biases")
_FLOATS = ("BF16", "F16", "F32")


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a drafter of this config has, unquantized (spec 2.3)."""
    hidden, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (config.num_heads * dim, hidden),
        "self_attn.k_proj.weight": (config.num_kv_heads * dim, hidden),
        "self_attn.v_proj.weight": (config.num_kv_heads * dim, hidden),
        "self_attn.o_proj.weight": (hidden, config.num_heads * dim),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.conv_kernel_size is not None and config.conv_group_size is not None:
        rows = 2 * config.conv_kernel_size * (hidden // config.conv_group_size)
        for conv in ("attention_conv", "mlp_conv"):
            layer[f"{conv}.base_kernel"] = (2, config.conv_kernel_size, hidden)
            layer[f"{conv}.kernel_projection.weight"] = (rows, hidden)
    for number in range(config.num_layers):
        shapes.update({f"layers.{number}.{name}": shape for name, shape in layer.items()})
    if config.selector_rank is not None:
        for codebook in CODEBOOKS:
            shapes[codebook] = (config.vocab_size, config.selector_rank)
        shapes["candidate_selector.hidden_projection.weight"] = (config.selector_rank, hidden)
    return shapes


def check_drafter_files(folder: Path, config: DrafterConfig) -> dict[str, TensorInfo]:
    """Compare the files' headers with the config; returns our tensor names with their infos.

    Raises:
        CheckpointError: missing, unknown, doubled or wrongly shaped tensors, each named.
    """
    infos: dict[str, TensorInfo] = {}
    for name, info in read_headers(folder).items():
        ours = drafter_name(name)
        if ours in infos:
            raise CheckpointError(
                f"{folder}: got tensor {ours!r} twice (with and without prefix or .weight), expected once"
            )
        infos[ours] = info
    expected = expected_shapes(config)
    quantized = {_weight_of(name) for name in infos if name.endswith(".scales")}
    quantized = {name for name in quantized if len(expected.get(name, ())) == 2}
    missing = sorted(set(expected) - set(infos))
    companions = {_module_of(name) + suffix for name in quantized for suffix in _QUANT_SUFFIXES}
    unknown = sorted(set(infos) - set(expected) - companions)
    if missing:
        raise CheckpointError(
            f"{folder}: missing tensors: got {len(infos)} without {_some(missing)}, expected all {len(expected)}"
        )
    if unknown:
        raise CheckpointError(
            f"{folder}: unknown tensors: got {_some(unknown)}, expected none beyond the drafter's own"
        )
    for name, shape in expected.items():
        got = infos[name].shape
        if name in quantized:
            _check_quantized(folder, name, shape, infos, config)
        elif got != shape:
            raise CheckpointError(f"{folder}: tensor {name}: got shape {list(got)}, expected {list(shape)}")
        elif infos[name].dtype not in _FLOATS:
            raise CheckpointError(
                f"{folder}: tensor {name}: got {infos[name].dtype}, expected one of {', '.join(_FLOATS)}"
            )
    return infos


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _module_of(name: str) -> str:
    return name.removesuffix(".weight")


def _weight_of(scales: str) -> str:
    module = scales.removesuffix(".scales")
    return module if module in CODEBOOKS else module + ".weight"


def _quantization_of(name: str, config: DrafterConfig) -> tuple[int, int]:
    """(group_size, bits) of one tensor of an already quantized file."""
    settings = config.quantization or {}
    own = settings.get(_module_of(name))
    merged: Mapping[str, object] = {**settings, **own} if isinstance(own, Mapping) else settings
    mode = merged.get("mode", "affine")
    group, bits = merged.get("group_size"), merged.get("bits")
    if mode != "affine" or not isinstance(group, int) or not isinstance(bits, int):
        raise ConfigError(f"quantization: got {dict(settings)!r}, expected affine mode with group_size and bits")
    return group, bits


def _check_quantized(
    folder: Path, name: str, shape: tuple[int, ...], infos: Mapping[str, TensorInfo], config: DrafterConfig
) -> None:
    group, bits = _quantization_of(name, config)
    rows, columns = shape
    packed = (rows, columns * bits // 32)
    for part, wanted in (
        (name, packed),
        (_module_of(name) + ".scales", (rows, columns // group)),
        (_module_of(name) + ".biases", (rows, columns // group)),
    ):
        got = infos[part].shape if part in infos else None
        if got != wanted:
            raise CheckpointError(f"{folder}: tensor {part}: got shape {got and list(got)}, expected {list(wanted)}")


def load_drafter_weights(
    folder: Path, config: DrafterConfig, *, dtype: mx.Dtype, draft_bits: int | None = None, group_size: int = 64
) -> DraftModel:
    """Read a checked checkpoint into a model that is ready to draft.

    Args:
        dtype: of activations and unquantized weights.
        draft_bits: quantize attention, MLP and `fc` weights on load; None leaves them.
        group_size: of that quantization.
    Raises:
        CheckpointError, ConfigError: see `check_drafter_files` and `check_draft_bits`.
    """
    check_drafter_files(folder, config)
    check_draft_bits(config, draft_bits, group_size)
    model = read_drafter(folder, config)
    if draft_bits is not None:
        quantize_drafter(model, draft_bits, group_size)
    # After quantizing: what is quantized is the stored numbers, so that a converted file holds the same weights.
    model.update(tree_map(lambda array: _cast(array, dtype), model.parameters()))
    store_for_device(model)
    model.compile_for_inference()
    return model


def read_drafter(folder: Path, config: DrafterConfig) -> DraftModel:
    """The weights of a checkpoint as they are stored (quantized codebooks unpacked), nothing evaluated yet.

    Raises:
        CheckpointError: see `check_drafter_files`.
    """
    infos = check_drafter_files(folder, config)
    weights: dict[str, mx.array] = {}
    for file in sorted({info.file for info in infos.values()}):
        tensors: Any = mx.load(str(file))
        weights.update({drafter_name(name): array for name, array in tensors.items()})
    for codebook in CODEBOOKS:  # looked up row by row: kept plain
        if codebook + ".scales" in weights:
            group, bits = _quantization_of(codebook, config)
            weights[codebook] = mx.dequantize(
                weights[codebook],
                weights.pop(codebook + ".scales"),
                weights.pop(codebook + ".biases"),
                group_size=group,
                bits=bits,
            )
    model = DraftModel(config)
    packed = {name.removesuffix(".scales") for name in weights if name.endswith(".scales")}
    if packed:
        nn.quantize(model, class_predicate=lambda path, _: path in packed and _settings(path, config))
    model.load_weights(list(weights.items()), strict=True)
    return model


def quantize_drafter(model: DraftModel, bits: int, group_size: int) -> None:
    """Quantize attention, MLP and `fc` weights; convolution, selector and norms stay as they are."""
    nn.quantize(
        model,
        group_size=group_size,
        bits=bits,
        class_predicate=lambda path, module: (
            path.rsplit(".", 1)[-1] in QUANTIZED_ON_LOAD and isinstance(module, nn.Linear)
        ),
    )


def _settings(path: str, config: DrafterConfig) -> dict[str, int]:
    group, bits = _quantization_of(path, config)
    return {"group_size": group, "bits": bits}


def _cast(array: mx.array, dtype: mx.Dtype) -> mx.array:
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array


def check_draft_bits(
    config: DrafterConfig,
    draft_bits: int | None,
    group_size: int,
    *,
    names: tuple[str, str] = ("draft_bits", "draft_group_size"),
) -> None:
    """Refuse quantization settings that cannot be applied to this drafter.

    Args:
        names: what the caller calls the two settings.
    Raises:
        SettingError: naming the setting.
    """
    if draft_bits is None:
        return
    bits_name, group_name = names
    if draft_bits not in DRAFT_BITS:
        raise SettingError(f"{bits_name}: got {draft_bits!r}, expected 4 or 8")
    if group_size not in GROUP_SIZES:
        raise SettingError(f"{group_name}: got {group_size!r}, expected 32, 64 or 128")
    if config.quantization:
        raise SettingError(f"{bits_name}: got {draft_bits}, expected none: the drafter's files are already quantized")
    for what, columns in (
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("num_attention_heads x head_dim", config.num_heads * config.head_dim),
    ):
        if columns % group_size:
            raise SettingError(f"{group_name}: got {group_size}, expected a divisor of {what} ({columns})")

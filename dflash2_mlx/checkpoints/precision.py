"""How a pair's numbers are held on this machine.

Owns: what the dtypes a caller may ask for mean here, for the target and for the drafter, and what that does to the
cost of a block of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from ..device.blas import load_blas
from ..device.chips import this_chip
from ..device.layout import fast_blas, on_cpu, system_memory
from ..errors import ConfigError
from ..targets.registry import FAMILIES, describe_quantization, file_quantization
from .memory import Precision, memory_estimate, packing
from .shapes import target_shape
from .target_weights import PLAIN_EXPERTS, no_half_experts

AUTO, FLOAT32 = "auto", "float32"
_ASKED_FOR = {AUTO: None, "bfloat16": mx.bfloat16, FLOAT32: mx.float32}
_SHARE_OF_FREE = 0.5  # of the free memory, for weights unpacked to float32
_GIGA = 10**9


def check_dtype(name: str, asked: str) -> None:
    """Refuse what is not among the dtypes of `load`.

    Raises:
        ConfigError: naming the argument.
    """
    if asked not in _ASKED_FOR:
        raise ConfigError(f"{name}: got {asked!r}, expected auto, bfloat16 or float32")


def settle_target_dtype(asked: str, config: Mapping[str, Any]) -> tuple[str, str | None]:
    """What "auto" means for this target here, and a notice of it where there was a choice.

    On MLX's CPU back-end a block of 4-bit rows costs as much as its rows one by one. Unpacked to float32 it pays,
    where a fast BLAS multiplies and the memory is there.

    Experts that are not quantized run in float32 alone there: MLX has no half-precision kernel for them.

    Args:
        asked: a dtype of `load`.
        config: the target's `config.json`.
    """
    quantization = describe_quantization(config)
    if asked != AUTO or not on_cpu():
        return asked, None
    if quantization is None:
        if not _plain_experts(config):
            return asked, None
        return FLOAT32, f"target_dtype auto: float32, as {PLAIN_EXPERTS} run in no other dtype on MLX's CPU back-end"
    if not fast_blas():
        reason = load_blas().reason or "as a timed product tells"
        return AUTO, f"target_dtype auto: {quantization} as in the files, there is no fast BLAS here ({reason})"
    unpacked = Precision(mx.float32.size, dequantized=True)
    needed, free = memory_estimate(config, None, 1, precision=unpacked).target_weights, system_memory("MemAvailable")
    if free is not None and needed > _SHARE_OF_FREE * free:
        return AUTO, (
            f"target_dtype auto: {quantization} as in the files, as {needed / _GIGA:.1f} GB in float32 "
            f"are more than half of the {free / _GIGA:.1f} GB of free memory"
        )
    return FLOAT32, f"target_dtype auto: {quantization} unpacked to float32, of which blocks are fast here"


def refuse_half_experts(asked: str, config: Mapping[str, Any]) -> None:
    """Refuse a dtype in which a target's experts cannot run here, as far as its config tells.

    Raises:
        SettingError: naming the argument.
    """
    if asked not in (AUTO, FLOAT32) and on_cpu() and _plain_experts(config):
        raise no_half_experts(asked)


def _plain_experts(config: Mapping[str, Any]) -> bool:
    """Whether a config says that layers of experts are not quantized; files can hold more of them than it names."""
    if not str(config.get("model_type")).endswith("_moe") or config.get("model_type") not in FAMILIES:
        return False
    quantization = file_quantization(config)
    experts = {name: dims for name, dims in target_shape(config).tensors.items() if "switch_mlp" in name}
    return any(packing(name, dims, quantization) is None for name, dims in experts.items())


def held_target(asked: str) -> mx.Dtype | None:
    """What a target's numbers are cast to; None leaves them as the checkpoint has them."""
    return mx.float32 if asked == AUTO and on_cpu() else _ASKED_FOR[asked]


def held_drafter(asked: str, *, quantized: bool) -> mx.Dtype:
    """Activations of the drafter: never float16 (it overflows), float32 where bfloat16 is emulated."""
    chosen = _ASKED_FOR[asked]
    if chosen is not None:
        return chosen
    return mx.float32 if on_cpu() or (this_chip().emulates_bfloat16 and quantized) else mx.bfloat16


def load_precision(
    *,
    draft_bits: int | None = None,
    draft_group_size: int = 64,
    target_dtype: str = AUTO,
    drafter_dtype: str = AUTO,
    target_config: Mapping[str, Any] | None = None,
) -> Precision:
    """How `load` with these settings holds numbers on this machine, for `memory_estimate`.

    Args:
        target_config: of the target that is meant; without it, "auto" is what it is for one that is not quantized.
    """
    if target_config is not None:
        target_dtype, _ = settle_target_dtype(target_dtype, target_config)
    target, drafter = held_target(target_dtype), held_drafter(drafter_dtype, quantized=draft_bits is not None)
    return Precision(
        target_bytes=(target or mx.bfloat16).size,
        drafter_bytes=drafter.size,
        draft_bits=draft_bits,
        draft_group_size=draft_group_size,
        dequantized=target_dtype == FLOAT32,
    )


def row_cost_note(quantization: str | None, target_dtype: str) -> str | None:
    """Where a row costs about the same alone or in a block: why, and what to read instead of the speed.

    Args:
        quantization: of the target's files, in words; None where they are not quantized.
        target_dtype: as settled.
    """
    if not on_cpu():
        return None
    if quantization is not None and target_dtype != FLOAT32:
        return (
            f"on MLX's CPU back-end a block of {quantization} rows costs about as much as they do one by one: "
            "read acceptance, not speed"
        )
    if not fast_blas():
        return (
            "with MLX's own CPU matmul a block of rows costs about as much as they do one by one: "
            "read acceptance, not speed"
        )
    return None

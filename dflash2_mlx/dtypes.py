"""How a pair's numbers are held on this machine.

Owns: what the dtypes a caller may ask for mean here, for the target and for the drafter, and what that does to the
cost of a block of rows.
"""

from __future__ import annotations

import os

import mlx.core as mx

from .chips import this_chip
from .errors import ConfigError
from .layout import on_cpu
from .memory import Precision

_ASKED_FOR = {"auto": None, "bfloat16": mx.bfloat16, "float32": mx.float32}


def check_dtype(name: str, asked: str) -> None:
    """Refuse what is not among the dtypes of `load`.

    Raises:
        ConfigError: naming the argument.
    """
    if asked not in _ASKED_FOR:
        raise ConfigError(f"{name}: got {asked!r}, expected auto, bfloat16 or float32")


def held_target(asked: str) -> mx.Dtype | None:
    """What a target's numbers are cast to; None leaves them as the checkpoint has them."""
    return mx.float32 if asked == "auto" and on_cpu() else _ASKED_FOR[asked]


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
    target_dtype: str = "auto",
    drafter_dtype: str = "auto",
) -> Precision:
    """How `load` with these settings holds numbers on this machine, for `memory_estimate`."""
    target, drafter = held_target(target_dtype), held_drafter(drafter_dtype, quantized=draft_bits is not None)
    return Precision(
        target_bytes=(target or mx.bfloat16).size,
        drafter_bytes=drafter.size,
        draft_bits=draft_bits,
        draft_group_size=draft_group_size,
        dequantized=target_dtype == "float32",
    )


def row_cost_note(quantization: str | None, target_dtype: str) -> str | None:
    """Where a row costs about the same alone or in a block: why, and what to read instead of the speed.

    Args:
        quantization: of the target's files, in words; None where they are not quantized.
        target_dtype: as asked for.
    """
    if not on_cpu():
        return None
    if quantization is not None and target_dtype != "float32":
        return (
            f"on MLX's CPU back-end a block of {quantization} rows costs about as much as they do one by one: "
            "read acceptance, not speed"
        )
    if "openblas" not in os.environ.get("LD_PRELOAD", ""):
        return (
            "with MLX's own CPU matmul a block of rows costs about as much as they do one by one: "
            "read acceptance, not speed"
        )
    return None

"""What this machine is, as far as it matters for decoding.

Owns: facts about chip, system, memory and packages, and the memory bandwidth MLX reaches. Asks the system, guesses
nothing: what cannot be found out is None.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..device.blas import checked_blas
from ..device.chips import Chip, this_chip
from ..device.layout import system_memory
from ..device.runtime import owner

PACKAGES = ("dflash2-mlx", "mlx", "mlx-metal", "mlx-lm", "transformers", "huggingface_hub", "numpy")
_BLOCK_BYTES = 256 * 2**20


def describe_machine() -> dict[str, Any]:
    """Chip, system, memory and back-end; every value is plain JSON.

    Bytes unless named otherwise. `memory_limit_bytes` is where MLX begins to wait, `wired_limit_bytes` what macOS
    lets a GPU keep resident (None elsewhere). `gpu` is what `chips.Chip` says; None where there is no Apple GPU.
    `blas` is what `blas.Blas` says; None where MLX does not compute on Linux's CPU.

    Raises:
        ConfigError: `DFLASH2_BLAS` cannot be honoured.
    """
    device: dict[str, Any] = dict(mx.device_info())
    chip = this_chip()
    return {
        "chip": chip.name or device.get("device_name") or platform.processor() or None,
        "architecture": device.get("architecture"),
        "blas": asdict(checked_blas()) if backend() == "cpu" and sys.platform == "linux" else None,
        "gpu": None if chip.generation is None else _gpu(chip),
        "machine": platform.machine(),
        "system": f"{platform.system()} {_system_version()}",
        "python": platform.python_version(),
        "memory_bytes": device.get("memory_size") or system_memory("MemTotal"),
        "memory_limit_bytes": mx.get_memory_limit(),
        "wired_limit_bytes": device.get("max_recommended_working_set_size"),
        "backend": backend(),
        "device": str(mx.default_device()),
    }


def memory_use() -> dict[str, int]:
    """Bytes MLX holds in this process: in use, the most at once (a reply begins to count anew), and kept for reuse."""
    return {
        "active_bytes": mx.get_active_memory(),
        "peak_bytes": mx.get_peak_memory(),
        "cache_bytes": mx.get_cache_memory(),
    }


def memory_limit() -> int | None:
    """Bytes a model may take here: what macOS lets the GPU keep resident, elsewhere the machine's memory."""
    device: dict[str, Any] = dict(mx.device_info())
    limit = device.get("max_recommended_working_set_size") if backend() == "metal" else None
    return limit or device.get("memory_size") or system_memory("MemTotal")


def backend() -> str:
    """Where MLX computes by default: "metal", "cuda" or "cpu"."""
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def compiles_first() -> bool:
    """Whether MLX's CPU back-end has compiled nothing on this machine yet.

    It has g++ compile each fused operation at its first use, in this folder, where later processes find it.
    """
    compiled = Path(tempfile.gettempdir()) / "mlx" / version("mlx") / "cpu"
    return backend() == "cpu" and next(compiled.glob("*.so"), None) is None


def package_versions() -> dict[str, str | None]:
    """Installed versions of what decoding depends on."""
    return {name: _version(name) for name in PACKAGES}


def measure_bandwidth(repeats: int = 5) -> float:
    """Bytes per second MLX moves when it reads and writes a large array."""
    return owner().call(lambda: _bandwidth(repeats))


def _bandwidth(repeats: int) -> float:
    block = mx.zeros((_BLOCK_BYTES // 4,), dtype=mx.float32)
    mx.eval(block, block + 1.0)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        mx.eval(block + 1.0)
        seconds.append(time.perf_counter() - began)
    return 2 * _BLOCK_BYTES / statistics.median(seconds)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _system_version() -> str:
    return this_chip().macos or platform.release()


def _gpu(chip: Chip) -> dict[str, Any]:
    return {
        "family": chip.family,
        "generation": chip.generation,
        "variant": chip.variant,
        "cores": chip.gpu_cores,
        "emulates_bfloat16": chip.emulates_bfloat16,
        "neural_accelerators": chip.neural_accelerators,
        "neural_reason": chip.neural_reason,
    }

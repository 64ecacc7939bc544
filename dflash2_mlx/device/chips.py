"""Which Apple chip this is, as far as a choice of kernels or widths depends on it.

Owns: what the names of chip, system and packages say. `read_chip` is a pure function of strings; `this_chip` asks the
machine once. Measures nothing: what a chip is worth is for `costs` to model and for `tune` to find out.
"""

from __future__ import annotations

import functools
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import mlx.core as mx

FIRST_GENERATION = 13  # of the M1; each M since counts one more
NEURAL_GENERATION = 17  # the M5's; chips of phones (suffix p) a generation later, as MLX decides it
NEURAL_MACOS = (26, 2)
NEURAL_MLX = (0, 30)
_VARIANTS = {"": "base", "pro": "pro", "max": "max", "ultra": "ultra"}


@dataclass(frozen=True)
class Chip:
    """An Apple chip, or a machine that has none.

    Attributes:
        name: what the system calls it, for instance "Apple M4 Pro"; None where nobody says.
        architecture: MLX's name of the GPU, for instance "applegpu_g16s"; None where it is no Apple GPU.
        generation: 13 for M1 to 17 for M5 and so on; None for anything but an Apple GPU.
        suffix: last letter of the architecture, by which MLX picks kernels: "g", "s" (also of M4 Pro), "d" (Ultra),
            "p" (phones); "" where there is none.
        variant: "base", "pro", "max" or "ultra", by the name; None where the name does not say.
        gpu_cores: None where nobody says.
        macos: version of the system, for instance "26.2"; None elsewhere.
        mlx: version of MLX.
        neural_accelerators: whether MLX runs large matrix products on the GPU cores' Neural Accelerators here.
        neural_reason: why, or why not, in words.
    """

    name: str | None
    architecture: str | None
    generation: int | None
    suffix: str
    variant: str | None
    gpu_cores: int | None
    macos: str | None
    mlx: str | None
    neural_accelerators: bool
    neural_reason: str

    @property
    def emulates_bfloat16(self) -> bool:
        """M1 and M2 compute bfloat16 by way of float32."""
        return self.generation is not None and self.generation < FIRST_GENERATION + 2

    @property
    def family(self) -> str | None:
        """ "M1" and so on; None for anything else."""
        if self.generation is None or self.generation < FIRST_GENERATION or self.suffix == "p":
            return None
        return f"M{self.generation - FIRST_GENERATION + 1}"


def read_chip(
    architecture: str | None = None,
    name: str | None = None,
    macos: str | None = None,
    mlx: str | None = None,
    *,
    built_for: str | None = None,
    gpu_cores: int | None = None,
) -> Chip:
    """What these strings say of a chip; each may be missing.

    Args:
        architecture: `mx.device_info()["architecture"]`; where it says nothing, `name` tells the generation.
        name: the chip's name.
        macos, mlx: versions.
        built_for: macOS version that MLX's package was built for: NAX kernels are in those for 26 and later only.
    """
    generation, suffix = _from_architecture(architecture)
    number, variant = _from_name(name)
    if generation is None and number is not None:
        # Which letter a Pro has differs by generation; MLX asks for "d" alone, so "g" stands for all others here.
        generation, suffix = FIRST_GENERATION - 1 + number, {"max": "s", "ultra": "d"}.get(variant or "", "g")
    if variant is None and suffix == "d":
        variant = "ultra"
    reason = _missing(generation, suffix, macos, mlx, built_for)
    return Chip(
        name=name or None,
        architecture=architecture if generation is not None and architecture else None,
        generation=generation,
        suffix=suffix,
        variant=variant,
        gpu_cores=gpu_cores,
        macos=macos or None,
        mlx=mlx or None,
        neural_accelerators=reason is None,
        neural_reason=reason or f"GPU generation {generation}, macOS {macos}, MLX {mlx}",
    )


@functools.lru_cache(maxsize=1)
def this_chip() -> Chip:
    """The chip of this machine; asked once per process."""
    info: dict[str, Any] = dict(mx.device_info()) if mx.metal.is_available() else {}
    mac = sys.platform == "darwin"
    name = (_output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string") if mac else None) or info.get("device_name")
    system = None
    if mac:  # Python's own answer is an older number where Python was built for one
        system = _output("/usr/sbin/sysctl", "-n", "kern.osproductversion") or platform.mac_ver()[0]
    return read_chip(
        info.get("architecture"),
        name,
        system,
        _distribution_version("mlx"),
        built_for=wheel_macos(_wheel_file("mlx-metal")),
        gpu_cores=read_gpu_cores(_output("/usr/sbin/ioreg", "-r", "-d", "1", "-c", "AGXAccelerator") if mac else None),
    )


def read_gpu_cores(listing: str | None) -> int | None:
    """Number of GPU cores in what `ioreg` prints."""
    found = re.search(r'"gpu-core-count"\s*=\s*(\d+)', listing or "")
    return int(found[1]) if found else None


def wheel_macos(wheel: str | None) -> str | None:
    """Oldest macOS a package was built for, from the text of its WHEEL file; None where it does not say."""
    found = re.search(r"^Tag: \S*-macosx_(\d+)_(\d+)_", wheel or "", re.MULTILINE)
    return f"{found[1]}.{found[2]}" if found else None


def _from_architecture(text: str | None) -> tuple[int | None, str]:
    found = re.fullmatch(r"applegpu_g(\d\d)([a-z])", (text or "").strip().lower())
    return (int(found[1]), found[2]) if found else (None, "")


def _from_name(text: str | None) -> tuple[int | None, str | None]:
    """Number and variant of an M chip."""
    found = re.search(r"\bApple M(\d+)(?: (Pro|Max|Ultra))?\b", text or "", re.IGNORECASE)
    return (int(found[1]), _VARIANTS[(found[2] or "").lower()]) if found else (None, None)


def _missing(
    generation: int | None, suffix: str, macos: str | None, mlx: str | None, built_for: str | None
) -> str | None:
    """What keeps MLX from the Neural Accelerators; None where nothing does. The rule is MLX's `is_nax_available`."""
    if generation is None:
        return "no Apple GPU"
    needed = NEURAL_GENERATION + (suffix == "p")
    if generation < needed:
        return f"GPU generation {generation}: those before {needed} have none"
    if _version(macos) < NEURAL_MACOS:
        return f"macOS {macos or 'of unknown version'}: MLX needs 26.2 or later for them"
    if _version(mlx) < NEURAL_MLX:
        return f"MLX {mlx or 'of unknown version'}: needs 0.30 or later for them"
    if built_for is not None and _version(built_for) < (NEURAL_MACOS[0],):
        return (
            f"this MLX was built for macOS {built_for} and later, without kernels for them: "
            "install mlx anew with a Python that knows macOS 26"
        )
    return None


def _version(text: str | None) -> tuple[int, ...]:
    """Numbers of a version, as far as they go; () for none, which is before all."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, found[0].split("."))) if found else ()


def _distribution_version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _wheel_file(name: str) -> str | None:
    try:
        return distribution(name).read_text("WHEEL")
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None

"""Chips by their names, and when MLX uses Neural Accelerators. Architectures and names are ones that Macs report."""

from __future__ import annotations

import mlx.core as mx
import pytest

from dflash2_mlx.checkpoints import precision as dtypes
from dflash2_mlx.checkpoints.precision import load_precision
from dflash2_mlx.device import chips
from dflash2_mlx.device.chips import read_chip, read_gpu_cores, this_chip, wheel_macos


@pytest.mark.parametrize(
    ("architecture", "name", "generation", "suffix", "variant", "family"),
    [
        ("applegpu_g13g", "Apple M1", 13, "g", "base", "M1"),
        ("applegpu_g13s", "Apple M1 Max", 13, "s", "max", "M1"),
        ("applegpu_g14g", "Apple M2", 14, "g", "base", "M2"),
        ("applegpu_g14d", "Apple M2 Ultra", 14, "d", "ultra", "M2"),
        ("applegpu_g15d", None, 15, "d", "ultra", "M3"),
        ("applegpu_g16s", "Apple M4 Pro", 16, "s", "pro", "M4"),
        ("applegpu_g16s", None, 16, "s", None, "M4"),  # Pro or Max: the letter alone does not say
        ("applegpu_g17s", "Apple M5 Max", 17, "s", "max", "M5"),
        ("applegpu_g17p", "Apple A18 Pro", 17, "p", None, None),
        (None, "Apple M3", 15, "g", "base", "M3"),
        (None, "Apple M4 Pro", 16, "g", "pro", "M4"),
        (None, "Apple M4 Max", 16, "s", "max", "M4"),
        ("", "apple m2 ultra", 14, "d", "ultra", "M2"),
        (None, "Apple M12 Pro", 24, "g", "pro", "M12"),
        ("x86_64", "AMD EPYC", None, "", None, None),
        ("applegpu", "Apple Paravirtual device", None, "", None, None),
        ("sm_90", "NVIDIA H200", None, "", None, None),
        (None, None, None, "", None, None),
    ],
)
def test_names(architecture, name, generation, suffix, variant, family):
    chip = read_chip(architecture, name)
    assert (chip.generation, chip.suffix, chip.variant, chip.family) == (generation, suffix, variant, family)
    assert chip.name == name
    assert chip.architecture == (architecture if architecture and generation else None)
    assert chip.emulates_bfloat16 == (generation in (13, 14))


@pytest.mark.parametrize(
    ("architecture", "macos", "mlx", "built_for", "why_not"),
    [
        ("applegpu_g17s", "26.2", "0.32.4", "26.0", None),
        ("applegpu_g17g", "27.0", "1.0", None, None),  # built from source: nothing is known against it
        ("applegpu_g17s", "26.10.1", "0.30.0", None, None),
        ("applegpu_g18p", "26.2", "0.32.4", None, None),
        ("applegpu_g17p", "26.5", "0.32.4", None, "GPU generation 17: those before 18 have none"),
        ("applegpu_g16s", "26.5", "0.32.4", "26.0", "GPU generation 16: those before 17 have none"),
        ("applegpu_g17s", "26.1", "0.32.4", "26.0", "macOS 26.1: MLX needs 26.2 or later for them"),
        ("applegpu_g17s", "15.7.4", "0.32.4", "15.0", "macOS 15.7.4: MLX needs 26.2 or later for them"),
        ("applegpu_g17s", None, "0.32.4", None, "macOS of unknown version: MLX needs 26.2 or later for them"),
        ("applegpu_g17s", "26.2", "0.29.4", None, "MLX 0.29.4: needs 0.30 or later for them"),
        ("applegpu_g17s", "26.2", None, None, "MLX of unknown version: needs 0.30 or later for them"),
        ("applegpu_g17s", "26.4", "0.32.4", "15.0", "this MLX was built for macOS 15.0 and later"),
        ("x86_64", None, "0.32.4", None, "no Apple GPU"),
    ],
)
def test_neural_accelerators(architecture, macos, mlx, built_for, why_not):
    chip = read_chip(architecture, None, macos, mlx, built_for=built_for)
    assert chip.neural_accelerators == (why_not is None)
    expected = why_not or f"GPU generation {chip.generation}, macOS {macos}, MLX {mlx}"
    assert chip.neural_reason.startswith(expected)


def test_gpu_cores_and_wheel():
    listing = '+-o AGXAcceleratorG16X  <class AGXAcceleratorG16X>\n    {\n      "gpu-core-count" = 20\n    }\n'
    assert read_gpu_cores(listing) == 20
    assert read_gpu_cores("nothing") is read_gpu_cores(None) is None
    wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-macosx_26_0_arm64\n"
    assert wheel_macos(wheel) == "26.0"
    assert wheel_macos("Tag: cp312-cp312-manylinux_2_17_x86_64\n") is wheel_macos(None) is None


def test_this_machine(monkeypatch: pytest.MonkeyPatch):
    chip = this_chip()
    assert (chip.generation is not None) == (mx.metal.is_available() and "applegpu" in str(mx.device_info()))
    assert chip.mlx and chip is this_chip()
    # A Mac, as its tools describe it.
    answers = {
        "machdep.cpu.brand_string": "Apple M5 Max", "kern.osproductversion": "26.4", "AGXAccelerator":
        '"gpu-core-count" = 40',
    }  # fmt: skip
    monkeypatch.setattr(chips.sys, "platform", "darwin")
    monkeypatch.setattr(chips, "_output", lambda *command: answers[command[-1]])
    monkeypatch.setattr(chips.mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(chips.mx, "device_info", lambda: {"architecture": "applegpu_g17s", "device_name": "other"})
    monkeypatch.setattr(chips, "_wheel_file", lambda name: "Tag: py3-none-macosx_26_0_arm64\n")
    mac = this_chip.__wrapped__()
    assert (mac.name, mac.generation, mac.variant, mac.gpu_cores) == ("Apple M5 Max", 17, "max", 40)
    assert mac.macos == "26.4" and mac.neural_accelerators


def here_is(chip: chips.Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "this_chip", lambda: chip)


@pytest.mark.parametrize(("architecture", "single"), [("applegpu_g13g", True), ("applegpu_g14s", True),
                                                      ("applegpu_g15g", False), ("applegpu_g17s", False)])  # fmt: skip
def test_the_drafters_type(architecture, single, monkeypatch: pytest.MonkeyPatch):
    name = {"g": "Apple M3", "s": "Apple M5 Max"}[architecture[-1]]  # the architecture counts, not the name
    here_is(read_chip(architecture, name), monkeypatch)
    monkeypatch.setattr(dtypes, "on_cpu", lambda: False)
    assert load_precision(draft_bits=4).drafter_bytes == (4 if single else 2)
    assert load_precision(draft_bits=None).drafter_bytes == 2

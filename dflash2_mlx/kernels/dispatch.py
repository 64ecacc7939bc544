"""Which implementation of each kernel runs in this process.

Owns: `DFLASH2_KERNELS`, the state of every kernel (wanted, tested, switched off and why), and the one seam through
which kernel objects are made. A kernel is tested on the device before its first use, each on its own; a wrong number
or an exception switches this kernel off, never the others. Knows no kernel's arguments.

    DFLASH2_KERNELS=auto                      Metal where there is Metal (the default)
    DFLASH2_KERNELS=mlx                       the pure-MLX twins
    DFLASH2_KERNELS=metal                     Metal, and an error where it cannot run
    DFLASH2_KERNELS=auto,select_walk=mlx      one kernel by name
    DFLASH2_KERNELS=qmm_rows_tensor=auto      one that is off unless it is named
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import mlx.core as mx

from ..errors import ConfigError, Dflash2Error, SettingError
from .call import Factory, Kernel, KernelCall

VARIABLE = "DFLASH2_KERNELS"
KERNELS = (
    "norm_rope",
    "dynamic_conv",
    "conv_add_norm",
    "top_candidates",
    "select_walk",
    "few_row_attention",
    "gated_delta_verify",
    "accept",
    "qmm_rows",
    "qmm_rows_mma",
    "qmm_rows_tensor",
)
OPT_IN = frozenset({"qmm_rows_tensor"})  # no device has run these: wanted only where they are named
EXACT_ROWS = 32  # most rows of a pass that exactness covers
AUTO, MLX, METAL = "auto", "mlx", "metal"
_CHOICES = (AUTO, MLX, METAL)


Choice = TypeVar("Choice")
Winners = Mapping[tuple[str, str], str]  # (kernel, key) to contender


class KernelMismatch(Dflash2Error):
    """A kernel gave other numbers than its twin."""


@dataclass(frozen=True)
class KernelState:
    """What is known of one kernel.

    `runs` is "metal" or "mlx"; `reason` says why it is not what `wanted` asks for. `races` are winners by shape where
    races decided; elsewhere the default rule does.
    """

    name: str
    wanted: str
    runs: str
    tested: bool
    reason: str | None
    races: Mapping[str, str] = field(default_factory=dict)


class Dispatcher:
    """The choice for every kernel.

    Args:
        wanted: text of `DFLASH2_KERNELS`.
        factory: makes Metal kernels; None where nothing can run them.
        eager: kernels run when called (the emulator of the tests), so no graph around them may be compiled.
    Raises:
        ConfigError: naming the variable, for an unknown choice or kernel.
    """

    def __init__(self, wanted: str, factory: Factory | None, *, eager: bool = False):
        self.wanted = parse_choices(wanted)
        self.factory = factory
        self.eager = eager
        self._failures: dict[str, str] = {}
        self._tested: set[tuple[object, ...]] = set()
        self._kernels: dict[str, Kernel] = {}
        self._winners: dict[tuple[str, str], str] = {}
        self._remembered: dict[tuple[object, ...], Any] = {}
        # Grows with every result of a race and every failed test: graphs that were compiled before are out of date.
        self.version = 0

    def winner(self, name: str, key: str) -> str | None:
        """The contender that won this kernel's race at this shape on this machine; None before there was one."""
        return self._winners.get((name, key))

    def adopt(self, winners: Winners) -> None:
        """Take over the results of races. Later ones replace earlier ones."""
        if winners.items() <= self._winners.items():
            return  # nobody has to choose anew
        self._winners |= winners
        self._choices_changed()

    def remembered(self, key: tuple[object, ...], choose: Callable[[], Choice]) -> Choice:
        """What a kernel's module chose for a shape, kept until new results of races or a failed test may change it."""
        try:
            kept: Choice = self._remembered[key]
        except KeyError:
            kept = self._remembered[key] = choose()
        return kept

    def forget(self, races: Iterable[tuple[str, str]]) -> Winners:
        """Back to the rules that hold before these races, (kernel, key); returns the winners that were forgotten."""
        gone = {race: self._winners.pop(race) for race in races if race in self._winners}
        if gone:
            self._choices_changed()
        return gone

    def _choices_changed(self) -> None:
        self.version += 1
        self._remembered.clear()

    def chooses_metal(self, name: str, key: str) -> bool:
        """Whether a kernel whose rival is its twin runs on Metal at this shape: it does unless the twin won a race.

        Raises:
            ConfigError: as `wants_metal`.
        """
        return self.wants_metal(name) and (self.wanted[name] == METAL or self._winners.get((name, key)) != MLX)

    def wants_metal(self, name: str) -> bool:
        """Whether this kernel may run on Metal here.

        Raises:
            ConfigError: Metal was asked for by name and cannot run here.
        """
        if self.wanted[name] == MLX:
            return False
        if self.factory is None:
            if self.wanted[name] == METAL:
                raise ConfigError(f"{VARIABLE}: got metal for {name}, expected auto or mlx: MLX has no Metal here")
            return False
        return name not in self._failures

    def passes(self, call: KernelCall, inputs: Sequence[mx.array], self_test: Callable[[], None]) -> bool:
        """Whether this kernel gives its twin's numbers here; asked once for every text that Metal would compile.

        Args:
            inputs: as they would be passed; only their types count.
            self_test: runs the kernel and its twin; raises `KernelMismatch` where they differ.
        """
        variant = (call.name, call.template, tuple(array.dtype for array in inputs))
        if variant not in self._tested:
            self._tested.add(variant)
            try:
                self_test()
            except (KernelMismatch, RuntimeError, ValueError, OSError) as error:
                # MLX reports what the Metal compiler or a launch refuses as RuntimeError or ValueError.
                self._failures[call.name] = " ".join(str(error).split())[:300]
                self._choices_changed()
        return call.name not in self._failures

    def run(self, call: KernelCall, inputs: Sequence[mx.array]) -> list[mx.array]:
        """Call a kernel; its object is made once."""
        kernel = self._kernels.get(call.name)
        if kernel is None:
            assert self.factory is not None, "asked only where wants_metal says yes"
            kernel = self._kernels[call.name] = call.make(self.factory)
        return call.run(kernel, inputs)

    def states(self) -> list[KernelState]:
        """One entry per kernel, as things stand. Any thread may ask, also while the owner of MLX tests and races."""
        return [replace(self._state(name), races=self.raced(name)) for name in KERNELS]

    def raced(self, name: str) -> dict[str, str]:
        """Winners of this kernel's races, by shape."""
        return {key: winner for (kernel, key), winner in list(self._winners.items()) if kernel == name}

    def why_not(self, name: str) -> str:
        """Why a kernel that is asked for does not run here, in words."""
        if self.factory is None:
            return "MLX has no Metal here"
        return f"kernel {name} does not run ({self._failures.get(name, f'switched off by {VARIABLE}')})"

    def notes(self) -> list[str]:
        """One line per kernel that was switched off by its self-test."""
        return [f"kernel {name}: runs as its MLX twin ({reason})" for name, reason in sorted(self._failures.items())]

    def _state(self, name: str) -> KernelState:
        wanted, tested = self.wanted[name], any(variant[0] == name for variant in list(self._tested))
        if wanted == MLX:
            reason = "off unless it is named: no device has run it yet" if name in OPT_IN else None
            return KernelState(name, wanted, MLX, tested, reason)
        if self.factory is None:
            asked = ", though it was asked for by name" if wanted == METAL else ""
            return KernelState(name, wanted, MLX, tested, f"MLX has no Metal here{asked}")
        reason = self._failures.get(name)
        return KernelState(name, wanted, METAL if reason is None else MLX, tested, reason)


def parse_choices(text: str) -> Mapping[str, str]:
    """Read `DFLASH2_KERNELS`: a choice for all, then `kernel=choice` for some.

    Raises:
        ConfigError: naming the part that is neither.
    """
    everything = [name for name in KERNELS if name not in OPT_IN]
    choices = dict.fromkeys(KERNELS, MLX) | dict.fromkeys(everything, AUTO)
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, named, choice = item.partition("=")
        if not named:
            name, choice = "", item
        if choice not in _CHOICES or (named and name not in KERNELS):
            raise ConfigError(
                f"{VARIABLE}: got {item!r}, expected {', '.join(_CHOICES)} or KERNEL=CHOICE of {', '.join(KERNELS)}"
            )
        choices |= {name: choice} if named else dict.fromkeys(everything, choice)
    return choices


def race_key(shape: Sequence[int], dtype: mx.Dtype, *more: object) -> str:
    """Name of a shape under which a race's winner is kept: sizes, type, and what else tells it from others."""
    return " ".join(["x".join(map(str, shape)), str(dtype).removeprefix("mlx.core."), *map(str, more)])


def inexact(reason: str) -> SettingError:
    """The error where exactness was asked for and cannot be had."""
    return SettingError(f"exactness: got 'exact', expected 'fast': {reason}")


def check_equal(got: mx.array, want: mx.array, *, tolerance: float, what: str) -> None:
    """Compare a kernel's numbers with its twin's.

    Raises:
        KernelMismatch: a difference beyond `tolerance`, or a number that is not finite.
    """
    gap: Any = mx.abs(got.astype(mx.float32) - want.astype(mx.float32)).max().item()
    if not gap <= tolerance:  # NaN too
        raise KernelMismatch(f"{what}: off by {gap:.3g}, expected at most {tolerance:.3g}")


def like(inputs: Sequence[mx.array]) -> list[mx.array]:
    """Random arrays of the same shapes and floating types, for a self-test; the same in every process."""
    keys = mx.random.split(mx.random.key(0), len(inputs))
    return [mx.random.normal(array.shape, key=key).astype(array.dtype) for array, key in zip(inputs, keys, strict=True)]


def rounding(dtype: mx.Dtype) -> float:
    """What two ways of computing sums of a few standard normal products may differ by, rounded to `dtype`."""
    return {mx.float32: 2e-4, mx.float16: 2e-2}.get(dtype, 0.15)


@functools.lru_cache(maxsize=1)
def dispatcher() -> Dispatcher:
    """The process's dispatcher, made at the first question from the environment and the default device."""
    factory, eager = kernel_factory()
    return Dispatcher(os.environ.get(VARIABLE, AUTO), factory, eager=eager)


def kernel_factory() -> tuple[Factory | None, bool]:
    """What makes Metal kernels here, and whether they run when called; the tests put their emulator in its place."""
    if not mx.metal.is_available() or mx.default_device() == mx.Device(mx.cpu):
        return None, False
    factory: Any = mx.fast.metal_kernel
    return factory, False

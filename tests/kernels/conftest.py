"""Runs Metal kernels: on the device where MLX has Metal, else on a CPU, where that can be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest

from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels.call import KernelCall
from dflash2_mlx.kernels.dispatch import Dispatcher, dispatcher

from .msl.address_spaces import check
from .msl.build import Builder, why_not
from .msl.emulator import Emulator


def skip_where_impossible(sanitizer: str = "") -> None:
    reason = why_not(sanitizer)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def believing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    """A dispatcher that believes in Metal and in every kernel; none may be run."""
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (lambda **_: pytest.fail("a kernel ran"), True))
    monkeypatch.setenv("DFLASH2_KERNELS", "auto")
    dispatcher.cache_clear()
    yield dispatcher()
    dispatcher.cache_clear()


@pytest.fixture(scope="session")
def msl_cache(pytestconfig: pytest.Config) -> Path:
    """Where compiled kernels stay from one run to the next."""
    if not mx.metal.is_available():
        skip_where_impossible()
    return pytestconfig.cache.mkdir("msl")


@dataclass(frozen=True)
class OnMetal:
    """Calls kernels: `on_metal(call, inputs)`, optionally with sanitizer, fused and seed.

    On a device those three mean nothing: threads run as they like there, and a sanitizer's test is skipped.
    """

    cache: Path
    patch: pytest.MonkeyPatch

    def __call__(
        self,
        call: KernelCall,
        inputs: Sequence[mx.array],
        *,
        sanitizer: str = "",
        fused: bool = False,
        seed: int = 1,
    ) -> list[mx.array]:
        if mx.metal.is_available():
            if sanitizer:
                pytest.skip("sanitizers watch the emulator only")
            return call.run(call.make(mx.fast.metal_kernel), inputs)
        skip_where_impossible(sanitizer)
        emulator = Emulator(Builder(self.cache, sanitizer, fused=fused), seed)
        self.patch.setattr(mx.fast, "metal_kernel", emulator.metal_kernel)
        return call.run(call.make(mx.fast.metal_kernel), inputs)

    def check_address_spaces(self, call: KernelCall, inputs: Sequence[mx.array]) -> None:
        """Raise `KernelError` where clang finds fault with the text of this call."""
        emulator = Emulator(Builder(self.cache))
        self.patch.setattr(mx.fast, "metal_kernel", emulator.metal_kernel)
        launch = {"grid": call.grid, "threadgroup": call.threadgroup, "template": list(call.template)}
        shapes = {"output_shapes": call.output_shapes, "output_dtypes": call.output_dtypes}
        check(call.make(mx.fast.metal_kernel).generated(list(inputs), **launch, **shapes), call.template)


@pytest.fixture
def on_metal(msl_cache: Path, monkeypatch: pytest.MonkeyPatch) -> OnMetal:
    return OnMetal(msl_cache, monkeypatch)


@pytest.fixture
def metal(msl_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every kernel by name; an error would be raised where one of them cannot run."""
    if not mx.metal.is_available():
        emulator = Emulator(Builder(msl_cache))
        monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (emulator.metal_kernel, True))
    monkeypatch.setenv("DFLASH2_KERNELS", "metal")
    dispatcher.cache_clear()
    yield
    dispatcher.cache_clear()


@pytest.fixture(autouse=True)
def own_dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    dispatcher.cache_clear()
    yield
    dispatcher.cache_clear()

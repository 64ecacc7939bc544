"""A stand-in for `mx.fast.metal_kernel` that runs kernels on a CPU.

Same constructor and call as MLX's, so the code that makes and calls kernels is tested unchanged:
`monkeypatch.setattr(mx.fast, "metal_kernel", emulator.metal_kernel)`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .build import FIXED_LAYOUT, Builder, KernelError
from .source import Generated, generate

# Taken before any test puts an emulator in its place.
REAL = mx.fast.metal_kernel

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0:redzone=2048",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_signal_unsafe=0",
}


@dataclass(frozen=True)
class Emulator:
    """Runs kernels in one way of building and one order of threads.

    Args:
        seed: shuffles lanes and threadgroups.
    """

    builder: Builder
    seed: int = 1

    def metal_kernel(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: dict[str, str] | None = None,
    ) -> Kernel:
        """Make a kernel, as `mx.fast.metal_kernel` does."""
        real = REAL(
            name=name,
            input_names=input_names,
            output_names=output_names,
            source=source,
            header=header,
            ensure_row_contiguous=ensure_row_contiguous,
            atomic_outputs=atomic_outputs,
            compile_options=compile_options,
        )
        return Kernel(self, real, name, source, list(input_names), list(output_names))


@dataclass
class Kernel:
    """One kernel, called like MLX's."""

    emulator: Emulator
    real: Any
    name: str
    source: str
    input_names: list[str]
    output_names: list[str]
    _programs: dict[tuple[Any, ...], tuple[list[str], Path]] = field(default_factory=dict)

    def generated(self, inputs: Sequence[mx.array], **call: Any) -> Generated:
        """The text that MLX would compile for this call."""
        return generate(self.real, self.name, self.source, inputs, **call)

    def _program(self, inputs: Sequence[mx.array], **call: Any) -> tuple[list[str], Path]:
        """Names of the buffers that the text takes, and what runs it; made once for all that the text depends on."""
        fixed = [call[name] for name in ("template", "output_dtypes", "init_value")]
        key = (repr(fixed), tuple((array.dtype, array.ndim == 0, array.size < 8) for array in inputs))
        if key not in self._programs:
            generated = self.generated(inputs, **call)
            names = [parameter.name for parameter in generated.parameters if parameter.space]
            self._programs[key] = names, self.emulator.builder.build(generated.cpp())
        return self._programs[key]

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        stream: Any = None,
    ) -> list[mx.array]:
        shapes = {"output_shapes": output_shapes, "output_dtypes": output_dtypes}
        launch = {"grid": grid, "threadgroup": threadgroup, "template": template, "init_value": init_value}
        used_names, binary = self._program(inputs, **shapes, **launch)
        buffers = {}
        for name, array in zip(self.input_names, inputs, strict=True):
            buffers |= _input_buffers(name, array)
        for name, shape, dtype in zip(self.output_names, output_shapes, output_dtypes, strict=True):
            buffers[name] = _output_buffer(shape, dtype, init_value)
        used = [buffers[name] for name in used_names]
        outputs = [buffers[name] for name in self.output_names]
        layout = FIXED_LAYOUT if self.emulator.builder.sanitizer == "thread" else []
        _run_program([*layout, str(binary)], used, outputs, (*grid, *threadgroup, self.emulator.seed))
        return [
            mx.array(buffers[name]).view(dtype) for name, dtype in zip(self.output_names, output_dtypes, strict=True)
        ]


def _to_numpy(array: mx.array) -> np.ndarray:
    """A copy; NumPy has no bfloat16, so its bits travel as uint16."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def _input_buffers(name: str, array: mx.array) -> dict[str, np.ndarray]:
    """An input and what MLX may pass along with it."""
    shape = np.array(array.shape, dtype=np.int32)
    strides = np.array([int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim)], dtype=np.int64)
    rank = np.array(array.ndim, dtype=np.int32)
    return {name: _to_numpy(array), f"{name}_shape": shape, f"{name}_strides": strides, f"{name}_ndim": rank}


def _output_buffer(shape: Sequence[int], dtype: mx.Dtype, init_value: float | None) -> np.ndarray:
    """Not initialised on a GPU; here filled with 0xFF, so that an element nobody writes is NaN or -1."""
    out = _to_numpy(mx.zeros(shape, dtype=dtype) if init_value is None else mx.full(shape, init_value, dtype=dtype))
    if init_value is None:
        out.view(np.uint8).fill(0xFF)
    return out


def _run_program(
    program: list[str], buffers: list[np.ndarray], outputs: list[np.ndarray], launch: tuple[int, ...]
) -> None:
    """Run a kernel on `buffers`, the last of which are `outputs`; `launch`: grid, threadgroup, seed."""
    with tempfile.TemporaryDirectory() as folder:
        job, results = Path(folder, "job"), Path(folder, "results")
        head = np.array([*launch, len(buffers), len(outputs)], dtype=np.uint64)
        sizes = np.array([buffer.nbytes for buffer in buffers], dtype=np.uint64)
        job.write_bytes(b"".join(array.tobytes() for array in (head, sizes, *buffers)))
        command = [*program, str(job), str(results)]
        environment = {**os.environ, **SANITIZER_OPTIONS}
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if run.returncode:
            raise KernelError(f"exit status {run.returncode}\n{run.stderr[-6000:]}")
        raw = results.read_bytes()
    at = 0
    for output in outputs:
        output[...] = np.frombuffer(raw, output.dtype, output.size, at).reshape(output.shape)
        at += output.nbytes

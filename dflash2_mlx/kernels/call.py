"""A call of a Metal kernel: names, template, grid and outputs for given shapes.

Decides nothing: whether Metal is used is for the caller to know. Nothing is made at import. Inputs are passed in the
order of `inputs`; what they hold is said in the header of each file. Each operation's file makes its own calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .source import kernel_source

ROWS_STEP = 16  # positions for which the walk reserves memory, so that one compiled kernel serves many widths


Kernel = Callable[..., list[mx.array]]


Factory = Callable[..., Kernel]  # `mx.fast.metal_kernel`, or what stands in for it


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, without its inputs.

    Args:
        name: of the file in metal/.
        template: values fixed when Metal compiles; one compilation for each set of them.
        grid: threads in all, as `mx.fast.metal_kernel` counts.
        header: what stands before the function, for instance an `#include`.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    template: tuple[tuple[str, Any], ...]
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[mx.Dtype, ...]
    header: str = ""

    def make(self, factory: Factory) -> Kernel:
        """The object to call; keep it, as making it scans the text."""
        return factory(
            name=f"dflash2_{self.name}",
            input_names=list(self.inputs),
            output_names=list(self.outputs),
            source=kernel_source(self.name),
            **({"header": self.header} if self.header else {}),
        )

    def run(self, kernel: Kernel, inputs: Sequence[mx.array]) -> list[mx.array]:
        """Call `kernel`, which `make` returned for a call of the same name."""
        return kernel(
            inputs=list(inputs),
            template=list(self.template),
            grid=self.grid,
            threadgroup=self.threadgroup,
            output_shapes=[list(shape) for shape in self.output_shapes],
            output_dtypes=list(self.output_dtypes),
        )

"""The text that MLX generates around a kernel's body, and that text as C++ for the CPU.

While a function is exported, an MLX without Metal records a custom kernel instead of refusing it and hands over
the whole source. So the signature under test is MLX's own, not an imitation of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

# `threadgroup float name[8];` in a body; the shim gives each one an object for the running threadgroup.
THREADGROUP = re.compile(r"(?m)^([ \t]*)threadgroup\s+(\w+)\s+(\w+)\s*((?:\[[^\]]*\])*)\s*;")
SIGNATURE = re.compile(r"\[\[kernel\]\] void (\w+)\(\n(.*?)\) \{\n", re.DOTALL)
BUFFER = re.compile(r"(.*?)([&*]) (\w+) \[\[buffer\((\d+)\)\]\]$")
INSTANCE = re.compile(r"\ntemplate \[\[host_name\(.*?\)\]\] \[\[kernel\]\] decltype\((\w+<.*?>)\) ")


@dataclass(frozen=True)
class Parameter:
    """One parameter of the generated signature; `type` of a buffer is that of its elements."""

    name: str
    type: str
    space: str  # "device", "constant", or "" for an attribute
    const: bool = False
    reference: bool = False  # a scalar, not a pointer


@dataclass(frozen=True)
class Generated:
    """What MLX would give to Metal's compiler.

    Args:
        text: signature, body and instantiation, without MLX's own header.
        body: the project's part of it.
    """

    name: str
    text: str
    body: str

    @property
    def parameters(self) -> list[Parameter]:
        """In the order of the signature; buffers come first, in the order of their numbers."""
        return [_parameter(line.strip()) for line in self._signature()[2].split(",\n")]

    @property
    def kernel(self) -> str:
        """The text without MLX's explicit instantiation."""
        return INSTANCE.split(self.text)[0]

    def cpp(self) -> str:
        """The kernel as C++, to be compiled behind shim/metal.h. Line numbers stay those of the body."""
        text = self.kernel.replace(self.body, f'\n#line 1 "{self.name}.metal"\n{self.body}', 1)
        text = re.sub(r"\[\[.*?\]\]", "", THREADGROUP.sub(r"\1MSL_THREADGROUP(\2, \3, \4);", text))
        buffers, arguments = 0, []
        for parameter in self.parameters:
            if not parameter.space:
                arguments.append(f"at.{parameter.name}")
                continue
            pointer = f"({'const ' if parameter.const else ''}{parameter.type}*)buffers[{buffers}]"
            arguments.append(f"*{pointer}" if parameter.reference else pointer)
            buffers += 1
        instance = INSTANCE.search(self.text)
        function = instance.group(1) if instance else self._signature()[1]
        return (
            f'#include "metal.h"\n{text}\n#line 1 "entry"\n'
            'extern "C" void msl_entry([[maybe_unused]] void** buffers, [[maybe_unused]] const msl::Attributes& at) '
            f"{{ {function}({', '.join(arguments)}); }}\n"
        )

    def _signature(self) -> re.Match[str]:
        found = SIGNATURE.search(self.text)
        assert found is not None, f"MLX's text has no kernel signature:\n{self.text}"
        return found


def _parameter(text: str) -> Parameter:
    buffer = BUFFER.match(text)
    if buffer is None:  # uint thread_index_in_simdgroup [[thread_index_in_simdgroup]]
        kind, name = text.split(" [[")[0].split()
        return Parameter(name, kind, "")
    words = buffer.group(1).split()
    (space,) = (word for word in words if word in ("device", "constant"))
    kind = " ".join(word for word in words if word not in ("const", "device", "constant"))
    return Parameter(buffer.group(3), kind, space, "const" in words, buffer.group(2) == "&")


def generate(kernel: Any, name: str, body: str, inputs: Sequence[mx.array], **call: Any) -> Generated:
    """Ask MLX for the text of one call of a kernel made by `mx.fast.metal_kernel`."""
    recorded = []

    def record(event: dict[str, Any]) -> None:
        if event.get("type") == "primitive" and event["name"] == "CustomKernel":
            recorded.append(event["arguments"])

    mx.export_function(record, lambda *arrays: kernel(inputs=list(arrays), **call), *inputs)
    return Generated(name, recorded[0][1], body)

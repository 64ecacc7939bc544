"""Reads a kernel with clang as "C++ for OpenCL": every pointer gets its address space, as in Metal's compiler.

The CPU has no address spaces, so g++ accepts a `device` pointer to a `constant` input; this does not. MLX puts
inputs of fewer than 8 elements into `constant` and the others into `device`, so check both sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from clang import cindex

from .build import SHIM, KernelError
from .source import Generated

# Metal has no generic address space: a pointer without one is an error.
WITHOUT = ("generic_address_space", "pipes", "device_enqueue", "program_scope_global_variables", "read_write_images")
ARGUMENTS = [
    *("-x", "clcpp", "-cl-std=clc++2021", "-target", "spir64", "-cl-no-stdinc", "-w", "-I", str(SHIM)),
    *("-Xclang", "-cl-ext=" + ",".join(f"-__opencl_c_{name}" for name in WITHOUT)),
]


def check(generated: Generated, template: Sequence[tuple[str, Any]] | None = None) -> None:
    """Raise `KernelError` with clang's messages where the text breaks a rule of address spaces.

    Args:
        template: the names of the call's template, whose values the generated instantiation holds in that order.
    """
    head = _as_opencl(generated, [name for name, _ in template or ()])
    text = "\n".join([*head, generated.body, "}"])
    unit = cindex.Index.create().parse(
        f"{generated.name}.clcpp", ARGUMENTS, unsaved_files=[(f"{generated.name}.clcpp", text)]
    )
    errors = [
        f"{generated.name}.metal:{message.location.line - len(head)}: {message.spelling}"
        for message in unit.diagnostics
        if message.severity >= cindex.Diagnostic.Error
    ]
    if errors:
        raise KernelError("\n".join(errors))


def _as_opencl(generated: Generated, names: Sequence[str]) -> list[str]:
    """The lines before the body: template values become macros, references pointers, attributes parameters."""
    values = re.search(r"decltype\(\w+<(.*?)>\) ", generated.text)
    defines = zip(names, values.group(1).split(", ") if values else (), strict=True)
    parameters, references = [], []
    for parameter in generated.parameters:
        space = f"{'const ' if parameter.const else ''}{parameter.space} "
        if not parameter.space:
            parameters.append(f"{parameter.type} {parameter.name}")
        elif parameter.reference:
            parameters.append(f"{space}{parameter.type}* {parameter.name}_pointer")
            references.append(f"{space}{parameter.type}& {parameter.name} = *{parameter.name}_pointer;")
        else:
            parameters.append(f"{space}{parameter.type}* {parameter.name}")
    return [
        '#include "opencl.h"',
        *(f"#define {name} {value}" for name, value in defines),
        f"__kernel void entry({', '.join(parameters)}) {{",
        *references,
    ]

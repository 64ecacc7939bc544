"""What the emulator takes from MLX is what it was written for: the generated text, and the header in front of it."""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pytest

from dflash2_mlx.kernels.call import kernel_source
from dflash2_mlx.kernels.dynamic_conv import dynamic_conv_call

from .build import Builder
from .emulator import Emulator
from .source import generate

GOLDEN = Path(__file__).parent / "golden_signature.txt"
# Of the header that MLX puts in front of every kernel, and of all it includes.
HEADER_HASH = "31be960e90369fee6666b4d233953078659cd22fca8ee5feaf9bd797883a2551"


def written_out() -> str:
    """The text for one call of dynamic_conv, its body left out: what is pinned is MLX's part."""
    call = dynamic_conv_call((1, 3, 8), mx.bfloat16, 2, 4, 1)
    arrays = [mx.zeros(shape, dtype=mx.bfloat16) for shape in ((1, 3, 8), (2, 2, 8), (1, 3, 2, 2, 2))]
    kernel = call.make(mx.fast.metal_kernel)
    launch = {"grid": call.grid, "threadgroup": call.threadgroup, "template": list(call.template)}
    shapes = {"output_shapes": call.output_shapes, "output_dtypes": call.output_dtypes}
    text = generate(kernel, call.name, "", arrays, **launch, **shapes).text
    return text.replace(kernel_source(call.name), "<body>")


def test_the_generated_text(msl_cache):
    assert written_out() == GOLDEN.read_text(), (
        f"MLX {version('mlx')} generates another text around a kernel than the one in {GOLDEN.name}. Read the "
        "difference, see that source.py still understands it, then put the new text into that file."
    )


def header_files(include: Path) -> list[Path]:
    """utils.h and everything it includes, in the order of inclusion."""
    found, todo = [], [include / "mlx/backend/metal/kernels/utils.h"]
    while todo:
        path = todo.pop(0)
        if path not in found:
            found.append(path)
            todo += [include / name for name in re.findall(r'#include "(mlx/[^"]+)"', path.read_text())]
    return found


def test_the_header_in_front_of_it(msl_cache):
    include = Path(mx.__file__).parent / "include"
    if not include.is_dir():
        pytest.skip("this MLX comes without its Metal headers")
    text = b"".join(path.read_bytes() for path in header_files(include))
    assert hashlib.sha256(text).hexdigest() == HEADER_HASH, (
        f"MLX {version('mlx')} puts another header in front of kernels than the one the emulator imitates. Read what "
        "changed in mlx/backend/metal/kernels/utils.h and its includes (types, names, functions), bring shim/ in line "
        "where needed, then take the new hash into this file."
    )


def test_small_inputs_are_constant_and_scalars_references(msl_cache):
    body = "y[thread_index_in_threadgroup] = a[0] + b[0] + c;"
    kernel = Emulator(Builder(msl_cache)).metal_kernel("small", ["a", "b", "c"], ["y"], body)
    generated = kernel.generated(
        [mx.zeros(8), mx.zeros(7), mx.array(1.0)],
        output_shapes=[(1,)],
        output_dtypes=[mx.float32],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
    )
    assert [(p.name, p.space, p.reference) for p in generated.parameters] == [
        ("a", "device", False),
        ("b", "constant", False),
        ("c", "constant", True),
        ("y", "device", False),
        ("thread_index_in_threadgroup", "", False),
    ]

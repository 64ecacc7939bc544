"""How each Metal kernel is called: names, template, grid and outputs for given shapes.

Owns: the Python side of metal/*.metal. Decides nothing: whether Metal is used is for the caller to know. Nothing
is made at import. Inputs are passed in the order of `inputs`; what they hold is said in the header of each file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from ._source import kernel_source

MAX_CANDIDATES = 32  # a SIMD-group's width: one lane for each candidate
# Threads of a group. Kernels that need many registers get fewer than the 1024 Metal allows.
NORM_THREADS = 256
WALK_SIMDGROUPS = 16
TOP_THREADS = 256
TOP_EACH = 32  # logits of one thread
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


@cache
def dynamic_conv(shape: tuple[int, int, int], dtype: mx.Dtype, taps: int, group: int, side: int) -> KernelCall:
    """One side of the convolution.

    Shapes:
        x [B, L, D], base_kernel [2, W, D], delta [B, L, 2, W, G] -> out [B, L, D]
    Args:
        shape, dtype: of x and out.
        group: channels that share a delta, D // G.
    """
    batch, rows, channels = shape
    vector = next(size for size in (4, 2, 1) if group % size == 0)
    threads = channels // vector
    template = (
        ("T", dtype),
        ("SIDE", side),
        ("TAPS", taps),
        ("CHANNELS", channels),
        ("GROUP", group),
        ("VECTOR", vector),
    )
    return KernelCall(
        name="dynamic_conv",
        inputs=("x", "base_kernel", "delta"),
        outputs=("out",),
        template=template,
        grid=(threads, rows, batch),
        threadgroup=(min(threads, 256), 1, 1),
        output_shapes=(shape,),
        output_dtypes=(dtype,),
    )


@cache
def conv_add_norm(shape: tuple[int, int, int], dtype: mx.Dtype, taps: int, group: int) -> KernelCall:
    """Side 1 of the convolution, residual sum and RMSNorm.

    Shapes:
        y, residual [B, L, D], base_kernel [2, W, D], delta [B, L, 2, W, G], weight [D], eps [] float32
        -> stream, normed [B, L, D]
    Args:
        shape, dtype: of y, residual and both outputs.
    """
    batch, rows, channels = shape
    threads = min(NORM_THREADS, -(-channels // 32) * 32)
    template = (("T", dtype), ("TAPS", taps), ("CHANNELS", channels), ("GROUP", group), ("THREADS", threads))
    return KernelCall(
        name="conv_add_norm",
        inputs=("y", "residual", "base_kernel", "delta", "weight", "eps"),
        outputs=("stream", "normed"),
        template=template,
        grid=(threads, rows, batch),
        threadgroup=(threads, 1, 1),
        output_shapes=(shape, shape),
        output_dtypes=(dtype, dtype),
    )


@cache
def top_candidates(shape: tuple[int, int], k: int, vocab_size: int) -> KernelCall:
    """The k best logits of each block of ids; `select_walk` merges the blocks of a row.

    Shapes:
        logits [rows, V] -> values [rows, blocks, k] float32, ids [rows, blocks, k] int32
    Args:
        vocab_size: ids at and beyond it are padding, at most V.
    """
    rows, size = shape
    vocab = min(vocab_size, size)
    check_candidates(k, vocab)
    block = TOP_THREADS * TOP_EACH
    blocks = -(-vocab // block)
    lists = (rows, blocks, k)
    return KernelCall(
        name="top_candidates",
        inputs=("logits",),
        outputs=("values", "ids"),
        template=(("K", k), ("VOCAB", vocab), ("EACH", TOP_EACH)),
        grid=(TOP_THREADS * blocks, rows, 1),
        threadgroup=(TOP_THREADS, 1, 1),
        output_shapes=(lists, lists),
        output_dtypes=(mx.float32, mx.int32),
    )


@cache
def select_walk(shape: tuple[int, int, int, int], rank: int, sampled: bool) -> KernelCall:
    """Merge the lists of each position and walk from the anchor.

    Shapes:
        values [B, N, blocks, K] float32, ids [B, N, blocks, K] int32, gate [B, N, R], predecessor, successor [C, R],
        anchor [B] int32, settings [3] float32 (temperature, logit multiplier, soft cap or 0),
        noise [B, N, K] float32 (any float32 array where the walk is greedy)
        -> tokens [B, N] int32, candidates [B, N, K] int32, unary [B, N, K] float32, q [B, N, K] float32
    Args:
        shape: of the lists. At least K ids of each position's lists must be there.
    """
    batch, positions, blocks, k = shape
    check_candidates(k, blocks * k)
    simdgroups = min(WALK_SIMDGROUPS, k)
    template = (
        ("K", k),
        ("BLOCKS", blocks),
        ("RANK", rank),
        ("SAMPLED", sampled),
        ("ROWS", -(-positions // ROWS_STEP) * ROWS_STEP),
        ("SIMDGROUPS", simdgroups),
    )
    each = (batch, positions, k)
    return KernelCall(
        name="select_walk",
        inputs=("values", "ids", "gate", "predecessor", "successor", "anchor", "settings", "noise"),
        outputs=("tokens", "candidates", "unary", "q"),
        template=template,
        grid=(32 * simdgroups, batch, 1),
        threadgroup=(32 * simdgroups, 1, 1),
        output_shapes=((batch, positions), each, each, each),
        output_dtypes=(mx.int32, mx.int32, mx.float32, mx.float32),
    )


@cache
def norm_rope(shape: tuple[int, int, int, int], dtype: mx.Dtype, heads: int) -> KernelCall:
    """RMSNorm and RoPE of the first heads of each row.

    Shapes:
        rows [B, L, H, Dh], norms [heads, Dh], start [B] int32, settings [2] float32 (eps, log2 of RoPE's base)
        -> turned [B, heads, L, Dh]
    Args:
        shape, dtype: of rows.
    Raises:
        ValueError: more heads than rows have, or a head of odd size.
    """
    batch, length, available, dim = shape
    if not 1 <= heads <= available or dim % 2:
        raise ValueError(f"norm_rope: got {heads} of {available} heads of size {dim}, expected some, of an even size")
    return KernelCall(
        name="norm_rope",
        inputs=("rows", "norms", "start", "settings"),
        outputs=("turned",),
        template=(("T", dtype), ("HEADS", heads), ("DIM", dim)),
        grid=(32 * heads, length, batch),
        threadgroup=(32, 1, 1),
        output_shapes=((batch, heads, length, dim),),
        output_dtypes=(dtype,),
    )


def check_candidates(k: int, available: int) -> None:
    """Raise ValueError where a SIMD-group has no lane for each of k, or there are fewer."""
    if not 1 <= k <= min(MAX_CANDIDATES, available):
        raise ValueError(f"candidates: got {k}, expected 1..{min(MAX_CANDIDATES, available)}")

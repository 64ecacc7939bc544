"""What became of each of our own kernels in this process, and what they are worth against their twins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from ..config import DrafterConfig
from ..drafter.model import DraftModel
from ..kernels._dispatch import KernelState, dispatcher
from ..kernels._metal_qmm import MATRIX as MATRIX_KERNEL
from ..kernels._metal_qmm import MATRIX_ROWS
from ..kernels._metal_qmm import TILE as TILE_KERNEL
from ..kernels.conv_add_norm import conv_add_norm, conv_add_norm_twin
from ..kernels.dynamic_conv import convolve, dynamic_conv, split_base
from ..kernels.few_row_attention import Sight, attention_twin, few_row_attention, mask_of
from ..kernels.norm_rope import norm_rope, norm_rope_twin
from ..kernels.qmm_forms import MATRIX, TILE
from ..kernels.qmm_rows import Packed, run_form, stock_product, usable
from ..kernels.select_walk import Selector, select, select_twin
from ..kernels.top_candidates import candidate_lists, twin_lists
from ..runtime import owner

_CALLS, _REPEATS = 8, 5
_CONTEXT = 1024  # rows before the block where no window says how many


@dataclass(frozen=True)
class KernelTime:
    """Milliseconds of one call of a kernel and of its twin, at the shapes of one drafter."""

    name: str
    kernel_ms: float
    twin_ms: float


def kernel_states() -> list[KernelState]:
    """One entry per kernel: what was asked for, what runs, whether it was tested here, and why it is off.

    Raises:
        ConfigError: `DFLASH2_KERNELS` cannot be read.
    """
    return dispatcher().states()


def time_kernels(drafter: DraftModel) -> list[KernelTime]:
    """Time the kernels that run on Metal here against their twins; empty where none does."""
    running = {state.name for state in kernel_states() if state.runs == "metal"}
    if not running:
        return []
    return owner().call(
        lambda: [
            KernelTime(name, _milliseconds(kernel), _milliseconds(twin))
            for name, kernel, twin in _cases(drafter.config, drafter.dtype)
            if name in running
        ]
    )


Call = Callable[[], object]


def _cases(config: DrafterConfig, dtype: mx.Dtype) -> Iterator[tuple[str, Call, Call]]:
    rows, width = config.block_size, config.hidden_size

    def random(*shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.key(0)).astype(dtype)

    heads, start = config.num_heads + config.num_kv_heads, mx.zeros((1,), dtype=mx.int32)
    qkv, norms = random(1, rows, heads + config.num_kv_heads, config.head_dim), random(heads, config.head_dim)
    rules = {"theta": config.rope_theta, "eps": config.rms_norm_eps}
    mx.eval(qkv, norms, start)
    yield (
        "norm_rope",
        lambda: norm_rope(qkv, norms, start, **rules),
        lambda: norm_rope_twin(qkv, norms, start, **rules),
    )
    yield _attention(config, random)
    if config.conv_kernel_size is not None and config.conv_group_size is not None:
        x, base, weight = random(1, rows, width), random(2, config.conv_kernel_size, width), random(width)
        delta = random(1, rows, 2, config.conv_kernel_size, width // config.conv_group_size)
        split = split_base(base, delta.shape[-1])
        mx.eval(x, base, weight, delta, split)
        yield "dynamic_conv", lambda: dynamic_conv(x, base, delta, 0), lambda: convolve(x, split, delta, 0)
        yield (
            "conv_add_norm",
            lambda: conv_add_norm(x, base, delta, x, weight, 1e-6),
            lambda: conv_add_norm_twin(x, split, delta, x, weight, 1e-6),
        )
    logits, k, vocab = random(1, rows - 1, config.vocab_size), config.selector_top_k, config.vocab_size
    lists = twin_lists(logits, k, vocab)
    mx.eval(logits, lists.values, lists.ids)
    yield "top_candidates", lambda: candidate_lists(logits, k).merged().ids, lambda: twin_lists(logits, k, vocab).ids
    if config.selector_rank is not None:
        selector = Selector(random(vocab, config.selector_rank), random(vocab, config.selector_rank))
        gate, anchor = random(1, rows - 1, config.selector_rank), mx.zeros((1,), dtype=mx.int32)
        mx.eval(selector.predecessor, selector.successor, gate, anchor)
        yield (
            "select_walk",
            lambda: select(lists, gate, anchor, selector).tokens,
            lambda: select_twin(lists, gate, anchor, selector).tokens,
        )
    yield from _quantized_cases(config, random)


def _quantized_cases(config: DrafterConfig, random: Callable[..., mx.array]) -> Iterator[tuple[str, Call, Call]]:
    """The products with a 4-bit matrix of the MLP's size; a form that cannot be used here is left out."""
    inputs, outputs = config.hidden_size, config.intermediate_size
    group_size = next((size for size in (64, 32) if inputs % size == 0), None)
    if group_size is None:
        return
    packed = Packed(*mx.quantize(random(outputs, inputs), group_size=group_size, bits=4), group_size, 4)
    x = random(min(config.block_size, MATRIX_ROWS), inputs)
    mx.eval(x, packed.weight, packed.scales, packed.biases)
    for name, form in ((TILE_KERNEL, TILE), (MATRIX_KERNEL, MATRIX)):
        if usable(dispatcher(), form, x, packed):
            yield name, partial(run_form, form, x, packed), lambda: stock_product(x, packed)


def _attention(config: DrafterConfig, random: Callable[..., mx.array]) -> tuple[str, Call, Call]:
    """Of one block over a context that fills a sliding layer's window, or over as many rows."""
    rows, context = config.block_size, config.sliding_window or _CONTEXT
    queries = random(1, config.num_heads, rows, config.head_dim)
    keys, values = (random(1, config.num_kv_heads, context + rows, config.head_dim) for _ in range(2))
    start, window = mx.array([context], dtype=mx.int32), config.sliding_window
    mask = mask_of(start, 0, rows, context + rows, causal=False, window=window, sink=0)
    sight = Sight(mask, start, 0, causal=False, window=window)
    mx.eval(queries, keys, values, mask)
    return (
        "few_row_attention",
        lambda: few_row_attention(queries, keys, values, sight),
        lambda: attention_twin(queries, keys, values, mask),
    )


def _milliseconds(call: Call) -> float:
    """Median over repeats of one call's share of several queued together."""
    times = []
    for number in range(_REPEATS + 1):
        began = time.perf_counter()
        mx.eval([call() for _ in range(_CALLS)])
        if number:  # the first one compiles
            times.append(1e3 * (time.perf_counter() - began) / _CALLS)
    return statistics.median(times)

"""Every operation of dflash2_mlx/kernels: milliseconds per call.

    python -m benchmarks.bench_kernels --repeats 30 --json out.json

Shapes are those the kernel tests compare with the NumPy references, then the sizes of the embedded pair and of two
published drafters. The small ones cost no more than a call; the large ones are what a round pays. "selector, ..." is
the whole way from logits to tokens: ours, and the straightforward one (sort the vocabulary, then go position by
position).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import mlx.core as mx

from benchmarks.machine import (
    BadInput,
    OneLineParser,
    check_writable,
    describe_machine,
    print_machine,
    run_command,
    write_json,
)
from dflash2_mlx.kernels.conv_add_norm import conv_add_norm
from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.kernels.dynamic_conv import dynamic_conv, split_base
from dflash2_mlx.kernels.few_row_attention import Sight, few_row_attention, mask_of
from dflash2_mlx.kernels.gated_delta_verify import Rows, gated_delta_verify
from dflash2_mlx.kernels.norm_rope import norm_rope
from dflash2_mlx.kernels.qmm_forms import MATRIX, STOCK, TILE
from dflash2_mlx.kernels.qmm_rows import random_product, run_form, usable
from dflash2_mlx.kernels.select_walk import Selector, edge_scores, select, select_walk
from dflash2_mlx.kernels.top_candidates import candidate_lists, top_candidates
from dflash2_mlx.sampling.acceptance import Drafted, accept
from dflash2_mlx.sampling.config import SamplingConfig
from dflash2_mlx.sampling.rng import base_keys
from tests.kernels.test_dynamic_conv import SHAPES as CONV_SHAPES
from tests.kernels.test_norm_rope_metal import SHAPES as HEAD_SHAPES
from tests.kernels.test_qmm_rows_metal import STORAGES
from tests.kernels.test_select_walk import SHAPES as WALK_SHAPES
from tests.kernels.test_top_candidates import COUNTS, SIZES

# One drafted block each: (rows, hidden size, vocabulary, selector rank); K is 16, a group 16 channels, 2 taps.
MODELS = {
    "mini": (8, 256, 4096, 32),
    "Qwen3.8-27B-DFlash2": (8, 5120, 248320, 256),
    "Muse-Glimmer-30B-DFlash2": (16, 6656, 202048, 256),
}
TOP_K, GROUP, TAPS = 16, 16, 2
# Their heads: of one row (query, key, value), turned (query, key), size.
HEADS = {"mini": (8, 6, 64), "Qwen3.8-27B-DFlash2": (48, 40, 128), "Muse-Glimmer-30B-DFlash2": (48, 40, 128)}


@dataclass(frozen=True)
class Case:
    """One operation at one shape; `call` builds the graph of one call."""

    operation: str
    shape: str
    call: Callable[[], object]


def random(*shape: int, seed: int = 0) -> mx.array:
    array = mx.random.normal(shape, key=mx.random.key(seed))
    mx.eval(array)
    return array


def conv_cases(label: str, batch: int, rows: int, channels: int, taps: int, group: int) -> Iterator[Case]:
    x, base = random(batch, rows, channels), random(2, taps, channels, seed=1)
    split = split_base(base, channels // group)
    delta = random(batch, rows, 2, taps, channels // group, seed=2)
    weight = random(channels, seed=3)

    def after() -> object:
        return conv_add_norm(x, base, delta, x, weight, 1e-6, split=split)

    yield Case("dynamic_conv", label, lambda: dynamic_conv(x, base, delta, 0, split=split))
    yield Case("conv_add_norm", label, after)


def heads_case(label: str, batch: int, rows: int, available: int, heads: int, dim: int) -> Case:
    x, norms = random(batch, rows, available, dim), random(heads, dim, seed=1)
    start = mx.full((batch,), 100, dtype=mx.int32)
    return Case("norm_rope", label, lambda: norm_rope(x, norms, start, theta=1e6, eps=1e-6))


def verify_cases(label: str, rows: int, heads: int, kv_heads: int, dim: int, vocab: int) -> Iterator[Case]:
    """What a verify pass runs besides its products, over 1,000 positions: the form that this machine picks."""
    queries, capacity = random(1, heads, rows, dim), 1024
    keys, values = (random(1, kv_heads, capacity, dim, seed=seed) for seed in (1, 2))
    start = mx.array([1000], dtype=mx.int32)
    mask = mask_of(start, 0, rows, capacity, causal=True, window=None, sink=0)
    yield Case("few_row_attention", label, lambda: few_row_attention(queries, keys, values, Sight(mask, start, 0)))

    q, k, v = (random(1, rows, heads, dim, seed=seed) / dim**0.5 for seed in (3, 4, 5))
    g, beta = (mx.sigmoid(random(1, rows, heads, seed=seed)) for seed in (6, 7))
    delta, state, keep = Rows(q, k, v, g, beta), mx.zeros((1, heads, dim, dim)), mx.array([2], dtype=mx.int32)
    yield Case("gated_delta_verify", label, lambda: list(gated_delta_verify(state, delta, keep, delta)))

    logits, sampling = random(1, rows, vocab, seed=8), SamplingConfig(temperature=1.0, top_k=8)
    ids = mx.broadcast_to(mx.arange(4, dtype=mx.int32), (1, rows - 1, 4))
    drafted = Drafted(ids[..., 0], ids, mx.full(ids.shape, 0.25))

    def accepted() -> list[mx.array]:
        return list(vars(accept(logits, start, drafted, sampling, base_keys(0))).values())

    yield Case("accept", label, accepted)


def product_cases(
    label: str, rows: int, inputs: int, outputs: int, group_size: int = 64, bits: int = 4
) -> Iterator[Case]:
    """A quantized product as MLX does it, and in those of our forms that run here."""
    packed, x = random_product((rows, inputs, outputs), group_size, bits, mx.float32), random(rows, inputs)
    mx.eval(packed.weight, packed.scales, packed.biases)
    for form in (STOCK, TILE, MATRIX):
        if usable(dispatcher(), form, x, packed):
            yield Case(f"qmm_rows, {form}", label, partial(run_form, form, x, packed))


def candidates_case(label: str, rows: tuple[int, ...], vocab: int, top_k: int) -> Case:
    logits = random(*rows, vocab)
    return Case("top_candidates", label, lambda: top_candidates(logits, top_k))


def selector_cases(label: str, rows: int, vocab: int, rank: int) -> Iterator[Case]:
    selector = Selector(random(vocab, rank), random(vocab, rank, seed=1))
    gate, logits, anchor = random(1, rows, rank, seed=2), random(1, rows, vocab, seed=3), mx.array([5], dtype=mx.int32)

    def straightforward() -> mx.array:
        candidates = mx.argpartition(logits, -TOP_K, axis=-1)[..., -TOP_K:]
        unary = mx.take_along_axis(logits, candidates, axis=-1)
        previous, path = anchor, []
        for n in range(rows):
            gated = selector.predecessor[previous] * gate[:, n]
            scores = unary[:, n] + (gated[:, None] * selector.successor[candidates[:, n]]).sum(axis=-1)
            chosen = mx.argmax(scores, axis=-1)
            previous = mx.take_along_axis(candidates[:, n], chosen[:, None], axis=-1)[:, 0]
            path.append(previous)
        return mx.stack(path, axis=1)

    yield Case("selector, straight", label, straightforward)
    yield Case("selector, ours", label, lambda: select(candidate_lists(logits, TOP_K), gate, anchor, selector).tokens)


def walk_cases(label: str, batch: int, rows: int, vocab: int, rank: int, top_k: int) -> Iterator[Case]:
    left, right = random(batch, rows, top_k, rank), random(batch, rows, top_k, rank, seed=1)
    gate, logits = random(batch, rows, rank, seed=2), random(batch, rows, vocab, seed=3)
    candidates, unary = top_candidates(logits, top_k)
    edges, noise = edge_scores(left, gate, right), random(batch, rows, top_k, seed=4)
    mx.eval(candidates, unary, edges)

    def drawn() -> object:
        walk = select_walk(candidates, unary, edges, temperature=1.0, noise=noise)
        return [walk.tokens, walk.q]

    yield Case("edge_scores", label, lambda: edge_scores(left, gate, right))
    yield Case("select_walk, greedy", label, lambda: select_walk(candidates, unary, edges).tokens)
    yield Case("select_walk, sampled", label, drawn)


def cases(which: str) -> Iterator[Case]:
    if which in ("tests", "all"):
        for shape in CONV_SHAPES:
            yield from conv_cases(str(shape), *shape)
        for heads in HEAD_SHAPES:
            yield heads_case(str(heads), 2, 5, *heads)
        yield from verify_cases("(5, 4, 2, 32, 300)", 5, 4, 2, 32, 300)
        for storage in STORAGES:
            yield from product_cases(str(storage), 5, *storage)
        for size in SIZES:
            for top_k in COUNTS:
                if top_k <= size:
                    yield candidates_case(str((2, 3, size, top_k)), (2, 3), size, top_k)
        for shape in WALK_SHAPES:
            yield from walk_cases(str(shape), *shape)
    if which in ("models", "all"):
        for name, (rows, hidden, vocab, rank) in MODELS.items():
            yield from conv_cases(name, 1, rows, hidden, TAPS, GROUP)
            yield heads_case(name, 1, rows, *HEADS[name])
            yield from product_cases(name, rows, hidden, 4 * hidden)
            yield from verify_cases(name, rows, 32, 8, 128, vocab)
            yield candidates_case(name, (1, rows - 1), vocab, TOP_K)
            yield from walk_cases(name, 1, rows - 1, vocab, rank, TOP_K)
            yield from selector_cases(name, rows - 1, vocab, rank)


@dataclass(frozen=True)
class Timing:
    operation: str
    shape: str
    median_ms: float
    least_ms: float


def measure(case: Case, repeats: int) -> Timing:
    """One call at a time, built and waited for; the first two are not counted."""
    times = []
    for number in range(repeats + 2):
        began = time.perf_counter()
        mx.eval(case.call())
        if number >= 2:
            times.append(1e3 * (time.perf_counter() - began))
    return Timing(case.operation, case.shape, statistics.median(times), min(times))


def main(arguments: Sequence[str] | None) -> None:
    parser = OneLineParser(
        prog="bench_kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="all", choices=("tests", "models", "all"))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the timings here")
    given = parser.parse_args(arguments)
    if given.repeats < 1:
        raise BadInput(f"--repeats: got {given.repeats}, expected at least 1")
    check_writable(given.json)
    machine = describe_machine()
    print_machine(machine)
    print(f"\n{'operation':<22} {'shape':<26} {'median ms':>10} {'least ms':>10}")
    timings = []
    for case in cases(given.shapes):
        timing = measure(case, given.repeats)
        timings.append(timing)
        print(f"{timing.operation:<22} {timing.shape:<26} {timing.median_ms:>10.3f} {timing.least_ms:>10.3f}")
    if given.json is not None:
        record = {"machine": machine, "repeats": given.repeats, "timings": [asdict(timing) for timing in timings]}
        write_json(given.json, record)


if __name__ == "__main__":
    run_command(main, "bench_kernels")

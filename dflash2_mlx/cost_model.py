"""What passes should cost on a chip by arithmetic: the table to start from before anything was measured.

Owns: a roofline for few-row passes. A linear layer takes the longer of two times: reading its weights, or decoding
and multiplying them, by the rules of `kernels.qmm_forms`. What surrounds the linear layers is a constant
per layer. Everything here is a prediction, checked against published measurements of M3 Max and M4 Pro within about
a tenth (docs/performance.md); `costs` measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from .chips import Chip, this_chip
from .costs import CONTEXT, PassCosts
from .drafter.config import DrafterConfig
from .kernels._dispatch import dispatcher
from .kernels.qmm_forms import (
    LONE_ROW,
    PADDED_SHARE,
    PADDED_TILE,
    few_row_operations,
    tile_operations,
    unit_operations,
)
from .kernels.qmm_forms import MOST_ROWS as MOST_OWN_ROWS
from .layout import on_cpu
from .memory import Precision, drafter_packing, own_bytes, packing, tensor_bytes
from .shapes import FULL, RECURRENT, target_shape
from .targets.registry import file_quantization
from .weights import expected_shapes

_LANES = 128  # of a GPU core
# Multiply-adds per lane and second, in 10^9: clocks; for generation 17 fitted to published times.
_CLOCK = {13: 1.294, 14: 1.398, 15: 1.398, 16: 1.578, 17: 2.15}
# Published: most GPU cores, and GB/s of memory.
_PUBLISHED = {
    (13, "base"): (8, 68), (13, "pro"): (16, 200), (13, "max"): (32, 400), (13, "ultra"): (64, 800),
    (14, "base"): (10, 100), (14, "pro"): (19, 200), (14, "max"): (38, 400), (14, "ultra"): (76, 800),
    (15, "base"): (10, 100), (15, "pro"): (18, 150), (15, "max"): (40, 400), (15, "ultra"): (80, 800),
    (16, "base"): (10, 120), (16, "pro"): (20, 273), (16, "max"): (40, 546),
    (17, "base"): (10, 153), (17, "pro"): (20, 307), (17, "max"): (40, 614),
}  # fmt: skip
# Reached in reading weights, in GB/s, where somebody published times to fit it to.
_FITTED = {(13, "pro"): 170, (15, "max"): 385, (16, "pro"): 245, (17, "max"): 520}
_REACHED = 0.87  # share of the published bandwidth elsewhere: the mean of the four
_FEW_ROWS = {"qmv": 5, "wide": 12}  # most rows of MLX's few-row kernels; more are a matrix product of 32-row tiles
_ULTRA_ROWS = 11
# MLX's attention: up to so many rows x query heads per key head, each row reads all keys and values for itself; beyond,
# all scores are written out and read again, which costs as much as so many reads.
_WALL, _WALL_READS = 32, 13
# Seconds around the linear layers of one layer, at 245 GB/s: 12 ms for 64 layers (M4 Pro, published).
_LAYER_S, _LAYER_BANDWIDTH = 12e-3 / 64, 245e9
_DISPATCH_S, _DRAFT_DISPATCHES = 3e-6, 94


@dataclass(frozen=True)
class Rates:
    """What a chip does: multiply-adds per second of all lanes, and bytes per second it reads weights with."""

    lanes: float
    bandwidth: float


@dataclass(frozen=True)
class OwnKernels:
    """Which of our few-row kernels serve the target and the drafter."""

    linear: bool = False
    attention: bool = False
    recurrent: bool = False


@dataclass(frozen=True)
class Matrices:
    """Weights that are read and multiplied alike; `share` of them by one row (experts: the routed ones)."""

    count: float
    bytes: float
    packed: bool
    share: float = 1.0

    def read(self, rows: int) -> Matrices:
        """What a pass of so many rows touches: rows choose their experts independently of each other."""
        touched = 1.0 - (1.0 - self.share) ** rows
        return Matrices(self.count * touched, self.bytes * touched, self.packed)


@dataclass(frozen=True)
class Workload:
    """What passes of one pair read. Bytes; `kv_bytes` per position of all layers that keep every position."""

    target: tuple[Matrices, ...]
    layers: int
    kv_bytes: int
    heads_per_kv: int
    state_bytes: int
    drafter: tuple[Matrices, ...] = ()
    head: Matrices = field(default_factory=lambda: Matrices(0, 0, False))
    block_size: int = 1


def rates_of(chip: Chip) -> Rates | None:
    """Rates by the chip's name; None where it is not among M1 to M5, or its class is not known."""
    if chip.family is None or chip.generation is None or chip.variant is None:
        return None
    place = (chip.generation, chip.variant)
    if place not in _PUBLISHED:
        return None
    most, published = _PUBLISHED[place]
    cores = chip.gpu_cores or most
    # A Max with fewer cores has a narrower memory as well, from the M3 on.
    narrower = 0.75 if chip.variant == "max" and chip.generation >= 15 and cores < 0.85 * most else 1.0
    reached = _FITTED.get(place, _REACHED * published) * narrower
    return Rates(cores * _LANES * _CLOCK[chip.generation] * 1e9, reached * 1e9)


def workload(
    target_config: Mapping[str, Any], drafter_config: DrafterConfig | None, precision: Precision | None = None
) -> Workload:
    """Read a pair's passes out of its configs.

    Raises:
        ConfigError, UnsupportedModelError: the config cannot be a target's.
    """
    held = precision or Precision()
    shape = target_shape(target_config)
    quantization = None if held.dequantized else file_quantization(target_config)
    body, head, experts = [], [], []
    tied = "lm_head.weight" not in shape.tensors
    text = target_config.get("text_config") or target_config
    for name, dims in shape.tensors.items():
        one = _matrix(dims, packing(name, dims, quantization), own_bytes(name, held.target_bytes))
        if "embed_tokens" in name:
            head += [one] if tied else []
        elif "lm_head" in name:
            head.append(one)
        elif "switch_mlp" in name:
            experts.append(one)
        elif len(dims) == 2:
            body.append(one)
    share = text.get("num_experts_per_tok", 0) / max(text.get("num_experts") or 1, 1)
    routed = [_joined(experts, share)] if experts else []
    return Workload(
        target=(_joined(body), _joined(head), *routed),
        layers=len(shape.kinds),
        kv_bytes=shape.layers(FULL) * 2 * shape.kv_heads * shape.head_dim * held.target_bytes,
        heads_per_kv=max(1, shape.heads // shape.kv_heads),
        state_bytes=shape.layers(RECURRENT) * 4 * shape.state_floats,
        drafter=() if drafter_config is None else _drafter(drafter_config, held),
        head=_joined(head),
        block_size=1 if drafter_config is None else drafter_config.block_size,
    )


def predict(
    work: Workload, chip: Chip, own: OwnKernels | None = None, rows: Iterable[int] = range(1, 17)
) -> PassCosts | None:
    """Costs of passes on a chip; None where its rates are not known.

    Args:
        own: which of our kernels run; MLX's own serve the rest.
        rows: of the target's passes; widths up to the drafter's block size get a draft time.
    """
    rates, own = rates_of(chip), own or OwnKernels()
    if rates is None:
        return None
    verify, draft, slope = {}, {}, {}
    for count in sorted(set(rows)):
        linear = sum(linear_s(part.read(count), count, chip, rates, own) for part in work.target)
        states = 1 if count == 1 or own.recurrent else 2  # ours goes on from the tape: one read and one write
        around = work.layers * _LAYER_S * _LAYER_BANDWIDTH + 2 * (states - 1) * work.state_bytes
        reads = count if count * work.heads_per_kv <= _WALL else max(count, _WALL_READS)
        reads = 1 if own.attention else reads
        slope[count] = work.kv_bytes * reads / rates.bandwidth
        verify[count] = linear + around / rates.bandwidth + CONTEXT * slope[count]
        if work.drafter and 2 <= count <= work.block_size:
            passes = sum(linear_s(part, count, chip, rates, own) for part in work.drafter)
            draft[count] = passes + linear_s(work.head, count - 1, chip, rates, own) + _DRAFT_DISPATCHES * _DISPATCH_S
    return PassCosts(verify, draft, slope)


def prior_costs(
    target_config: Mapping[str, Any], drafter_config: DrafterConfig, precision: Precision
) -> PassCosts | None:
    """What passes of a pair should cost on this machine; None where its chip is not known, or MLX uses no GPU."""
    if on_cpu() or not mx.metal.is_available():
        return None
    rows = range(1, drafter_config.block_size + 1)
    return predict(workload(target_config, drafter_config, precision), this_chip(), own_kernels(), rows)


def own_kernels() -> OwnKernels:
    """Which few-row kernels of ours may run in this process."""
    runs = dispatcher().wants_metal
    return OwnKernels(
        linear=runs("qmm_rows"), attention=runs("few_row_attention"), recurrent=runs("gated_delta_verify")
    )


def linear_s(part: Matrices, rows: int, chip: Chip, rates: Rates, own: OwnKernels) -> float:
    """Seconds of `rows` rows through these matrices."""
    reading, decoding = part.bytes / rates.bandwidth, part.count / rates.lanes
    product = max(reading, -(-rows // PADDED_TILE) * PADDED_TILE / PADDED_SHARE * decoding)
    if not part.packed:
        return reading if rows == 1 else product
    floor = reading / decoding
    if own.linear and rows <= MOST_OWN_ROWS:  # whichever wins
        return min(tile_operations(rows, floor), unit_operations(rows, floor)) * decoding
    assert chip.generation is not None
    ultra, wide = chip.variant == "ultra", chip.generation >= 15
    most = _ULTRA_ROWS if ultra else _FEW_ROWS["wide" if wide else "qmv"]
    if rows > most:
        # Tensor units do such a product at about the speed of reading.
        return 1.1 * reading if chip.neural_accelerators else product
    if not wide:
        return rows * max(reading, LONE_ROW * decoding)  # a pass per row
    return few_row_operations(rows, floor) * decoding


def _matrix(dims: tuple[int, ...], how: tuple[int, int] | None, width: int) -> Matrices:
    """One tensor; `how` is its packing, `width` its bytes a number where it has none."""
    return Matrices(math.prod(dims), tensor_bytes(dims, how, width), how is not None)


def _joined(parts: list[Matrices], share: float = 1.0) -> Matrices:
    """One entry for many; packed if most weights are."""
    count = sum(part.count for part in parts)
    packed = sum(part.count for part in parts if part.packed)
    return Matrices(count, sum(part.bytes for part in parts), 2 * packed > count, share)


def _drafter(config: DrafterConfig, held: Precision) -> tuple[Matrices, ...]:
    """All linear layers; keys and values twice, for the block and for new context rows."""
    parts = []
    for name, dims in expected_shapes(config).items():
        module = name.removesuffix(".weight")
        if len(dims) != 2 or module.endswith(("predecessor_codebook", "successor_codebook")):
            continue
        one = _matrix(dims, drafter_packing(name, dims, config, held), held.drafter_bytes)
        parts += [one] * (2 if module.endswith(("k_proj", "v_proj")) else 1)
    return tuple(_joined([part for part in parts if part.packed is packed]) for packed in (True, False))

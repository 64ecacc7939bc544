"""How much memory a pair needs, from its two configs.

Owns: the arithmetic of weights, caches and one pass's scratch. Allocates nothing and reads no file, so that a model
can be refused before it is downloaded. `tests/checkpoints/test_memory_estimate.py` holds it against what MLX really
allocates.

What is counted: target and drafter weights (with the drafter's K and V weights twice, as it keeps them), the target's
K/V rows and recurrent states and the drafter's rows at a context length, the taps of one prefill chunk, and the
largest activations of a chunk. What is not: buffers that MLX keeps for reuse, and other programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..drafters.dflash2.config import DrafterConfig
from ..errors import ConfigError
from ..layers.kv_cache import GROWTH
from ..names import module_setting
from ..targets.state import REMEMBERED_PASSES
from ..validation import check_integer
from .drafter_weights import QUANTIZED_ON_LOAD, expected_shapes
from .shapes import FULL, RECURRENT, SLIDING, TargetShape, target_shape

PREFILL_CHUNK = 512
_HALF, _SINGLE = 2, 4
_HIDDEN_COPIES = 6  # residual, norm, attention in and out, and their neighbours of one layer
_INNER_COPIES = 3  # gate, up and their product
_LOGIT_COPIES = 4  # float32 logits, probabilities, and what filters make of them
_CODEBOOKS = ("predecessor_codebook", "successor_codebook")


@dataclass(frozen=True)
class Precision:
    """How numbers are held.

    Args:
        target_bytes: of a weight that is not quantized, and of the target's activations; 2 for bfloat16, 4 for
            float32 (what MLX's CPU back-end runs).
        drafter_bytes: the same of the drafter.
        draft_bits: quantization of the drafter on load; None keeps its files' own.
        draft_group_size: weights that share a scale.
        dequantized: whether a quantized target is loaded as full matrices (`target_dtype="float32"`).
    """

    target_bytes: int = _HALF
    drafter_bytes: int = _HALF
    draft_bits: int | None = None
    draft_group_size: int = 64
    dequantized: bool = False

    def __post_init__(self) -> None:
        for name, value in (("target_bytes", self.target_bytes), ("drafter_bytes", self.drafter_bytes)):
            if value not in (_HALF, _SINGLE):
                raise ConfigError(f"{name}: got {value!r}, expected 2 or 4")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by part; `context` is the length in tokens they are for."""

    context: int
    target_weights: int
    drafter_weights: int
    target_cache: int
    drafter_cache: int
    taps: int
    activations: int

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return (
            self.target_weights
            + self.drafter_weights
            + self.target_cache
            + self.drafter_cache
            + self.taps
            + self.activations
        )

    def to_dict(self) -> dict[str, int]:
        """Plain JSON; bytes unless named otherwise."""
        return {**asdict(self), "total": self.total}


def memory_estimate(
    target_config: Mapping[str, Any],
    drafter_config: DrafterConfig | Mapping[str, Any] | None,
    context: int,
    *,
    precision: Precision | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
) -> MemoryEstimate:
    """Bytes that decoding with a pair needs at a context length.

    Args:
        target_config: the target's parsed `config.json`.
        drafter_config: the drafter's, parsed or raw; None decodes plainly.
        context: prompt and reply together, in tokens.
        precision: how numbers are held; the default is bfloat16 for both.
        prefill_chunk: prompt tokens read in one pass.
    Raises:
        ConfigError, UnsupportedModelError: a config that cannot be a target's or a drafter's, or a bad context.
    """
    check_integer("context", context, 1)
    held = precision or Precision()
    shape = target_shape(target_config)
    drafter = drafter_config
    if drafter is not None and not isinstance(drafter, DrafterConfig):
        drafter = DrafterConfig.from_dict(drafter, num_target_layers=len(shape.kinds))
    chunk = min(prefill_chunk, context)
    width = 1 if drafter is None else drafter.block_size
    taps = 0 if drafter is None else len(drafter.target_layer_ids) * shape.hidden_size * chunk * held.target_bytes
    return MemoryEstimate(
        context=context,
        target_weights=_target_weights(shape, target_config, held),
        drafter_weights=0 if drafter is None else _drafter_weights(drafter, held),
        target_cache=_target_cache(shape, context, chunk, width, held.target_bytes),
        drafter_cache=0 if drafter is None else _drafter_cache(drafter, context, held.drafter_bytes),
        taps=taps,
        activations=_activations(shape, context, chunk, width, held.target_bytes),
    )


def _target_weights(shape: TargetShape, config: Mapping[str, Any], held: Precision) -> int:
    quantization = None if held.dequantized else config.get("quantization") or config.get("quantization_config")
    return sum(
        tensor_bytes(dims, packing(name, dims, quantization), own_bytes(name, held.target_bytes))
        for name, dims in shape.tensors.items()
    )


def own_bytes(name: str, width: int) -> int:
    """Bytes of a number of a tensor that is not packed, where most have `width`."""
    return _SINGLE if name.endswith("A_log") else width  # decay stays float32


def packing(name: str, dims: tuple[int, ...], quantization: object) -> tuple[int, int] | None:
    """(bits, group size) of one tensor of a quantized checkpoint, or None where it is kept plain.

    Raises:
        ConfigError: the config's `quantization` names no bits and group size for it.
    """
    if not isinstance(quantization, Mapping) or len(dims) < 2 or "conv1d" in name:
        return None
    merged: Mapping[str, Any] = quantization
    own = module_setting(quantization, name.removesuffix(".weight"))
    if own is False:
        return None
    if isinstance(own, Mapping):
        merged = {**quantization, **own}
    bits, group = merged.get("bits"), merged.get("group_size")
    if not isinstance(bits, int) or not isinstance(group, int) or bits < 1 or group < 1:
        raise ConfigError(f"quantization: got {dict(merged)!r}, expected bits and group_size")
    return None if dims[-1] % group else (bits, group)


def tensor_bytes(dims: Iterable[int], packed: tuple[int, int] | None, width: int) -> int:
    """Bytes of one tensor, packed or of `width` bytes a number."""
    count = math.prod(dims)
    if packed is None:
        return count * width
    bits, group = packed
    return count * bits // 8 + 2 * (count // group) * width  # codes, then scales and biases


def drafter_packing(name: str, dims: tuple[int, ...], config: DrafterConfig, held: Precision) -> tuple[int, int] | None:
    """The same of a drafter's tensor, quantized in its files or on load."""
    if config.quantization and not any(book in name for book in _CODEBOOKS):
        return packing(name, dims, config.quantization)
    if held.draft_bits is not None and name.removesuffix(".weight").rsplit(".", 1)[-1] in QUANTIZED_ON_LOAD:
        return held.draft_bits, held.draft_group_size
    return None


def _drafter_weights(config: DrafterConfig, held: Precision) -> int:
    total = 0
    for name, dims in expected_shapes(config).items():
        size = tensor_bytes(dims, drafter_packing(name, dims, config, held), held.drafter_bytes)
        twice = name.endswith(("k_proj.weight", "v_proj.weight"))  # beside the queries, and for all layers' context
        total += 2 * size if twice else size
    return total


def _rows(context: int, window: int | None, spare: int) -> int:
    """Rows a buffer holds at its longest: grown in steps, compacted when a window lets rows go."""
    needed = context + spare
    if window is not None:
        needed = min(needed, window + spare + GROWTH)
    return -(-needed // GROWTH) * GROWTH


def _target_cache(shape: TargetShape, context: int, chunk: int, width: int, number: int) -> int:
    row = 2 * shape.kv_heads * shape.head_dim * number
    full = shape.layers(FULL) * row * _rows(context, None, 2 * width)
    sliding = shape.layers(SLIDING) * row * _rows(context, shape.window, chunk + 2 * width)
    # The state now, and for each pass that can be undone the one before it and its tape of a block.
    states = shape.state_floats * _SINGLE + shape.conv_inputs * number
    # While buffers grow or are compacted, the old ones and the new ones are there together (measured).
    return 2 * (full + sliding) + shape.layers(RECURRENT) * (1 + REMEMBERED_PASSES) * states


def _drafter_cache(config: DrafterConfig, context: int, number: int) -> int:
    row = 2 * config.num_kv_heads * config.head_dim * number
    window = None if config.context_window is None else config.sliding_window
    return config.num_layers * row * _rows(context, window, 2 * config.block_size)


def _activations(shape: TargetShape, context: int, chunk: int, width: int, number: int) -> int:
    """The largest pass: a prefill chunk, or a verify.

    Attention counts as whole score matrices, which MLX computes for some head sizes and spares for others: an upper
    bound, up to a few percent of a large pair.
    """
    per_row = _HIDDEN_COPIES * shape.hidden_size + _INNER_COPIES * shape.inner_size
    per_row += (2 * shape.heads + 4 * shape.kv_heads) * shape.head_dim
    scores = shape.heads * chunk * context * number
    logits = _LOGIT_COPIES * width * shape.vocab_size * _SINGLE
    return chunk * per_row * number + scores + logits

"""A snapshot as plain bytes, so that any thread can write it to a file or read it from one.

Owns: the way from device arrays to bytes of the host and back, and the names of the tensors. Knows nothing of files.
Freezing and thawing run on the thread that owns MLX; the bytes in between may be used anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..decode.memory import Extent, SessionSnapshot
from ..drafters.dflash2.context import DrafterContext
from ..layers.gated_delta import GatedDeltaState
from ..layers.kv_cache import RowBuffers
from ..targets.state import TargetState

# Device dtype -> name in a safetensors header, and an integer type of that size that NumPy knows.
_DTYPES = {
    mx.bfloat16: ("BF16", mx.uint16),
    mx.float16: ("F16", mx.uint16),
    mx.float32: ("F32", mx.uint32),
}
_BY_NAME = {name: (dtype, bits) for dtype, (name, bits) in _DTYPES.items()}
_NUMPY = {mx.uint16: np.uint16, mx.uint32: np.uint32}


@dataclass(frozen=True)
class HostTensor:
    """`data` is contiguous; `dtype` is the name safetensors gives it."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class Layout:
    """What the tensors alone do not say; plain numbers, so that it can be written as JSON.

    Each group is (layers, base, window, sink) of its buffers; `context_floor` is the context's own length, which
    may lie past `position` when a gap was left.
    """

    position: int
    full: tuple[int, int, int | None, int]
    sliding: tuple[int, int, int | None, int]
    recurrent: int
    context: tuple[int, int, int | None, int] | None
    context_floor: int | None

    def extent(self, tokens: np.ndarray) -> Extent:
        """What a snapshot of this layout can serve."""
        return Extent(
            tokens=tokens,
            recurrent=self.recurrent > 0,
            first_sliding=_first_whole(self.sliding) if self.sliding[0] else None,
            window=self.sliding[2] if self.sliding[0] else None,
            first_context=None if self.context is None else _first_whole(self.context),
        )


@dataclass(frozen=True)
class FrozenSnapshot:
    """Tokens that have rows, and every tensor by name."""

    tokens: np.ndarray  # [position] int32
    layout: Layout
    tensors: dict[str, HostTensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())


def _first_whole(group: tuple[int, int, int | None, int]) -> int:
    _, base, _, sink = group
    return base + sink if base else 0


def _group(buffers: RowBuffers) -> tuple[int, int, int | None, int]:
    return buffers.num_layers, buffers.base, buffers.window, buffers.sink


def freeze(snapshot: SessionSnapshot) -> FrozenSnapshot:
    """Bytes of a packed snapshot; nothing is copied, the bytes are those of its arrays."""
    state, context = snapshot.state, snapshot.context
    layout = Layout(
        position=snapshot.position,
        full=_group(state.full),
        sliding=_group(state.sliding),
        recurrent=len(state.recurrent),
        context=None if context is None else _group(context.buffers),
        context_floor=None if context is None else context.floor,
    )
    arrays = _buffer_arrays("full", state.full) | _buffer_arrays("sliding", state.sliding)
    for number, layer in enumerate(state.recurrent):
        assert layer is not None, "a sequence with tokens has a state in every recurrent layer"
        arrays |= {f"recurrent.{number}.conv": layer.conv, f"recurrent.{number}.state": layer.recurrent}
    if context is not None:
        arrays |= _buffer_arrays("context", context.buffers)
    bits = {name: mx.contiguous(array).view(_DTYPES[array.dtype][1]) for name, array in arrays.items()}
    mx.eval(list(bits.values()))
    tensors = {
        name: HostTensor(_DTYPES[arrays[name].dtype][0], tuple(array.shape), _bytes_of(array))
        for name, array in bits.items()
    }
    return FrozenSnapshot(np.asarray(snapshot.tokens[: snapshot.position], dtype=np.int32), layout, tensors)


def thaw(frozen: FrozenSnapshot) -> SessionSnapshot:
    """The snapshot again, in device memory of its own.

    Raises:
        KeyError, ValueError: a tensor is missing, or its shape is not that of the others of its group.
    """
    layout, position = frozen.layout, frozen.layout.position
    arrays = {name: _array_of(tensor) for name, tensor in frozen.tensors.items()}
    state = TargetState(1)
    state.full = _buffers("full", layout.full, arrays)
    state.sliding = _buffers("sliding", layout.sliding, arrays)
    state.recurrent = [
        GatedDeltaState(arrays[f"recurrent.{number}.conv"], arrays[f"recurrent.{number}.state"])
        for number in range(layout.recurrent)
    ]
    state.truncate(position)
    context = None
    if layout.context is not None and layout.context_floor is not None:
        layers, _, window, sink = layout.context
        context = DrafterContext(layers, 1, window, sink)
        context.buffers = _buffers("context", layout.context, arrays)
        context.truncate(layout.context_floor)
    thawed = SessionSnapshot(frozen.tokens.tolist(), position, state, context)
    mx.eval(thawed.arrays())
    return thawed


def _buffer_arrays(name: str, buffers: RowBuffers) -> dict[str, mx.array]:
    keys = {f"{name}.keys.{number}": array for number, array in enumerate(buffers.keys)}
    return keys | {f"{name}.values.{number}": array for number, array in enumerate(buffers.values)}


def _buffers(name: str, group: tuple[int, int, int | None, int], arrays: dict[str, mx.array]) -> RowBuffers:
    layers, base, window, sink = group
    buffers = RowBuffers(layers, 1, window, sink)
    buffers.base = base
    if f"{name}.keys.0" not in arrays:
        return buffers
    buffers.keys = [arrays[f"{name}.keys.{number}"] for number in range(layers)]
    buffers.values = [arrays[f"{name}.values.{number}"] for number in range(layers)]
    rows = {array.shape[2] for array in buffers.arrays()}
    if len(rows) != 1:
        raise ValueError(f"{name}: got buffers of {sorted(rows)} rows, expected one length")
    buffers.capacity = rows.pop()
    return buffers


def _bytes_of(array: mx.array) -> memoryview:
    # A view with a zero in its shape cannot be cast.
    return np.asarray(array).data.cast("B") if array.size else memoryview(b"")


def _array_of(tensor: HostTensor) -> mx.array:
    dtype, bits = _BY_NAME[tensor.dtype]
    return mx.array(np.frombuffer(tensor.data, dtype=_NUMPY[bits]).reshape(tensor.shape)).view(dtype)

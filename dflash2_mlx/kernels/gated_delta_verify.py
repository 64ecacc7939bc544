"""A gated-delta layer's verify pass: the kept rows of the pass before, and the rows of this one.

Owns: the pure-MLX twin (two runs of mlx-lm's recurrence, one of them masked), and the choice between it and
metal/gated_delta_verify.metal, which reads the state once and writes it once. Knows nothing of layers or caches.

Reference: Yang et al., "Gated Delta Networks" (2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel, gated_delta_ops

from . import _target_calls
from ._dispatch import check_equal, dispatcher, inexact, rounding
from ._metal import KernelCall

NAME = "gated_delta_verify"
OURS, STOCK = "metal", "mlx"  # contenders of a race
FEWEST_ROWS, MOST_ROWS = 2, 16
_DTYPES = (mx.float32, mx.float16, mx.bfloat16)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """What the recurrence reads of the rows of one pass.

    Shapes: q, k [B, L, Hk, Dk], normed and scaled; v [B, L, Hv, Dv]; g (decay), beta (write strength) [B, L, Hv]
    """

    q: mx.array
    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array

    @property
    def inputs(self) -> tuple[mx.array, ...]:
        """As the recurrence takes them."""
        return self.q, self.k, self.v, self.g, self.beta

    def first(self) -> Rows:
        """The first row alone."""
        return Rows(*(array[:, :1] for array in self.inputs))


def gated_delta_verify(
    state: mx.array, old: Rows, keep: mx.array, new: Rows, *, exact: bool = False
) -> tuple[mx.array, mx.array]:
    """Apply the first `keep` of the old rows to the state, then run the new rows.

    Shapes:
        state: [B, Hv, Dv, Dk] float32, before the old rows
        keep:  [B] int32
    Args:
        exact: a row's numbers depend on no row after it, nor on which pass it is part of.
    Returns:
        y [B, L, Hv, Dv] of the new rows, and the state before them [B, Hv, Dv, Dk] float32
    Raises:
        SettingError: exactness was asked for and the kernel does not run.
    """
    if exact and not possible(state.shape[3], new.v.dtype):
        raise inexact(f"gated-delta keys of {state.shape[3]} {new.v.dtype}")
    runs = dispatcher().wants_metal(NAME) if exact else wanted(state.shape, new.k.shape, new.v.dtype)
    if runs:
        call = _target_calls.gated_delta_verify(state.shape, new.k.shape, new.v.dtype)
        inputs = (state, old.k, old.v, old.g, old.beta, keep, *new.inputs)
        if dispatcher().passes(call, inputs, lambda: _self_test(call, new)):
            y, stored = dispatcher().run(call, inputs)
            return y, stored
    if exact:
        raise inexact(dispatcher().why_not(NAME))
    return gated_delta_twin(state, old, keep, new)


def gated_delta_twin(state: mx.array, old: Rows, keep: mx.array, new: Rows) -> tuple[mx.array, mx.array]:
    """The twin of `gated_delta_verify`, shapes as there."""
    kept = mx.arange(old.k.shape[1], dtype=mx.int32)[None] < keep[:, None]
    _, stored = recurrence(old, state, kept)
    y, _ = recurrence(new, stored)
    return y, stored


def recurrence(rows: Rows, state: mx.array, mask: mx.array | None = None) -> tuple[mx.array, mx.array]:
    """mlx-lm's own: outputs and the state after the rows that the mask [B, L] lets pass."""
    on_metal = mx.metal.is_available() and mx.default_device() == mx.Device(mx.gpu) and state.shape[-1] % 32 == 0
    run = gated_delta_kernel if on_metal else gated_delta_ops
    y, after = run(*rows.inputs, state, mask)
    return y, after


def wanted(state: Shape, keys: Shape, dtype: mx.Dtype) -> bool:
    """Whether the kernel should run: yes, unless a race was lost at this shape."""
    if not FEWEST_ROWS <= keys[1] <= MOST_ROWS or not possible(state[3], dtype):
        return False
    return dispatcher().chooses_metal(NAME, race_key(state, keys, dtype))


def possible(dim: int, dtype: mx.Dtype) -> bool:
    """Whether the kernel can take keys of this size and type."""
    return dim % (4 * _target_calls.DELTA_LANES) == 0 and dtype in _DTYPES


def race_key(state: Shape, keys: Shape, dtype: mx.Dtype) -> str:
    """What a winner at these shapes is kept under."""
    kind = str(dtype).rsplit(".", 1)[-1]
    return f"{state[1]}/{keys[2]} heads of {state[2]}x{state[3]} {kind} rows {keys[1]}"


def _self_test(call: KernelCall, like: Rows) -> None:
    """Random rows of the same sizes, some of which are kept."""
    dtype, rows = like.v.dtype, like.k.shape[1]
    state = mx.random.normal((1, *call.output_shapes[1][1:]), key=mx.random.key(0))
    sides = []
    for seed in (1, 2):
        keys = mx.random.split(mx.random.key(seed), 5)
        q, k, v, g, beta = (
            mx.random.normal((1, *array.shape[1:]), key=key) for array, key in zip(like.inputs, keys, strict=True)
        )
        q, k = (array / mx.linalg.norm(array, axis=-1, keepdims=True) for array in (q, k))
        wide = (q.astype(dtype), k.astype(dtype), v.astype(dtype), mx.sigmoid(g).astype(like.g.dtype))
        sides.append(Rows(*wide, mx.sigmoid(beta).astype(like.beta.dtype)))
    old, new = sides
    keep = mx.array([rows // 2], dtype=mx.int32)
    own = _target_calls.gated_delta_verify(state.shape, new.k.shape, dtype)
    inputs = (state, old.k, old.v, old.g, old.beta, keep, *new.inputs)
    y, stored = dispatcher().run(own, inputs)
    want_y, want_stored = gated_delta_twin(state, old, keep, new)
    check_equal(stored, want_stored, tolerance=rounding(mx.float32), what=f"{NAME} state")
    check_equal(y, want_y, tolerance=rounding(dtype), what=NAME)

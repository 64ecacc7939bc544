"""A gated-delta layer's verify pass: the kept rows of the pass before, and the rows of this one.

Owns: the pure-MLX twin (two runs of mlx-lm's recurrence, one of them masked), and the choice between it and
metal/gated_delta_verify.metal, which reads the state once and writes it once. Knows nothing of layers or caches.

Reference: Yang et al., "Gated Delta Networks" (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel, gated_delta_ops

from .call import KernelCall
from .dispatch import check_equal, dispatcher, inexact, rounding

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
        call = gated_delta_verify_call(state.shape, new.k.shape, new.v.dtype)
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
    return dim % (4 * DELTA_LANES) == 0 and dtype in _DTYPES


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
    own = gated_delta_verify_call(state.shape, new.k.shape, dtype)
    inputs = (state, old.k, old.v, old.g, old.beta, keep, *new.inputs)
    y, stored = dispatcher().run(own, inputs)
    want_y, want_stored = gated_delta_twin(state, old, keep, new)
    check_equal(stored, want_stored, tolerance=rounding(mx.float32), what=f"{NAME} state")
    check_equal(y, want_y, tolerance=rounding(dtype), what=NAME)


DELTA_LANES = 8  # lanes that share one row of a gated-delta state


@cache
def gated_delta_verify_call(state: tuple[int, ...], keys: tuple[int, ...], dtype: mx.Dtype) -> KernelCall:
    """Kept rows of the pass before, stored, then the rows of this pass.

    Shapes:
        state [B, Hv, Dv, Dk] float32; old_k [B, Lo, Hk, Dk], old_v [B, Lo, Hv, Dv], old_g, old_beta [B, Lo, Hv];
        keep [B] int32; q, k [B, L, Hk, Dk], v [B, L, Hv, Dv], g, beta [B, L, Hv]
        -> y [B, L, Hv, Dv], stored [B, Hv, Dv, Dk] float32
    Args:
        state, keys: shapes of state and k.
        dtype: of q, k, v and y.
    Raises:
        ValueError: sizes that the kernel cannot serve, named.
    """
    batch, heads, values, dim = state
    if dim % (4 * DELTA_LANES) or heads % keys[2]:
        raise ValueError(
            f"gated_delta_verify: got {heads} heads over {keys[2]} with keys of size {dim}, expected a multiple, and "
            f"one of {4 * DELTA_LANES}"
        )
    across = -(-values * DELTA_LANES // 32)
    return KernelCall(
        name="gated_delta_verify",
        inputs=("state", "old_k", "old_v", "old_g", "old_beta", "keep", "q", "k", "v", "g", "beta"),
        outputs=("y", "stored"),
        template=(("T", dtype), ("DK", dim), ("LANES", DELTA_LANES)),
        grid=(32, across, batch * heads),
        threadgroup=(32, min(4, across), 1),
        output_shapes=((batch, keys[1], heads, values), state),
        output_dtypes=(dtype, mx.float32),
    )

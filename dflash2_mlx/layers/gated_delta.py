"""Gated-delta layers (Qwen3.5 and later): one pass that can be replayed.

Owns: the body of mlx-lm's `GatedDeltaNet`, run over the module's own submodules, so that the inputs of the
recurrence stay visible; and the replay that keeps only the accepted rows. mlx-lm's own call overwrites both
states. Knows nothing of blocks or drafting.

Reference: Yang et al., "Gated Delta Networks" (2024); mlx_lm.models.qwen3_5.GatedDeltaNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import compute_g, gated_delta_update, normalize_qk
from mlx_lm.models.qwen3_5 import GatedDeltaNet

from ..kernels.dispatch import EXACT_ROWS
from ..kernels.gated_delta_verify import Rows, gated_delta_verify, recurrence
from ..kernels.gated_delta_verify import wanted as verify_wanted


@dataclass(frozen=True)
class GatedDeltaState:
    """Shapes: conv [B, Kc - 1, C] last inputs of the short convolution; recurrent [B, Hv, Dv, Dk] float32."""

    conv: mx.array
    recurrent: mx.array

    def arrays(self) -> list[mx.array]:
        return [self.conv, self.recurrent]


@dataclass(frozen=True)
class UnsettledState:
    """A state whose kept rows are still to be applied: the next verify pass does so on its way.

    Shapes: conv as above; before [B, Hv, Dv, Dk] float32, to which the first keep [B] int32 of the rows are applied
    Attributes:
        exact: by the kernel, whoever asks, so that it makes no difference who does.
    """

    conv: mx.array
    before: mx.array
    rows: Rows
    keep: mx.array
    exact: bool = False

    @cached_property
    def recurrent(self) -> mx.array:
        """What the kernel would store; built only where somebody else than the kernel asks."""
        if self.exact:
            return gated_delta_verify(self.before, self.rows, self.keep, self.rows.first(), exact=True)[1]
        kept = mx.arange(self.rows.k.shape[1], dtype=mx.int32)[None] < self.keep[:, None]
        return recurrence(self.rows, self.before, kept)[1]

    def arrays(self) -> list[mx.array]:
        return [self.conv, self.recurrent]


AnyState = GatedDeltaState | UnsettledState


@dataclass(frozen=True)
class GatedDeltaTape:
    """What one pass read: enough to run the recurrence again over its first rows.

    Shapes: q, k [B, L, Hk, Dk]; v [B, L, Hv, Dv]; a, b [B, L, Hv]; conv_input [B, Kc - 1 + L, C]
    """

    layer: GatedDeltaNet
    q: mx.array
    k: mx.array
    v: mx.array
    a: mx.array
    b: mx.array
    conv_input: mx.array
    before: GatedDeltaState
    after: GatedDeltaState

    def commit(self, keep: int | mx.array, rows: int) -> GatedDeltaState:
        """State after the first `keep` rows; `keep` on the device costs one lazy replay, no wait."""
        if isinstance(keep, int):
            if keep == rows:
                return self.after
            if keep == 0:
                return self.before
            keep = mx.full((self.q.shape[0],), keep, dtype=mx.int32)
        kept = mx.arange(rows, dtype=mx.int32)[None] < keep[:, None]
        _, recurrent = gated_delta_update(
            self.q,
            self.k,
            self.v,
            self.a,
            self.b,
            self.layer.A_log,
            self.layer.dt_bias,
            self.before.recurrent,
            kept,
        )
        return GatedDeltaState(_rows_from(self.conv_input, keep, self.before.conv.shape[1]), recurrent)


@dataclass(frozen=True)
class VerifyTape:
    """The same of a pass that `gated_delta_verify` ran: its rows are applied by whoever comes next."""

    rows: Rows
    conv_input: mx.array
    before: GatedDeltaState
    exact: bool = False

    def commit(self, keep: int | mx.array, rows: int) -> AnyState:
        """State after the first `keep` rows; costs nothing until it is needed."""
        if isinstance(keep, int):
            if keep == 0:
                return self.before
            keep = mx.full((self.conv_input.shape[0],), keep, dtype=mx.int32)
        conv = _rows_from(self.conv_input, keep, self.before.conv.shape[1])
        return UnsettledState(conv, self.before.recurrent, self.rows, keep, self.exact)


Tape = GatedDeltaTape | VerifyTape


def _rows_from(rows: mx.array, start: mx.array, count: int) -> mx.array:
    """`count` rows of [B, L, C] from a start per sequence."""
    if rows.shape[0] == 1:
        return mx.slice(rows, start.reshape(1), axes=(1,), slice_size=(1, count, rows.shape[2]))
    index = start[:, None] + mx.arange(count, dtype=mx.int32)
    return mx.take_along_axis(rows, index[..., None], axis=1)


def layer_shape(layer: GatedDeltaNet) -> tuple[int, int, int, int]:
    """Value heads, key heads, value size, key size."""
    return layer.num_v_heads, layer.num_k_heads, layer.head_v_dim, layer.head_k_dim


def gated_delta_pass(
    layer: GatedDeltaNet, x: mx.array, state: AnyState | None, *, exact: bool = False
) -> tuple[mx.array, Tape]:
    """Run one gated-delta layer over [B, L, D]; returns its output [B, L, D] and the tape of the pass.

    `exact`: `gated_delta_verify` does it for 1 to 32 rows; otherwise where it should run.

    Raises:
        SettingError: `exact`, and the kernel does not run.
    """
    batch, length, _ = x.shape
    if state is None:
        state = GatedDeltaState(
            mx.zeros((batch, layer.conv_kernel_size - 1, layer.conv_dim), dtype=x.dtype),
            mx.zeros((batch, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim), dtype=mx.float32),
        )
    qkv = layer.in_proj_qkv(x)
    z = layer.in_proj_z(x).reshape(batch, length, layer.num_v_heads, layer.head_v_dim)
    b, a = layer.in_proj_b(x), layer.in_proj_a(x)
    conv_input = mx.concatenate([state.conv, qkv], axis=1)
    mixed = nn.silu(layer.conv1d(conv_input))
    q, k, v = mx.split(mixed, [layer.key_dim, 2 * layer.key_dim], axis=-1)
    q = q.reshape(batch, length, layer.num_k_heads, layer.head_k_dim)
    k = k.reshape(batch, length, layer.num_k_heads, layer.head_k_dim)
    v = v.reshape(batch, length, layer.num_v_heads, layer.head_v_dim)
    q, k = normalize_qk(q, k, inv_scale=layer.head_k_dim**-0.5, eps=1e-6)
    tape: Tape
    shape = (batch, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
    if batch * length <= EXACT_ROWS if exact else verify_wanted(shape, k.shape, v.dtype):
        # v is a part of every row of `mixed`: copied once here, else by this kernel's call and again by the next one's.
        rows = Rows(q, k, mx.contiguous(v), compute_g(layer.A_log, a, layer.dt_bias), mx.sigmoid(b))
        out, before = _verify(state, rows, exact)
        tape = VerifyTape(rows, conv_input, before, exact)
    else:
        before = GatedDeltaState(state.conv, state.recurrent)
        out, recurrent = gated_delta_update(q, k, v, a, b, layer.A_log, layer.dt_bias, before.recurrent)
        after = GatedDeltaState(mx.contiguous(conv_input[:, length:]), recurrent)
        tape = GatedDeltaTape(layer, q, k, v, a, b, conv_input, before, after)
    out = layer.out_proj(layer.norm(out, z).reshape(batch, length, -1))
    return out, tape


def _verify(state: AnyState, rows: Rows, exact: bool) -> tuple[mx.array, GatedDeltaState]:
    """Outputs of the rows, and the state before them."""
    if isinstance(state, UnsettledState):
        out, settled = gated_delta_verify(state.before, state.rows, state.keep, rows, exact=exact)
        return out, GatedDeltaState(state.conv, settled)
    # Nothing to apply first: any rows do, as none of them is kept.
    nothing = mx.zeros((rows.k.shape[0],), dtype=mx.int32)
    out, settled = gated_delta_verify(state.recurrent, rows, nothing, rows, exact=exact)
    return out, GatedDeltaState(state.conv, settled)

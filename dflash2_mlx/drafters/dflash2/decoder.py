"""One drafter layer: convolved attention and convolved MLP around a residual stream.

Reference: docs/dflash2.md 3.5.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ...kernels.few_row_attention import Sight
from ...layers.fused import Joined, join, share
from ...layers.kv_cache import RowView
from .attention import DrafterAttention
from .config import DrafterConfig
from .conv import DynamicConv, NoConv


class DrafterMLP(nn.Module):
    """silu(gate) * up, then down. Parameter names follow the checkpoint."""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self._gate_up: Joined | None = None

    def __call__(self, x: mx.array) -> mx.array:
        if self._gate_up is None:
            gate, up = self.gate_proj(x), self.up_proj(x)
        else:
            gate, up = mx.split(self._gate_up(x), 2, axis=-1)
        return self.down_proj(nn.silu(gate) * up)

    @property
    def joined(self) -> Joined | None:
        """The one product of gate and up, where there is one."""
        return self._gate_up

    def join_weights(self) -> None:
        """Run gate and up as one product from now on; the parts become views of it."""
        if self._gate_up is not None:  # done before, for another drafter of the same modules
            return
        parts = (self.gate_proj, self.up_proj)
        self._gate_up = join(parts)
        share(self._gate_up, parts)


def _make_conv(config: DrafterConfig) -> DynamicConv | NoConv:
    if config.conv_kernel_size is None or config.conv_group_size is None:
        return NoConv()
    return DynamicConv(config.hidden_size, config.conv_kernel_size, config.conv_group_size)


class DrafterLayer(nn.Module):
    """Attention and MLP, each between the two sides of its own convolution."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.self_attn = DrafterAttention(config)
        self.mlp = DrafterMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention_conv = _make_conv(config)
        self.mlp_conv = _make_conv(config)

    def __call__(
        self,
        hidden: mx.array,
        normed: mx.array,
        next_norm: nn.RMSNorm,
        buffers: RowView,
        layer: int,
        sight: Sight,
    ) -> tuple[mx.array, mx.array]:
        """Run the layer on the residual stream and its norm by `input_layernorm`.

        Shapes:
            hidden, normed: [B, L, D], or [L, D] where B is 1; see `DrafterAttention.__call__` for the rest
        Args:
            next_norm: of the layer that comes next, or the model's last.
        Returns:
            the stream, and its norm by `next_norm`
        """
        mixed, delta = self.attention_conv.prepare(normed)
        out = self.self_attn(mixed, buffers, layer, sight)
        hidden, normed = self.attention_conv.finish(out, delta, hidden, self.post_attention_layernorm)
        mixed, delta = self.mlp_conv.prepare(normed)
        return self.mlp_conv.finish(self.mlp(mixed), delta, hidden, next_norm)

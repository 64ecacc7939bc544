"""How much of its attention a drafter spends on the block itself, layer by layer and head by head.

Owns: the observed attention, which runs the layer's own and also says where the softmax went. It sees the real buffers
and the real mask of the pass.

Reference: docs/dflash2.md 6.3 (published shares), 3.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..device.runtime import owner
from ..drafters.dflash2.attention import DrafterAttention
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine
from ..errors import ConfigError
from ..kernels.few_row_attention import Sight
from ..layers.kv_cache import RowView
from ..targets.base import Target
from .ablation import rebuilt
from .replies import Reply, blocks, drafter_of


@dataclass(frozen=True)
class BlockAttention:
    """Share of the softmax on block rows, the rest being on the context; means over all rows of `rounds` blocks.

    Shapes: share [layers][heads], each in 0..1
    """

    rounds: int
    share: list[list[float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, with the mean of each layer."""
        means = [float(np.mean(heads)) for heads in self.share]
        return {"rounds": self.rounds, "by_layer": means, "by_layer_and_head": self.share}


class ObservedAttention(nn.Module):
    """A layer's attention, and a record of what its rows looked at."""

    def __init__(self, inner: DrafterAttention, shares: list[mx.array]):
        super().__init__()
        self.inner = inner
        self._shares = shares

    def __call__(self, x: mx.array, buffers: RowView, layer: int, sight: Sight) -> mx.array:
        """As `DrafterAttention.__call__`; leaves [B, H] behind."""
        queries, _, _ = self.inner.project(x, sight.start)
        out = self.inner(x, buffers, layer, sight)
        own = buffers.positions() >= sight.start[:, None, None, None]
        self._shares.append(
            block_share(queries, buffers.keys[layer], sight.mask, own, scale=self.inner.head_dim**-0.5).mean(axis=-1)
        )
        return out


def block_share(queries: mx.array, keys: mx.array, mask: mx.array, own: mx.array, *, scale: float) -> mx.array:
    """Softmax mass on some of the keys.

    Shapes:
        queries: [B, H, L, Dh]; keys: [B, Hkv, S, Dh]
        mask:    [B, 1, L, S] bool, what a row sees
        own:     [B, 1, 1, S] bool, the keys whose mass is asked for
    Returns:
        [B, H, L] float32
    """
    keys = mx.repeat(keys, queries.shape[1] // keys.shape[1], axis=1).astype(mx.float32)
    scores = (queries.astype(mx.float32) * scale) @ keys.swapaxes(-1, -2)
    weights = mx.softmax(mx.where(mask, scores, -mx.inf), axis=-1, precise=True)
    return mx.where(own, weights, 0.0).sum(axis=-1)


def measure_attention(engine: Engine, replies: Sequence[Reply], *, width: int | None = None) -> BlockAttention:
    """Look at the blocks that the replies' rounds drafted.

    Args:
        width: rows of a block; None takes the drafter's own block size.
    Raises:
        ConfigError: the engine has no drafter, or the replies have no rounds.
    """
    drafter = drafter_of(engine)
    rows = width or drafter.config.block_size
    parts = [owner().call(partial(_shares, engine.target, drafter, reply, rows)) for reply in replies if reply.rounds]
    if not parts:
        raise ConfigError("replies: got none with a round, expected something drafted")
    every = np.concatenate(parts)
    return BlockAttention(len(every), every.mean(axis=0).tolist())


def _shares(target: Target, drafter: DraftModel, reply: Reply, width: int) -> np.ndarray:
    """[rounds, layers, H]"""
    seen: list[mx.array] = []
    observed = rebuilt(drafter, prepare=False)
    for layer in observed.layers:
        layer.update_modules({"self_attn": ObservedAttention(layer.self_attn, seen)})
    found = []
    for anchor, context in blocks(target, drafter, reply, reply.round_anchors):
        token = mx.array([reply.tokens[anchor]], dtype=mx.int32)
        # Only the block pass goes through the observed layers; the context is projected by the drafter itself.
        hidden = observed.hidden(drafter.block_embeddings(token, width, target), context)
        mx.eval(hidden, seen)
        found.append(np.stack([np.array(share[0]) for share in seen]))
        seen.clear()
    return np.stack(found)

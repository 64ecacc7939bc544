"""What a session asks of a drafter, and a drafter of the target it drafts for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from ..sampling.acceptance import Proposal
from .dflash2.config import DrafterConfig
from .dflash2.context import DrafterContext


class Lender(Protocol):
    """The two tables a drafter borrows from its target."""

    def embed(self, ids: mx.array) -> mx.array:
        """[B, L] token ids to [B, L, D] rows."""

    def head(self, hidden: mx.array) -> mx.array:
        """[..., D] rows to [..., V] logits, before any multiplier or cap."""


class Drafter(Protocol):
    """Proposes a block of tokens from the newest one and from what it has read of the target's hidden states.

    `config.target_layer_ids` are the layers of the target whose outputs (taps) it reads.
    """

    config: DrafterConfig

    def new_context(self, batch: int = 1) -> DrafterContext:
        """An empty context."""

    def append_context(self, taps: mx.array, context: DrafterContext, keep: int | mx.array) -> None:
        """Read rows [B, L, T*D] that start at the context's length, and commit the first `keep` of them."""

    def propose(
        self,
        anchor: mx.array,
        context: DrafterContext,
        width: int,
        lender: Lender,
        *,
        temperature: float = 0.0,
        noise: Callable[[mx.array], mx.array] | None = None,
    ) -> Proposal:
        """The `width - 1` tokens after the anchor [B]; greedy without noise."""

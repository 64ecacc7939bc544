"""TODO."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class Lender(Protocol):
    """The two tables a drafter borrows from its target."""

    def embed(self, ids: mx.array) -> mx.array:
        """[B, L] token ids to [B, L, D] rows."""

    def head(self, hidden: mx.array) -> mx.array:
        """[..., D] rows to [..., V] logits, before any multiplier or cap."""

"""The candidate selector: scores between neighbouring candidates.

Owns: the two codebooks and the gate. Candidate search, scores and walk are kernels. Names follow the checkpoint.

Reference: DFlash 2 specification 3.9.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class CandidateSelector(nn.Module):
    """Low-rank predecessor -> successor scores, gated by the hidden state of the position.

    Args:
        vocab_size: V, rows of the codebooks.
        rank: R.
        hidden_size: D.
    """

    def __init__(self, vocab_size: int, rank: int, hidden_size: int):
        super().__init__()
        self.predecessor_codebook = mx.zeros((vocab_size, rank))
        self.successor_codebook = mx.zeros((vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def gate(self, hidden: mx.array) -> mx.array:
        """What a position's hidden row [..., D] weighs the codebooks' columns by: [..., R]."""
        gate: mx.array = self.hidden_projection(hidden)
        return gate

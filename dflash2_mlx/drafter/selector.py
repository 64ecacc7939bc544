"""The candidate selector: scores between neighbouring candidates.

Owns: the two codebooks and the gate. The candidate search and the walk are kernels. Names follow the checkpoint.

Reference: DFlash 2 specification 3.9.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..kernels.select_walk import edge_scores


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

    def edges(self, hidden: mx.array, anchor: mx.array, candidates: mx.array) -> mx.array:
        """Scores of every neighbouring pair of candidates.

        Shapes:
            hidden:     [B, N, D] rows 1.. of the block, final norm applied
            anchor:     [B] int32, predecessor of position 0
            candidates: [B, N, K] int32
        Returns:
            [B, N, K, K] float32, edges[:, n, a, b] from candidate a of position n-1 to candidate b of n;
            at position 0 every a is the anchor
        """
        # The target may have more tokens than the codebook; MLX does not check the bounds of a gather.
        anchor = mx.minimum(anchor, self.predecessor_codebook.shape[0] - 1)
        first = mx.broadcast_to(anchor[:, None, None], (candidates.shape[0], 1, candidates.shape[2]))
        left = mx.concatenate([first, candidates[:, :-1]], axis=1)
        return edge_scores(
            self.predecessor_codebook[left], self.hidden_projection(hidden), self.successor_codebook[candidates]
        )

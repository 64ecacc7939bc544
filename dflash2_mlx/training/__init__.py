"""Training of drafters: blocks of a sequence in one pass, and their losses."""

from .blocks import BlockBatch, block_batch, sample_anchors
from .forward import block_hidden
from .losses import LossParts, block_losses, position_weights

__all__ = [
    "BlockBatch",
    "LossParts",
    "block_batch",
    "block_hidden",
    "block_losses",
    "position_weights",
    "sample_anchors",
]

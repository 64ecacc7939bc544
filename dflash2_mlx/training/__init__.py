"""Training of drafters: blocks of a sequence in one pass, their losses, steps and checkpoints."""

from .blocks import BlockBatch, block_batch, sample_anchors
from .export import export_drafter
from .forward import block_hidden
from .initial import initial_weights, new_drafter
from .losses import LossParts, block_losses, position_weights
from .trainer import Document, StepReport, Trainer, TrainSettings

__all__ = [
    "BlockBatch",
    "Document",
    "LossParts",
    "StepReport",
    "TrainSettings",
    "Trainer",
    "block_batch",
    "block_hidden",
    "block_losses",
    "export_drafter",
    "initial_weights",
    "new_drafter",
    "position_weights",
    "sample_anchors",
]

"""Training of drafters: blocks of a sequence in one pass, their losses, steps and checkpoints."""

from .blocks import BlockBatch, block_batch, sample_anchors
from .data import read_documents
from .export import export_drafter
from .forward import block_hidden
from .initial import initial_weights, new_drafter
from .losses import LossParts, block_losses, position_weights
from .recipe import DrafterShape, config_for, default_taps, mask_token, parameter_count
from .run import TrainEvent, acceptance_length, train
from .trainer import Document, StepReport, Trainer, TrainSettings

__all__ = [
    "BlockBatch",
    "Document",
    "DrafterShape",
    "LossParts",
    "StepReport",
    "TrainEvent",
    "TrainSettings",
    "Trainer",
    "acceptance_length",
    "block_batch",
    "block_hidden",
    "block_losses",
    "config_for",
    "default_taps",
    "export_drafter",
    "initial_weights",
    "mask_token",
    "new_drafter",
    "parameter_count",
    "position_weights",
    "read_documents",
    "sample_anchors",
    "train",
]

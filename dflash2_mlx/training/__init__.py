"""Training of drafters: blocks of a sequence in one pass, their losses, steps and checkpoints."""

from .blocks import BlockBatch, Pack, block_batch, pack, sample_anchors
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
    "Pack",
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
    "pack",
    "parameter_count",
    "position_weights",
    "read_documents",
    "sample_anchors",
    "train",
]

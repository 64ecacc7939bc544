"""Training of drafters: blocks of a sequence in one pass, their losses, steps and checkpoints."""

from .batch import Reply, ReplySettings, batch_replies
from .blocks import BlockBatch, Pack, block_batch, pack, sample_anchors
from .checkpoints import export_drafter, newest_checkpoint, resume_checkpoint, save_checkpoint
from .data import Item, read_documents, read_items
from .forward import block_hidden
from .losses import LossParts, block_losses, position_weights
from .recipe import (
    DrafterShape,
    config_for,
    default_taps,
    existing_config,
    initial_weights,
    load_initial,
    mask_token,
    memory_estimate,
    new_drafter,
    parameter_count,
)
from .regenerate import RegenerateEvent, read_regenerated, regenerate
from .run import Start, TrainEvent, acceptance_length, cache_plan, train
from .settings import Document, StepReport, TrainSettings
from .taps import TapsCache, document_taps
from .trainer import Trainer

__all__ = [
    "BlockBatch",
    "Document",
    "DrafterShape",
    "Item",
    "LossParts",
    "Pack",
    "RegenerateEvent",
    "Reply",
    "ReplySettings",
    "Start",
    "StepReport",
    "TapsCache",
    "TrainEvent",
    "TrainSettings",
    "Trainer",
    "acceptance_length",
    "batch_replies",
    "block_batch",
    "block_hidden",
    "block_losses",
    "cache_plan",
    "config_for",
    "default_taps",
    "document_taps",
    "existing_config",
    "export_drafter",
    "initial_weights",
    "load_initial",
    "mask_token",
    "memory_estimate",
    "new_drafter",
    "newest_checkpoint",
    "pack",
    "parameter_count",
    "position_weights",
    "read_documents",
    "read_items",
    "read_regenerated",
    "regenerate",
    "resume_checkpoint",
    "sample_anchors",
    "save_checkpoint",
    "train",
]

"""`bench --apply`: from a recommended block size to the settings."""

from __future__ import annotations

from ..bench.apply import check_pair_is_configured, write_block_size
from ..errors import UsageError
from .options import ModelOptions


def check_apply(models: ModelOptions) -> None:
    """Refuse, before anything is measured, what could not be written after it.

    Raises:
        UsageError: no drafter is configured, or the drafter of this command is another one.
        SettingsError: the settings cannot be read.
    """
    setup = models.prepare()
    if models.drafter is not None:
        raise UsageError(
            f"--apply: got it beside --drafter {models.drafter}, expected the configured drafter",
            hint=f"`dflash2-mlx settings set {setup.named.model_id} dflash_draft_model={models.drafter}`",
        )
    check_pair_is_configured(setup, None, option="--apply")


def apply_block_size(models: ModelOptions, width: int | None) -> str:
    """Write a model's block size to its settings and say so; None, the advice to decode plainly, writes nothing."""
    from ..settings.paths import find_base

    if width is None:
        return "--apply: nothing is written: no block size is recommended"
    return write_block_size(models.prepare(), find_base(models.base_path), width)

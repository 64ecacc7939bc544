"""The way from a recommended block size to the settings.

Owns: the one place where a measurement changes what later commands do.
"""

from __future__ import annotations

from ..errors import UsageError
from .options import ModelOptions

KEY = "dflash_block_size"


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
    if not setup.drafts:
        raise UsageError(f"--apply: got {setup.named.model_id} without a drafter, expected a configured pair")


def apply_block_size(models: ModelOptions, width: int | None) -> str:
    """Write a model's block size to its settings and say so; None, the advice to decode plainly, writes nothing."""
    from ..settings.paths import find_base
    from ..settings.store import Store

    if width is None:
        return "--apply: nothing is written: no block size is recommended"
    name = models.prepare().named.model_id
    base = find_base(models.base_path)
    Store(base).set_values(name, {KEY: width})
    return f"Runtime block size {width} is now set for {name} in {base.model_settings}"

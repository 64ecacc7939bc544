"""The way from a recommended block size to the settings.

Owns: the one place where a measurement changes what later replies do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UsageError
from ..settings.store import Store

if TYPE_CHECKING:
    from ..engine.setup import Setup
    from ..settings.paths import Base

KEY = "dflash_block_size"


def check_pair_is_configured(setup: Setup, drafter: str | None, *, option: str) -> None:
    """Refuse to set a block size that was measured with another drafter than the configured one.

    Args:
        drafter: the one it was measured with.
        option: what asked for it; begins the message.
    Raises:
        UsageError: no drafter is configured, or another one.
    """
    name = setup.named.model_id
    if not setup.drafts:
        raise UsageError(f"{option}: got {name} without a drafter, expected a configured pair")
    if drafter is not None and drafter != setup.plan.drafter:
        raise UsageError(
            f"{option}: got a measurement with the drafter {drafter}, expected {setup.plan.drafter}: "
            f"that one is configured for {name}"
        )


def write_block_size(setup: Setup, base: Base, width: int) -> str:
    """Set a model's block size; says so, and where.

    Raises:
        SettingsError: the settings cannot be written.
    """
    name = setup.named.model_id
    Store(base).set_values(name, {KEY: width})
    return f"Runtime block size {width} is now set for {name} in {base.model_settings}"

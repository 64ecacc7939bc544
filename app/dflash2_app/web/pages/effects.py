"""What a change made through the web page means for the models that this server holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..pool import ModelPool


@dataclass(frozen=True)
class Effects:
    """What a change of settings means for a model of this server.

    `requires_reload`: it takes effect when the model is loaded the next time; `auto_unloaded`: it was unloaded for
    that, so that the next request loads it anew.
    """

    requires_reload: bool = False
    auto_unloaded: bool = False


async def settings_saved(pool: ModelPool, model_id: str, load_keys: Collection[str]) -> Effects:
    """Have a changed record or profile take effect; `load_keys` are those that only a new load can honour."""
    refreshed = await pool.refresh()
    names = {entry["name"] for entry in pool.status() if entry["model_id"] == model_id}
    return Effects(bool(load_keys), not names.isdisjoint(refreshed.auto_unloaded))

"""The seam between the model manager and whatever keeps the server's models: who is told of a change.

Owns: the protocol. `StaticCatalog` is for a server whose models were all named at its start; one that offers models by
their settings gives `make_app` a catalog of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Effects:
    """What a change of settings means for a model of this server.

    `requires_reload`: it takes effect when the model is loaded the next time; `auto_unloaded`: it was unloaded for
    that, so that the next request loads it anew.
    """

    requires_reload: bool = False
    auto_unloaded: bool = False


class Catalog(Protocol):
    """Told of changes, always in the event loop's thread and after the files were written."""

    async def settings_saved(self, model_id: str, load_keys: Collection[str]) -> Effects:
        """A model's record or profiles have changed; `load_keys` are those that only a new load can honour."""

    async def models_changed(self) -> None:
        """A model has come to this machine or gone from it."""


class StaticCatalog:
    """Does nothing but say what would be needed."""

    async def settings_saved(self, model_id: str, load_keys: Collection[str]) -> Effects:
        return Effects(requires_reload=bool(load_keys))

    async def models_changed(self) -> None:
        return

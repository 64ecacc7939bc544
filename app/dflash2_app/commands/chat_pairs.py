"""Which pair a chat talks with: named on the command line, configured, chosen from the registry, or the mini pair.

Owns: loading it, loading another one (`/model`), and what the settings say of the loaded one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

import dflash2_mlx as d2

from ..chat.settings import DEFAULT_MAX_TOKENS
from ..chat.startup import PairChoice, Seams, decide, declined, look_around, offer_text
from ..console.output import Output
from .options import MINI, NO_DRAFTER, ModelOptions

if TYPE_CHECKING:
    from ..engine.model import Configured


class Pairs:
    """Loads pairs, one at a time, and knows what the settings say of the present one.

    Args:
        tune: whether tuning may go on in the background; None as configured.
    """

    def __init__(self, models: ModelOptions, out: Output, tune: bool | None = None):
        self._models, self._out, self._tune = models, out, tune
        self.pair: Configured | None = None

    def __call__(self, target: str, drafter: str | None) -> d2.Engine:
        """Load a target with a drafter, or with what is configured for it."""
        bits = self._models.draft_bits if drafter != NO_DRAFTER else None
        return self._open(replace(self._models, model=target, drafter=drafter, draft_bits=bits))

    def start(self, *, interactive: bool) -> d2.Engine:
        """Load what was named, configured or chosen."""
        models, out = self._models, self._out
        if models.model is None and models.drafter is not None:
            return self._open(models)
        seams = self._seams()
        start = decide(look_around(models.model, interactive=interactive, seams=seams))
        if start.action == "offer" and start.pair is not None:
            if typer.confirm(offer_text(start.pair), default=True, err=True):
                seams.download(start.pair)
                return self._open(replace(models, model=start.pair.target))
            start = declined(start.pair)
        if start.note:
            out.note(start.note)
        if start.action == "pair" and start.pair is not None:
            return self._open(replace(models, model=start.pair.target))
        return self._open(replace(models, model=MINI) if start.action == "mini" else models)

    def plain_reason(self, tokens: int) -> str | None:
        """Why a prompt of so many tokens is answered by plain decoding, if the settings say so."""
        from ..settings.plan import plain_reason

        if self.pair is None or not self.pair.report.dflash_active:
            return None
        return plain_reason(self.pair.plan, tokens)

    @property
    def context_window(self) -> int | None:
        """Max context window of the settings."""
        return None if self.pair is None else self.pair.plan.max_context_window

    @property
    def prefix_cache(self) -> d2.PrefixCache | None:
        """What earlier chats have read, as far as the settings let it be kept."""
        return None if self.pair is None else self.pair.prefix_cache

    def _open(self, models: ModelOptions) -> d2.Engine:
        if self.pair is not None:
            self.pair.loaded.stop()
        self.pair = None  # two pairs may not fit into memory together
        more = None if self._tune is None else {"tune": self._tune}
        setup = models.prepare(more, defaults={"max_tokens": DEFAULT_MAX_TOKENS})
        self.pair = models.open(setup, self._out, several=True)
        self._out.end_status()
        return self.pair.engine

    def _seams(self) -> Seams:
        from ..settings.paths import find_base
        from ..settings.store import Store

        base = find_base(self._models.base_path)
        return Seams(configured=lambda: Store(base).load().default_model, best_fit=_best_fit, download=self._fetch)

    def _fetch(self, pair: PairChoice) -> None:
        """Download a pair and set it up as announced, so that the next chat begins with it."""
        from ..manage.checks import preset_values
        from ..settings.names import find_model
        from ..settings.paths import find_base
        from ..settings.store import Store
        from .models_pull import fetch_pair

        fetch_pair(pair.target, pair.drafter, self._out)
        store = Store(find_base(self._models.base_path))
        settings = store.load()
        named = find_model(settings, pair.target)
        checked = preset_values(settings, named)
        for note in checked.notes:
            self._out.note(note)
        store.set_values(named.model_id, {**checked.values, "is_default": True})
        self._out.note(f"{named.model_id} is now the default model; `dflash2-mlx settings show` lists what is set")


def _best_fit(memory_bytes: int) -> PairChoice | None:
    """The registry's largest pair for this memory, and what of it is still to be fetched."""
    from ..models.cache import cached_repo
    from ..models.registry import best_fit

    pair = best_fit(memory_bytes)
    if pair is None:
        return None
    target = pair.target.mlx[0]
    sizes = {target: pair.target.bytes, pair.drafter: pair.drafter_bytes}
    missing = [size for name, size in sizes.items() if cached_repo(name).current() is None]
    total = None if None in missing else sum(size or 0 for size in missing)
    return PairChoice(target, pair.drafter, total, pair.licence_note() or "")

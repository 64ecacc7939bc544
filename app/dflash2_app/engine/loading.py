"""From a plan to weights in memory: the target, its drafter, and the prefix cache beside them.

Owns: what of a plan is decided by loading (`load_key`), and the fallback to plain decoding when a configured drafter
cannot be used. Knows no settings file and no command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dflash2_mlx as d2

from ..settings.names import MINI
from ..settings.plan import Plan, drafter_dtype, usable_view
from .memory_fit import Room, prefix_note, prefix_shares
from .tuning import Tuned, take_up

LoadKey = tuple[Any, ...]


@dataclass(frozen=True)
class Loaded:
    """What was loaded for a plan; it serves every plan of the same `load_key`.

    Args:
        reason: why there is no drafter although the plan names one.
        prefix_wanted: bytes that the settings give to the prefix cache; it may hold less. None is for a cache of
            another maker, which nobody resizes.
        needs_bytes: estimated, weights and a context of usual length; None where it cannot be told.
    """

    engine: d2.Engine
    reason: str | None = None
    notes: tuple[str, ...] = ()
    prefix_cache: Any = None
    tuned: Tuned = field(default_factory=Tuned)
    prefix_wanted: int | None = None
    needs_bytes: int | None = None

    @property
    def present_notes(self) -> tuple[str, ...]:
        """The notes, and what is to be told of the prefix cache's present size."""
        wanted = self.prefix_wanted
        if self.prefix_cache is None or wanted is None or self.prefix_cache.max_bytes >= wanted:
            return self.notes
        return (*self.notes, prefix_note(wanted, self.prefix_cache.max_bytes))

    def stop(self) -> None:
        """End what goes on in the background; the engine is about to leave memory."""
        self.tuned.stop()


def load_key(plan: Plan) -> LoadKey:
    """What has to be loaded anew when it changes; everything else of a plan takes effect at the next reply."""
    held: LoadKey = ()
    if plan.drafter is not None:
        size = None if plan.draft_bits is None else plan.draft_group_size
        held = (plan.draft_bits, size, plan.activation_bits, plan.draft_window, plan.draft_sink)
    return (plan.target, plan.target_dtype, plan.exactness, plan.drafter, *held, plan.prefix)


def load_engine(plan: Plan, room: Room, *, plain: bool = False, several: bool = False) -> Loaded:
    """Load by a plan.

    Args:
        room: what the plan leaves of this machine's memory.
        plain: leave the drafter on disk.
        several: more than one reply will follow, so that a prefix cache in memory is of use, and tuning in between.
    Raises:
        Dflash2Error: the target cannot be loaded, or a drafter that was named just now.
    """
    engine, reason, notes = _load(plan, plain=plain)
    cache = _prefix_cache(plan, room, several=several)
    tuned = take_up(engine, plan.tune_folder, background=several and plan.tune)
    wanted = None if plan.prefix is None else plan.prefix.max_bytes
    return Loaded(engine, reason, (*notes, *room.notes, *tuned.notes), cache, tuned, wanted, room.needs_bytes)


def share_prefix_memory(loaded: Sequence[Loaded], limit: int) -> None:
    """Give each prefix cache its part of what all these models together leave of a limit in bytes."""
    spare = limit - sum(item.needs_bytes or 0 for item in loaded)
    caches = [(item.prefix_cache, item.prefix_wanted) for item in loaded if item.prefix_cache is not None]
    sized = [(cache, wanted) for cache, wanted in caches if wanted is not None]
    for (cache, _), share in zip(sized, prefix_shares([wanted for _, wanted in sized], spare), strict=True):
        cache.resize(share)


def _load(plan: Plan, *, plain: bool) -> tuple[d2.Engine, str | None, list[str]]:
    if plain or plan.drafter is None:
        return _load_target(plan), None, []
    try:
        engine, notes = _load_pair(plan)
    except d2.Dflash2Error as error:
        if plan.strict or plan.target == MINI:
            raise
        engine = _load_target(plan)  # if the target is at fault, this says so
        return engine, f"the drafter cannot be used: {' '.join(str(error).split())}", []
    return engine, None, notes


def _prefix_cache(plan: Plan, room: Room, *, several: bool) -> Any:
    """The prefix cache that the settings describe, or None."""
    limits = plan.prefix
    if limits is None or not (several or limits.disk_folder):
        return None

    size = room.prefix_bytes(limits.max_bytes)
    return d2.PrefixCache(limits.max_entries, size, limits.disk_folder, limits.disk_max_bytes)


def _load_target(plan: Plan) -> d2.Engine:
    exact: dict[str, Any] = {} if plan.exactness == "fast" else {"exactness": plan.exactness}
    return d2.load(plan.target, None, draft_bits=None, draft_group_size=64, target_dtype=plan.target_dtype, **exact)


def _load_pair(plan: Plan) -> tuple[d2.Engine, list[str]]:
    assert plan.drafter is not None
    embedded = MINI in (plan.target, plan.drafter)
    # What was typed for this very command goes to the library as it is: it refuses by name what cannot be.
    config = None if plan.strict or embedded else d2.check_pairing(plan.target, plan.drafter)
    bits, window, sink, notes = plan.draft_bits, plan.draft_window, plan.draft_sink, []
    if config is not None:
        if bits is not None and config.quantization:
            bits = None
            notes.append("Quantization: has no effect: the drafter's files are quantized already")
        window, sink, cuts = usable_view(plan, config.block_size, config.sliding_window)
        notes += cuts
    dtype, note = drafter_dtype(plan.activation_bits, d2.analysis.backend()) if plan.activation_bits else ("auto", None)
    notes += [note] if note else []
    rare = {
        "drafter_dtype": (dtype, "auto"), "draft_window": (window, None), "draft_sink": (sink, 0),
        "exactness": (plan.exactness, "fast"),
    }  # fmt: skip
    changed: dict[str, Any] = {name: value for name, (value, default) in rare.items() if value != default}
    engine = d2.load(
        plan.target,
        None if plan.drafter == MINI == plan.target else plan.drafter,
        draft_bits=bits,
        draft_group_size=plan.draft_group_size,
        target_dtype=plan.target_dtype,
        **changed,
    )
    return engine, notes

"""Before anything is loaded: does a plan fit this machine?

Owns: the rule. Weights that leave no room for a short context are refused. A long context that may not fit is only told
of, since the estimate is an upper bound and buffers grow as they are needed. What prefix caches may hold in memory is
cut to what all loaded models leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dflash2_mlx as d2

from ..models.memory import GIGA, local_fit, require_local_fit, target_config

if TYPE_CHECKING:
    from ..settings.plan import Plan

SHORT_CONTEXT = 1024
LEAST_PREFIX_BYTES = 64 * 2**20  # a cache that holds less is of no use


@dataclass(frozen=True)
class Room:
    """What a plan needs and leaves of this machine's memory, in bytes (None where it cannot be told), with notes."""

    spare_bytes: int | None = None
    notes: tuple[str, ...] = ()
    needs_bytes: int | None = None

    def prefix_bytes(self, wanted: int) -> int:
        """How much a prefix cache of this plan alone may hold in memory."""
        return wanted if self.spare_bytes is None else prefix_shares([wanted], self.spare_bytes)[0]


def prefix_shares(wanted: Sequence[int], spare: int) -> list[int]:
    """Split memory among prefix caches: each gets what it wants, or an equal part of what the others leave."""
    shares = [0] * len(wanted)
    smallest_first = sorted(range(len(wanted)), key=lambda at: wanted[at])
    for done, at in enumerate(smallest_first):
        shares[at] = min(wanted[at], max(spare // (len(wanted) - done), LEAST_PREFIX_BYTES))
        spare -= shares[at]
    return shares


def prefix_note(wanted: int, given: int) -> str:
    """What to tell of a prefix cache that holds less than the settings say."""
    return (
        f"In-memory cache size: {wanted / GIGA:.1f} GB are set and {given / GIGA:.1f} GB used: "
        "the models leave no more of this machine's memory"
    )


def check_memory(plan: Plan, *, plain: bool) -> Room:
    """Refuse what cannot fit, and say what may not; a model that is not on this machine yet is not judged.

    Raises:
        AppError: what it needs, what there is, and what would fit.
    """
    drafter = None if plain else plan.drafter
    held = _precision(plan, plain=plain)
    fit = local_fit(plan.target, drafter, precision=held)
    if fit.estimate is None or fit.limit is None:
        return Room()
    if fit.fits:
        return Room(fit.limit - fit.estimate.total, needs_bytes=fit.estimate.total)
    if not fit.longest_context:
        require_local_fit(plan.target, drafter, SHORT_CONTEXT, precision=held)
    told = f"this machine's memory may end at a context of about {fit.longest_context} tokens"
    return Room(0, (told,), fit.estimate.total)


def weight_bytes(plan: Plan) -> int | None:
    """Memory that target and drafter take as the plan holds them; None where their configs are not on this machine."""
    estimate = local_fit(plan.target, plan.drafter, SHORT_CONTEXT, precision=_precision(plan, plain=False)).estimate
    return None if estimate is None else estimate.target_weights + estimate.drafter_weights


def _precision(plan: Plan, *, plain: bool) -> d2.Precision:
    """How numbers are held when a plan is loaded."""
    return d2.load_precision(
        draft_bits=None if plain else plan.draft_bits,
        draft_group_size=plan.draft_group_size,
        target_dtype=plan.target_dtype,
        target_config=target_config(plan.target),
    )

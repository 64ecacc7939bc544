"""Before anything is loaded: does a plan fit this machine?

Owns: the rule. Weights that leave no room for a short context are refused. A long context that may not fit is only told
of, since the estimate is an upper bound and buffers grow as they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .models.memory import local_fit, require_local_fit

if TYPE_CHECKING:
    import dflash2_mlx as d2

    from .settings.plan import Plan

SHORT_CONTEXT = 1024


def check_memory(plan: Plan, *, plain: bool) -> list[str]:
    """Refuse what cannot fit, and say what may not; a model that is not on this machine yet is not judged.

    Raises:
        AppError: what it needs, what there is, and what would fit.
    """
    drafter = None if plain else plan.drafter
    held = _precision(plan, plain=plain)
    fit = local_fit(plan.target, drafter, precision=held)
    if fit.fits is not False:
        return []
    if not fit.longest_context:
        require_local_fit(plan.target, drafter, SHORT_CONTEXT, precision=held)
    return [f"this machine's memory may end at a context of about {fit.longest_context} tokens"]


def weight_bytes(plan: Plan) -> int | None:
    """Memory that target and drafter take as the plan holds them; None where their configs are not on this machine."""
    estimate = local_fit(plan.target, plan.drafter, SHORT_CONTEXT, precision=_precision(plan, plain=False)).estimate
    return None if estimate is None else estimate.target_weights + estimate.drafter_weights


def _precision(plan: Plan, *, plain: bool) -> d2.Precision:
    """How numbers are held when a plan is loaded."""
    import dflash2_mlx as d2

    return d2.load_precision(
        draft_bits=None if plain else plan.draft_bits,
        draft_group_size=plan.draft_group_size,
        target_dtype=plan.target_dtype,
    )

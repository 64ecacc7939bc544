"""Whether a pair fits this machine, and what would.

Owns: the comparison of the library's estimate with what this machine gives to MLX, and the wording of a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dflash2_mlx as d2

from ..errors import AppError
from ..settings.names import MINI
from .discover import local_config
from .registry import pair_that_fits

DEFAULT_CONTEXT = 8192
_STEP = 1024  # of the contexts that are tried
GIGA = 10**9


@dataclass(frozen=True)
class Fit:
    """An estimate beside the limit, in bytes.

    `estimate` is None where the model cannot be estimated (`reason` says why), `limit` where the machine does not
    say; `longest_context` is the longest that fits (0 when none does), None when everything does or nothing is known.
    """

    estimate: d2.MemoryEstimate | None
    limit: int | None
    reason: str | None = None
    longest_context: int | None = None

    @property
    def fits(self) -> bool | None:
        """None when it cannot be told."""
        if self.estimate is None or self.limit is None:
            return None
        return self.estimate.total <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "fits": self.fits,
            "limit_bytes": self.limit,
            "estimate_bytes": None if self.estimate is None else self.estimate.to_dict(),
            "longest_context": self.longest_context,
            "reason": self.reason,
        }


def check_fit(
    target: Mapping[str, Any],
    drafter: Mapping[str, Any] | None,
    context: int = DEFAULT_CONTEXT,
    *,
    precision: d2.Precision | None = None,
    limit: int | None = None,
) -> Fit:
    """Compare a pair, given by its configs, with this machine.

    Args:
        context: prompt and reply together, in tokens.
        precision: how numbers are held; what `load` does here by default.
        limit: bytes; this machine's by default.
    """
    held = precision or d2.load_precision(target_config=target)
    limit = d2.analysis.memory_limit() if limit is None else limit
    try:
        estimate = d2.memory_estimate(target, drafter, context, precision=held)
    except d2.Dflash2Error as error:
        return Fit(None, limit, reason=str(error))
    if limit is None or estimate.total <= limit:
        return Fit(estimate, limit)

    def fits(steps: int) -> bool:
        return d2.memory_estimate(target, drafter, steps * _STEP, precision=held).total <= limit

    low, high = 0, -(-context // _STEP)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Fit(estimate, limit, longest_context=low * _STEP)


def require_fit(name: str, fit: Fit) -> None:
    """Refuse a pair that is known not to fit.

    Raises:
        AppError: with what it needs, what there is, and what would fit.
    """
    if fit.fits is False:
        raise AppError(f"{name}: {needs(fit)}", hint=what_fits(fit))


def require_local_fit(
    target: str,
    drafter: str | None,
    context: int = DEFAULT_CONTEXT,
    *,
    precision: d2.Precision | None = None,
    limit: int | None = None,
) -> Fit:
    """Refuse a pair by name (folders or Hub ids) before its weights are read; to be called before `load`.

    Models whose configs are not on this machine are not refused: nothing is known of them yet.

    Raises:
        AppError: as `require_fit`.
    """
    fit = local_fit(target, drafter, context, precision=precision, limit=limit)
    require_fit(target, fit)
    return fit


def local_fit(
    target: str,
    drafter: str | None,
    context: int = DEFAULT_CONTEXT,
    *,
    precision: d2.Precision | None = None,
    limit: int | None = None,
) -> Fit:
    """`check_fit` of a pair by name; nothing is known of one whose config is not on this machine."""
    config = target_config(target)
    if config is None:
        return Fit(None, None, reason=f"{target} is not on this machine")
    _, mini_drafter = d2.embedded_pair()
    drafts = local_config(str(mini_drafter) if drafter == MINI else drafter) if drafter else None
    return check_fit(config, drafts, context, precision=precision, limit=limit)


def target_config(target: str) -> Mapping[str, Any] | None:
    """The `config.json` of a target by name; None where it is not on this machine."""
    mini_target, _ = d2.embedded_pair()
    return local_config(str(mini_target) if target == MINI else target)


def needs(fit: Fit) -> str:
    """What a pair needs, part by part, against the limit."""
    estimate, limit = fit.estimate, fit.limit
    if estimate is None or limit is None:
        return "its memory cannot be estimated" + (f" ({fit.reason})" if fit.reason else "")
    drafter = f", drafter {_giga(estimate.drafter_weights)}" if estimate.drafter_weights else ""
    parts = (
        f"target {_giga(estimate.target_weights)}{drafter}, "
        f"caches {_giga(estimate.target_cache + estimate.drafter_cache)}, "
        f"one pass {_giga(estimate.taps + estimate.activations)}"
    )
    there = f"{estimate.context} tokens of context ({parts})"
    if fit.fits is False:
        limits = f"expected at most {_giga(limit)} GB: what this machine gives to a model"
        return f"got {_giga(estimate.total)} GB at {there}, {limits}"
    return f"needs {_giga(estimate.total)} GB at {there}; this machine gives {_giga(limit)} GB to a model"


def what_fits(fit: Fit) -> str:
    """What to try instead of a pair that does not fit."""
    ways = []
    if fit.longest_context:
        ways.append(f"a context of {fit.longest_context} tokens")
    if fit.estimate is not None and fit.estimate.drafter_weights:
        ways.append("--draft-bits 4")
    pair = None if fit.limit is None else pair_that_fits(fit.limit)
    if pair is not None:
        ways.append(f"{pair[0]} with {pair[1]}")
    return "what needs less: " + ", or ".join([*ways, "the same model in fewer bits"])


def _giga(size: int) -> str:
    return f"{size / GIGA:.1f}"

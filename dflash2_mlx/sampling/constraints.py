"""Host callbacks that restrict which tokens may come next.

Owns: the LogitConstraint protocol and the check of what it returns. A constraint makes a session's rounds
synchronous: the host must see the proposal before the target's rows can be masked. Output stays lossless
with respect to the constrained target, because the mask is applied to p, for plain decoding and verify alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from ..errors import ConstraintError


class LogitConstraint(Protocol):
    """A grammar, a thinking budget, a forced tool call: anything that allows some tokens and not others."""

    def masks(self, proposal: Sequence[int]) -> np.ndarray:
        """Allowed tokens after what was committed so far, then after each proposed token in turn.

        Args:
            proposal: tokens that may come next; they are not committed, and may break the constraint.
        Returns:
            bool [len(proposal) + 1, V]; row i holds what may follow proposal[:i]. Rows after a proposed
            token that is not allowed are never used; at least one token of row 0 must be allowed.
        """

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens are final; later masks follow them."""


def constraint_rows(constraint: LogitConstraint, proposal: Sequence[int], vocab_size: int) -> mx.array:
    """The constraint's masks as a device array [1, len(proposal) + 1, V].

    Raises:
        ConstraintError: wrong shape or type, or no token allowed in the first row.
    """
    shape = (len(proposal) + 1, vocab_size)
    masks = constraint.masks(proposal)
    try:
        rows = np.asarray(masks)
    except ValueError:  # rows of different length
        raise ConstraintError(f"LogitConstraint.masks: got ragged rows, expected bool {list(shape)}") from None
    if rows.shape != shape or rows.dtype != np.bool_:
        raise ConstraintError(
            f"LogitConstraint.masks: got {rows.dtype} {list(rows.shape)}, expected bool {list(shape)}"
        )
    if not rows[0].any():
        raise ConstraintError("LogitConstraint.masks: got no allowed token in row 0, expected at least one")
    # A row without any allowed token follows a proposed token that is refused: any filler will do.
    rows = rows | ~rows.any(axis=1, keepdims=True)
    return mx.array(rows)[None]

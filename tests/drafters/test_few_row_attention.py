"""A block drafted with the attention kernel: behind a window, with a sink, after a gap, in full layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.kernels.dispatch import dispatcher
from tests.kernels.conftest import metal, msl_cache, own_dispatcher  # noqa: F401
from tests.tiny import HIDDEN, drafter_config, drafter_weights

CASES: dict[str, dict[str, Any]] = {
    "window": {},
    "sink": {"sink": 3},
    "full": {"layer_types": ["full_attention"] * 2},
    "mixed": {"layer_types": ["sliding_attention", "full_attention"], "is_causal": True},
}


def block(case: str) -> np.ndarray:
    """Hidden rows of a block of five at position 52 (25 without a window), after a gap where there can be one."""
    changes = dict(CASES[case])
    sink = changes.pop("sink", 0)
    raw = DrafterConfig.from_dict(drafter_config(**changes))
    config = replace(raw, sink=sink)
    model = DraftModel(config)
    model.load_weights(list(drafter_weights(config).items()))
    model.compile_for_inference()
    context = model.new_context()
    draw = mx.random.normal((1, 30, 2 * HIDDEN), key=mx.random.key(1))
    if sink:
        model.append_context(draw[:, :sink], context, sink)
    if config.context_window is not None:
        context.skip_to(27)
    model.append_context(draw, context, 25)
    rows = mx.random.normal((1, 5, HIDDEN), key=mx.random.key(2))
    return np.array(model.hidden(rows, context))


@pytest.mark.parametrize("case", CASES)
def test_equals_the_twin(case: str, request: pytest.FixtureRequest) -> None:
    want = block(case)
    request.getfixturevalue("metal")
    got = block(case)
    (state,) = (state for state in dispatcher().states() if state.name == "few_row_attention")
    assert state.tested and state.runs == "metal"
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)

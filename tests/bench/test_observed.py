"""Sessions that note the time decode what every session decodes."""

from __future__ import annotations

import pytest

import dflash2_mlx as d2
from dflash2_mlx.bench.observed import DFlash2Gaps, DFlash2Phases, PlainGaps, PlainPhases
from dflash2_mlx.device.runtime import owner

PROMPT = "import os\n\n\ndef list_files(folder):\n"


@pytest.fixture(scope="module")
def engine() -> d2.Engine:
    return d2.load("mini")


@pytest.mark.parametrize(
    ("kind", "temperature", "mode"),
    [
        (DFlash2Phases, 0.0, "rejection"),
        (DFlash2Phases, 1.0, "rejection"),
        (DFlash2Phases, 1.0, "coupled"),
        (DFlash2Gaps, 1.0, "coupled"),
        (PlainPhases, 1.0, "coupled"),
        (PlainGaps, 0.0, "rejection"),
    ],
)
def test_watching_changes_nothing(engine: d2.Engine, kind: type, temperature: float, mode: str) -> None:
    plain = issubclass(kind, d2.PlainSession)
    sampling = d2.SamplingConfig(temperature=temperature, top_k=20, seed=3, lossless_mode=mode)
    config = d2.GenerationConfig(max_tokens=24, sampling=sampling, mode="plain" if plain else "dflash2")
    parts = (engine.target,) if plain else (engine.target, engine.drafter)
    session = owner().call(lambda: kind(*parts))
    watched = d2.generate(engine, PROMPT, config, session=session)
    usual = d2.generate(engine, PROMPT, config)
    assert watched.token_ids == usual.token_ids
    assert watched.stats.acceptance_by_position == usual.stats.acceptance_by_position

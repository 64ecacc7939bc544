"""A session that is timed decodes what every session decodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dflash2_mlx as d2
from dflash2_mlx.bench.observed import Gaps, Phases, WatchedDrafter
from dflash2_mlx.device.runtime import owner

PROMPT = "import os\n\n\ndef list_files(folder):\n"


@pytest.fixture(scope="module")
def engine() -> d2.Engine:
    return d2.load("mini")


@pytest.mark.parametrize(
    ("kind", "mode", "temperature", "lossless"),
    [
        (Phases, "dflash2", 0.0, "rejection"),
        (Phases, "dflash2", 1.0, "rejection"),
        (Phases, "dflash2", 1.0, "coupled"),
        (Gaps, "dflash2", 1.0, "coupled"),
        (Phases, "plain", 1.0, "coupled"),
        (Gaps, "plain", 0.0, "rejection"),
    ],
)
def test_watching_changes_nothing(
    engine: d2.Engine, kind: type[Phases | Gaps], mode: str, temperature: float, lossless: str
) -> None:
    sampling = d2.SamplingConfig(temperature=temperature, top_k=20, seed=3, lossless_mode=lossless)
    config = d2.GenerationConfig(max_tokens=24, sampling=sampling, mode=mode)
    probe, drafter = kind(), None if mode == "plain" else engine.drafter
    if drafter is not None and isinstance(probe, Phases):
        drafter = WatchedDrafter(drafter, probe)
    session = owner().call(lambda: d2.Session(engine.target, drafter, probe=probe))
    watched = d2.generate(replace(engine, drafter=drafter), PROMPT, config, session=session)
    usual = d2.generate(engine, PROMPT, config)
    assert watched.token_ids == usual.token_ids
    assert watched.stats.acceptance_by_position == usual.stats.acceptance_by_position
    assert probe.seconds, "nothing was timed"

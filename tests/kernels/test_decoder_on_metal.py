"""Whole replies with every kernel run as Metal text on the emulator equal the twins' replies, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from dflash2_mlx.kernels import _dispatch
from dflash2_mlx.kernels._dispatch import KERNELS, dispatcher
from dflash2_mlx.load import Engine
from dflash2_mlx.runtime import owner
from tests.engines import tiny_engine
from tests.runs import PROMPT
from tests.tiny import make_tiny_drafter

from .msl.build import Builder
from .msl.emulator import Emulator

CODE = "import os\n\n\ndef main(argv=None):\n"


@pytest.fixture
def metal(msl_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every kernel by name; an error would be raised where one of them cannot run."""
    emulator = Emulator(Builder(msl_cache))
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (emulator.metal_kernel, True))
    monkeypatch.setenv("DFLASH2_KERNELS", "metal")
    dispatcher.cache_clear()
    yield
    dispatcher.cache_clear()


@pytest.fixture(autouse=True)
def own_dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    dispatcher.cache_clear()
    yield
    dispatcher.cache_clear()


def replies(engine: Engine, prompt: str | list[int], configs: list[d2.GenerationConfig]) -> list[list[int]]:
    return [d2.generate(engine, prompt, config).token_ids for config in configs]


def assert_all_ran() -> None:
    states = dispatcher().states()
    assert [(state.name, state.runs, state.tested, state.reason) for state in states] == [
        (name, "metal", True, None) for name in KERNELS
    ]


def configs(**changes: object) -> list[d2.GenerationConfig]:
    greedy = d2.GenerationConfig(max_tokens=20, **changes)
    wide = d2.GenerationConfig(max_tokens=12, block_size=3, **changes)
    sampled = [
        d2.GenerationConfig(
            max_tokens=12,
            sampling=d2.SamplingConfig(temperature=0.8, top_p=0.95, seed=5, lossless_mode=mode),
            **changes,
        )
        for mode in ("rejection", "coupled")
    ]
    return [greedy, wide, *sampled]


@pytest.fixture
def twins() -> list[list[int]]:
    return replies(d2.load("mini"), CODE, configs())


def test_the_embedded_pair(twins: list[list[int]], metal: None) -> None:
    engine = d2.load("mini")
    assert replies(engine, CODE, configs()) == twins
    assert_all_ran()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer"])
def test_tiny_pairs_of_other_families(family: str, dtype: mx.Dtype, request: pytest.FixtureRequest) -> None:
    def build() -> Engine:
        drafter = make_tiny_drafter(vocab_size=211)
        drafter.set_dtype(dtype)
        drafter.compile_for_inference()
        return tiny_engine(family, drafter)

    wanted = configs(stop_token_ids=())[: 4 if dtype == mx.float32 else 2]
    want = replies(owner().call(build), PROMPT, wanted)
    request.getfixturevalue("metal")
    assert replies(owner().call(build), PROMPT, wanted) == want
    assert_all_ran()

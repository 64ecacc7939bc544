"""Whole replies with every kernel run as Metal text equal the twins' replies, token for token.

Where MLX has no Metal, the emulator runs the text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

import dflash2_mlx as d2
from dflash2_mlx import analysis
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.engine import Engine
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels.dispatch import KERNELS, OPT_IN, dispatcher
from dflash2_mlx.kernels.select_walk import Selector, select
from dflash2_mlx.kernels.top_candidates import candidate_lists
from tests.engines import scripted_engine, tiny_engine
from tests.pairs import bootstrap_pair
from tests.runs import PROMPT, lively_reply, lively_target, thinned
from tests.tiny import make_tiny_drafter

from .msl.build import Builder
from .msl.emulator import Emulator

# Those of the drafter's own operations; the products of linear layers have test_row_layers_on_metal.py.
MODELS = [("qwen3_5", "4bit"), ("muse_glimmer", "f32")]
DRAFTING = tuple(name for name in KERNELS if not name.startswith("qmm_"))
CODE = "import os\n\n\ndef main(argv=None):\n"


def replies(engine: Engine, prompt: str | list[int], configs: list[d2.GenerationConfig]) -> list[list[int]]:
    return [d2.generate(engine, prompt, config).token_ids for config in configs]


def assert_all_ran(names: tuple[str, ...] = DRAFTING, *, but: tuple[str, ...] = ()) -> None:
    states = [state for state in dispatcher().states() if state.name in names]
    assert [(state.name, state.runs, state.tested, state.reason) for state in states] == [
        (name, "metal", name not in but, None) for name in names
    ]


def configs(tokens: int = 9, **changes: object) -> list[d2.GenerationConfig]:
    """Greedy, greedy with narrow blocks, sampled in both ways; few tokens, as the emulator takes its time."""
    greedy = d2.GenerationConfig(max_tokens=tokens, **changes)
    wide = d2.GenerationConfig(max_tokens=5, block_size=3, **changes)
    sampled = [
        d2.GenerationConfig(
            max_tokens=6,
            sampling=d2.SamplingConfig(temperature=0.8, top_p=0.95, top_k=top_k, seed=5, lossless_mode=mode),
            **changes,
        )
        for mode, top_k in (("rejection", 20), ("coupled", 0))
    ]
    return [greedy, wide, *sampled]


@pytest.fixture
def twins() -> list[list[int]]:
    return replies(bootstrap_pair(), CODE, configs())


def test_the_embedded_pair(twins: list[list[int]], metal: None) -> None:
    engine = bootstrap_pair()
    assert replies(engine, CODE, configs()) == twins
    assert_all_ran(but=("gated_delta_verify",))


@pytest.mark.parametrize(("model", "dtype"), thinned(MODELS, [mx.bfloat16, mx.float32]))
def test_tiny_pairs_of_other_families(model: tuple[str, str], dtype: mx.Dtype, request: pytest.FixtureRequest) -> None:
    family, kind = model

    def build() -> Engine:
        drafter = make_tiny_drafter(vocab_size=211)
        drafter.set_dtype(dtype)
        drafter.compile_for_inference()
        return tiny_engine(family, drafter, target=lively_target(family, kind))

    wanted = configs(6, stop_token_ids=())[: 4 if dtype == mx.float32 else 2]
    want = replies(owner().call(build), PROMPT, wanted)
    request.getfixturevalue("metal")
    assert replies(owner().call(build), PROMPT, wanted) == want
    unused = ["gated_delta_verify"] * (family != "qwen3_5") + ["accept"] * (len(wanted) == 2)
    assert_all_ran(but=tuple(unused))


@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer"])
def test_rows_that_were_kept_are_those_the_next_block_goes_on_from(family: str, request: pytest.FixtureRequest) -> None:
    """The drafters of tiny pairs are hardly ever right; this one is, as often as it is told to be."""
    lively_reply(family)
    request.getfixturevalue("metal")
    engine = scripted_engine(family, [3, 0, 4, 1, 2])
    result = d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=16, stop_token_ids=()))
    assert result.token_ids == [*lively_reply(family)[:16]] and result.stats.rounds == 5
    assert dispatcher().notes() == [], "a self-test has put a twin in the kernel's place"
    states = {state.name: state.tested for state in dispatcher().states()}
    assert states["few_row_attention"] and states["gated_delta_verify"] is (family == "qwen3_5")


def test_sampling_in_bfloat16_keeps_the_law_of_q(metal: None) -> None:
    # Near a tie, bfloat16 sums may fall the other way than the twin's; the distribution may not.
    batch, k, vocab, rank = 800, 6, 40, 8
    keys = mx.random.split(mx.random.key(3), 5)
    books = [(mx.random.normal((vocab, rank), key=key) / 2).astype(mx.bfloat16) for key in keys[:2]]
    logits = mx.broadcast_to(mx.random.normal((1, 2, vocab), key=keys[2]).astype(mx.bfloat16), (batch, 2, vocab))
    gate = mx.broadcast_to(mx.random.normal((1, 2, rank), key=keys[3]).astype(mx.bfloat16), (batch, 2, rank))
    drawn = select(
        candidate_lists(logits, k).merged(),
        gate,
        mx.full((batch,), 7, dtype=mx.int32),
        Selector(*books),
        temperature=0.9,
        noise=mx.random.gumbel((batch, 2, k), key=keys[4]),
    )
    tokens, candidates, q = (np.array(array) for array in (drawn.tokens, drawn.candidates, drawn.q))
    q = q.astype(np.float64)
    np.testing.assert_allclose(q.sum(axis=-1), 1.0, atol=1e-5)
    chosen = (candidates == tokens[..., None]).argmax(axis=-1)
    first = np.bincount(chosen[:, 0], minlength=k)
    assert stats.chisquare(first, q[0, 0] / q[0, 0].sum() * batch).pvalue > 1e-4
    # The second token's law depends on the first: given the commonest one, it is one row again.
    common = chosen[:, 0] == first.argmax()
    second, row = np.bincount(chosen[common, 1], minlength=k), q[common, 1]
    assert (row == row[0]).all()
    assert stats.chisquare(second, row[0] / row[0].sum() * common.sum()).pvalue > 1e-4


@pytest.mark.parametrize("broken", DRAFTING)
def test_a_kernel_that_is_wrong_here_is_switched_off_alone(
    broken: str, msl_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CK-25: a device may give wrong numbers for one kernel; replies stay right and say so."""
    config = configs(stop_token_ids=())[2]  # sampled, with filters that accept can take

    def build() -> Engine:
        return tiny_engine("qwen3_5", make_tiny_drafter(compiled=True), target=lively_target("qwen3_5"))

    (want,) = replies(owner().call(build), PROMPT, [config])
    dispatcher.cache_clear()
    device = mx.metal.is_available()
    make: Any = mx.fast.metal_kernel if device else Emulator(Builder(msl_cache)).metal_kernel

    def factory(*, name: str, **options: Any) -> Any:
        kernel = make(name=name, **options)
        if name != f"dflash2_{broken}":
            return kernel
        return lambda **call: [array + array.dtype.size // 4 for array in kernel(**call)]

    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (factory, not device))
    monkeypatch.setenv(_dispatch.VARIABLE, "metal")  # also those that would wait for a race
    dispatcher.cache_clear()
    result = d2.generate(owner().call(build), PROMPT, config)
    assert result.token_ids == want
    runs = {state.name: state.runs for state in dispatcher().states() if state.name in DRAFTING}
    assert runs == {name: "mlx" if name == broken else "metal" for name in DRAFTING}
    (notice,) = [line for line in result.to_dict()["notices"] if line.startswith("kernel ")]
    assert notice.startswith(f"kernel {broken}: runs as its MLX twin ({broken}")


def test_kernels_that_raise_leave_the_twins(twins: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    def factory(**_: Any) -> Any:
        def call(**__: Any) -> list[mx.array]:
            raise RuntimeError("the Metal compiler\nsays no")

        return call

    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (factory, False))
    monkeypatch.setenv(_dispatch.VARIABLE, "metal")
    dispatcher.cache_clear()
    result = d2.generate(bootstrap_pair(), CODE, configs()[0])
    assert result.token_ids == twins[0]
    lines = dispatcher().notes()
    # The two others are of hybrid targets and of sampling.
    assert len(lines) == len(DRAFTING) - 2 and set(lines) <= set(result.stats.notices)
    assert all("the Metal compiler says no" in line for line in lines)


def test_kernels_are_timed_against_their_twins(metal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis.kernels, "_CALLS", 2)
    monkeypatch.setattr(analysis.kernels, "_REPEATS", 2)
    engine = owner().call(lambda: tiny_engine("qwen3", make_tiny_drafter(compiled=True)))
    d2.generate(engine, PROMPT, configs(stop_token_ids=())[0])
    times = analysis.time_kernels(engine.drafter)
    assert {timed.name for timed in times} == {*KERNELS} - {*OPT_IN, "gated_delta_verify", "accept"}
    assert all(timed.kernel_ms > 0 and timed.twin_ms > 0 for timed in times)


def test_a_greedy_walk_has_no_q(metal: None) -> None:
    lists = candidate_lists(mx.random.normal((1, 2, 40)), 4)
    book = mx.random.normal((40, 8))
    drawn = select(lists, mx.random.normal((1, 2, 8)), mx.array([3], dtype=mx.int32), Selector(book, book))
    assert drawn.q is None

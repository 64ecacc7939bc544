"""Names of races: each shape that decoding asks about is raced, and each race is one that decoding asks about.

A dispatcher notes what it is asked. It refuses every kernel in the self-test, so that all of it runs without Metal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import mlx.core as mx
import mlx.nn as nn
import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.session import DFlash2Session, Request
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels import few_row_attention
from dflash2_mlx.kernels.call import KernelCall
from dflash2_mlx.kernels.dispatch import Dispatcher, dispatcher
from dflash2_mlx.kernels.top_candidates import TOP_EACH, TOP_THREADS, top_candidates, top_candidates_call
from dflash2_mlx.layers import kv_cache
from dflash2_mlx.layers.quantized import use_row_kernels
from dflash2_mlx.targets.layer_loop import LayerLoopTarget
from dflash2_mlx.targets.registry import make_target
from dflash2_mlx.tuning import target_trials
from dflash2_mlx.tuning.drafter_trials import contests
from tests.engines import tiny_engine
from tests.runs import PROMPT, run, target_config
from tests.tiny import make_mlx_model, make_tiny_drafter

BLOCK = 4
Asked = set[tuple[str, str]]


class Asking(Dispatcher):
    """Has Metal, as far as anybody can tell, but no kernel passes its test; with `lists`, `top_candidates` does."""

    def __init__(self, *_: object, **__: object):
        super().__init__("auto", lambda **_: pytest.fail("no kernel runs here"))
        self.asked: Asked = set()
        self.lists = False

    def winner(self, name: str, key: str) -> str | None:
        self.asked.add((name, key))
        return super().winner(name, key)

    def chooses_metal(self, name: str, key: str) -> bool:
        self.asked.add((name, key))
        return super().chooses_metal(name, key)

    def passes(self, call: KernelCall, *_: object) -> bool:
        return self.lists and call.name == "top_candidates"

    def run(self, call: KernelCall, inputs: Sequence[mx.array]) -> list[mx.array]:
        (_, blocks, k), size = call.output_shapes[0], TOP_THREADS * TOP_EACH
        parts = [inputs[0][:, number * size : (number + 1) * size] for number in range(blocks)]
        best = [
            top_candidates(mx.pad(part, [(0, 0), (0, size - part.shape[1])], constant_values=-9), k) for part in parts
        ]
        ids = mx.stack([ids + number * size for number, (ids, _) in enumerate(best)], axis=1)
        return [mx.stack([values for _, values in best], axis=1), ids]

    def remember_nothing(self) -> None:
        """Have everybody choose anew."""
        self._choices_changed()


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    monkeypatch.setattr(_dispatch, "Dispatcher", Asking)
    monkeypatch.setattr("dflash2_mlx.kernels.top_candidates.TOP_THREADS", 2)  # lists of 64 ids
    # Buffers that soon have what counts as a long context.
    monkeypatch.setattr(kv_cache, "_SMALL", 8)
    monkeypatch.setattr(target_trials, "CONTEXTS", (8, 64))
    for module in (kv_cache, target_trials):
        monkeypatch.setattr(module, "GROWTH", 32)
    for module in (few_row_attention, target_trials):
        monkeypatch.setattr(module, "SHORT", 24)
    top_candidates_call.cache_clear()
    dispatcher.cache_clear()
    mx.disable_compile()  # nothing is gained by it here, and much time lost
    yield dispatcher()
    mx.enable_compile()
    top_candidates_call.cache_clear()
    dispatcher.cache_clear()


def pair(family: str, *, head_rows: int = 211, dtype: mx.Dtype = mx.float32) -> d2.Engine:
    """A quantized target, whose type `dtype` is, and a quantized drafter."""
    config = target_config(family)
    config.get("text_config", config)["vocab_size"] = head_rows
    target = make_target(make_mlx_model(config, bits=4, dtype=dtype), config)
    draft = make_tiny_drafter(vocab_size=211, block_size=BLOCK)
    nn.quantize(draft, group_size=32, bits=8, class_predicate=lambda path, _: path.endswith("_proj"))
    draft.compile_for_inference()
    return tiny_engine(family, draft, target=target)


# Greedy, with rejection, coupled.
SAMPLING = (
    d2.SamplingConfig(), d2.SamplingConfig(temperature=1.0, top_k=20), d2.SamplingConfig(temperature=1.0, seed=3),
)  # fmt: skip


class Widths:
    """Every width in turn."""

    def __init__(self) -> None:
        self.round = 0

    def width(self) -> int:
        self.round += 1
        return 1 + self.round % BLOCK

    def learn(self, width: int, num_accepted: int) -> None:
        pass


def decode(engine: d2.Engine, sampling: d2.SamplingConfig, tokens: int) -> None:
    """A reply at every width."""
    assert engine.drafter is not None
    session = DFlash2Session(engine.target, engine.drafter)
    run(session, Request(PROMPT, tokens, sampling=sampling, width=BLOCK, policy=Widths()))


# Rows of a prompt's chunk are as many as the prompt has: nobody could race them all.
OF_THE_PROMPT = re.compile(rf"(rows {len(PROMPT)}\b|^{len(PROMPT)}x)")
# Lists of the target's best are a part of `accept`, and raced with it.
OF_ACCEPT = re.compile(r"top 20$")


def differences(asking: Asking, engine: d2.Engine) -> tuple[Asked, Asked]:
    """What decoding asked and nobody raced, and what was raced and nobody asked."""
    raced = [(race.kernel, race.key) for race in contests(engine.target, engine.drafter, range(1, BLOCK + 1))]
    assert len(set(raced)) == len(raced)
    asking.asked.clear()
    for asking.lists in (False, True):
        asking.remember_nothing()
        for sampling in SAMPLING:
            long = sampling.greedy and not asking.lists  # past what counts as a short context
            decode(engine, sampling, 28 if long else 2 * BLOCK)
    unraced = {
        (name, key)
        for name, key in asking.asked - set(raced)
        if not OF_THE_PROMPT.search(key) and not (name == "top_candidates" and OF_ACCEPT.search(key))
    }
    return unraced, set(raced) - asking.asked


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_5", {}),  # gated-delta layers
        # Sliding layers, another type than the drafter's, and rows of the head that are no ids of the drafter.
        ("llama_sliding", {"dtype": mx.bfloat16, "head_rows": 224}),
    ],
)
def test_all_that_decoding_asks_is_raced_and_nothing_else(asking, family, changes):
    unraced, unasked = differences(asking, pair(family, **changes))
    assert (unraced, unasked) == (set(), set())


def test_nothing_is_raced_where_an_exact_target_leaves_no_choice(asking, monkeypatch):
    engine = pair("qwen3")
    config = target_config("qwen3")
    model = make_mlx_model(config, bits=4)
    monkeypatch.setattr(LayerLoopTarget, "_check_exact_attention", lambda _: None)  # no kernel runs here
    use_row_kernels(model, exact=True)
    exact = make_target(model, config)
    free, bound = (
        {(race.kernel, race.key) for race in contests(target, engine.drafter, [3])} for target in (engine.target, exact)
    )
    gone = free - bound
    assert bound < free and {name for name, _ in gone} == {"qmm_rows", "few_row_attention"}
    assert ("few_row_attention", "4/2 heads of 32 float32 rows 3 context up to 24") in gone
    # The drafter's own stay.
    assert {name for name, _ in bound} >= {"qmm_rows", "few_row_attention", "accept"}

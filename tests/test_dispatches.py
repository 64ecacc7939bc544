"""How many GPU dispatches a draft pass takes, counted on the lazy graph.

The count begins with the block's input embeddings and ends with the walked tokens; embedding, head and context
projection are not in it. A CPU build of MLX expands norm, RoPE and attention into many primitives, so stand-ins of the
right shape take their places. Views are free; padding, a write into a buffer and joining two arrays are two dispatches
each. A straightforward implementation of the method takes 451. Our Metal kernels are one dispatch each.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from dflash2_mlx.drafters.dflash2 import model as drafter_module
from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.sampling.rng import SlotNoise
from tests.tiny import HIDDEN, drafter_config, drafter_weights

LAYERS, WIDTH, LARGE_VOCAB = 5, 8, 248_320
MOST_DISPATCHES, MOST_WITH_METAL = 215, 120
FREE = {
    "AsStrided", "Broadcast", "BroadcastAxes", "Copy", "ExpandDims", "Flatten", "Reshape", "Slice", "Split", "Squeeze",
    "StopGradient", "Transpose", "Unflatten", "View",
}  # fmt: skip
COSTS = {"Concatenate": 2, "DynamicSliceUpdate": 2, "Pad": 2}


class Lent:
    """Tables that cost nothing: embeddings and logits that are already there."""

    def __init__(self) -> None:
        self.rows = mx.random.normal((1, WIDTH, HIDDEN))
        self.logits = mx.random.normal((1, WIDTH - 1, LARGE_VOCAB))
        mx.eval(self.rows, self.logits)

    def embed(self, ids: mx.array) -> mx.array:
        return self.rows

    def head(self, hidden: mx.array) -> mx.array:
        return self.logits


def primitives(*outputs: mx.array) -> Counter[str]:
    """Names of the operations MLX would run, a fused group as "Compiled"."""
    drawing = io.StringIO()
    mx.export_to_dot(drawing, *outputs)
    names = re.findall(r'label ?= ?"([A-Z][A-Za-z0-9]{2,})', drawing.getvalue())
    return Counter("Compiled" if name.startswith("Compiled") else name for name in names)


def dispatches(counted: Counter[str]) -> int:
    return sum(number * COSTS.get(name, 1) for name, number in counted.items() if name not in FREE)


def attention_stand_in(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array) -> mx.array:
    """Depends on all of its inputs in two primitives: one fused group, and one that nothing fuses with."""
    return mx.cumsum(q + (k[:, :1, :1] + v[:, :1, :1]) * mask[..., :1] * scale, axis=-1)


class KernelStandIn:
    """Makes kernels that depend on all their inputs at the price of one concatenation; nothing is ever run."""

    def __init__(self) -> None:
        self.calls = 0

    def make(self, **_: object) -> Callable[..., list[mx.array]]:
        return self.call

    def call(
        self, *, inputs: list[mx.array], output_shapes: list[list[int]], output_dtypes: list[mx.Dtype], **_: object
    ) -> list[mx.array]:
        self.calls += 1
        bits = mx.concatenate([array.reshape(-1)[:1].view(mx.uint8) for array in inputs])
        return [
            mx.broadcast_to(bits[: dtype.size].view(dtype).reshape([1] * len(shape)), shape)
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelStandIn]:
    kernels = KernelStandIn()
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (kernels.make, False))
    monkeypatch.setattr(_dispatch.Dispatcher, "passes", lambda *_: True)
    monkeypatch.setattr(DraftModel, "_test_kernels", lambda *_: None)
    # Attention is one dispatch either way.
    monkeypatch.setenv("DFLASH2_KERNELS", "metal,few_row_attention=mlx")
    dispatcher.cache_clear()
    yield kernels
    dispatcher.cache_clear()


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "rms_norm", lambda x, weight, eps: mx.cumsum(x, axis=-1))
    monkeypatch.setattr(mx.fast, "rope", lambda x, *_, **__: mx.cumsum(x, axis=-1))
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attention_stand_in)
    monkeypatch.setattr(drafter_module, "on_cpu", lambda: False)


def draft_pass(*, compiled: bool = True, noise: Callable[[mx.array], mx.array] | None = None, **changes: object) -> int:
    changes = {"num_hidden_layers": LAYERS, "layer_types": ["sliding_attention"] * LAYERS, "vocab_size": 300, **changes}
    config = DrafterConfig.from_dict(drafter_config(block_size=WIDTH, **changes))
    model = DraftModel(config)
    model.load_weights(list(drafter_weights(config).items()))
    if compiled:
        model.compile_for_inference()
    context = model.new_context()
    context.reserve(WIDTH)
    mx.eval(model.parameters(), context.arrays())
    temperature = 0.0 if noise is None else 1.0
    drafted = model.propose(mx.array([3]), context, WIDTH, Lent(), temperature=temperature, noise=noise)
    counted = primitives(drafted.tokens)
    return dispatches(counted) - LAYERS  # the second primitive of each attention stand-in


def test_a_draft_pass_stays_below_its_limit():
    taken = draft_pass()
    assert taken <= MOST_DISPATCHES
    assert taken > 100, "the count misses something"


def test_the_count_sees_what_joining_and_compiling_save():
    assert draft_pass(compiled=False) > MOST_DISPATCHES


def test_more_convolution_taps_cost_more():
    assert draft_pass(conv_kernel_size=3) > draft_pass()


def test_with_metal_kernels_a_draft_pass_takes_half(metal: KernelStandIn):
    counted = draft_pass()
    # Per layer heads, two convolutions and what follows them; two stages of the selector.
    kernels = LAYERS * 5 + 2
    assert metal.calls == kernels
    taken = counted - kernels * COSTS["Concatenate"] + kernels
    assert 80 < taken <= MOST_WITH_METAL


def test_the_documents_tell_the_very_numbers(request: pytest.FixtureRequest):
    twins = draft_pass()
    metal: KernelStandIn = request.getfixturevalue("metal")
    kernels = draft_pass() - metal.calls * COSTS["Concatenate"] + metal.calls
    text = (Path(__file__).parents[1] / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert f"({twins} by references, {kernels} by" in text


def test_a_sampled_selector_takes_as_few(metal: KernelStandIn):
    # Noise by place needs no candidates: lists, gate and walk are three dispatches, as in a greedy pass.
    greedy = draft_pass()
    calls, metal.calls = metal.calls, 0
    noise = mx.random.gumbel((1, WIDTH - 1, 6))
    mx.eval(noise)
    assert draft_pass(noise=SlotNoise(lambda shape: noise.reshape(shape))) <= greedy
    assert metal.calls == calls

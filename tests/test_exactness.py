"""`exactness`: what is refused, by name, and that nothing changes where it is not asked for.

That exact passes have the same bits in blocks and one by one is shown by `kernels/test_row_layers_on_metal.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear

import dflash2_mlx as d2
from dflash2_mlx import training
from dflash2_mlx.device.chips import read_chip
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels import qmm_rows
from dflash2_mlx.kernels.dispatch import KERNELS, dispatcher
from dflash2_mlx.kernels.few_row_attention import attention_twin, mask_of
from dflash2_mlx.kernels.qmm_rows import stock_product
from dflash2_mlx.layers.quantized import RowsEmbedding, RowsLinear, row_layers, trainable_product, use_row_kernels
from dflash2_mlx.targets.registry import make_target
from tests.runs import PROMPT, target_config
from tests.tiny import drafter_config, make_mlx_model

load_module = importlib.import_module("dflash2_mlx.engine")  # the package has a function of that name


class Passing:
    """Stands for kernels that give their twins' numbers; counts how often one is asked to run."""

    def __init__(self) -> None:
        self.calls = 0

    def make(self, *, name: str, **_: Any) -> Any:
        return {"dflash2_few_row_attention": self.attend, "dflash2_few_row_merge": self.merge}.get(name, self.run)

    def attend(self, *, inputs: list[mx.array], output_shapes: Any, template: Any, **_: Any) -> Any:
        """All of it as the first part; the others saw nothing."""
        values, (queries, keys, _, start, base) = dict(template), inputs
        rules = {"causal": values["CAUSAL"], "window": values["WINDOW"] or None, "sink": values["SINK"]}
        mask = mask_of(start, base.item(), queries.shape[2], keys.shape[2], **rules)
        out, empty = attention_twin(*inputs[:3], mask), mx.zeros(output_shapes[0][1:])
        bounds = mx.full(output_shapes[1], mx.array([-mx.inf, 0.0]))
        bounds[0] = mx.array([0.0, 1.0])
        return [mx.stack([out, *[empty] * (output_shapes[0][0] - 1)]).astype(values["OUT"]), bounds]

    def merge(self, *, inputs: list[mx.array], template: Any, **_: Any) -> Any:
        return [inputs[0][0].astype(dict(template)["T"])]

    def run(self, *, inputs: list[mx.array], output_shapes: Any, output_dtypes: Any, template: Any, **_: Any) -> Any:
        self.calls += 1
        values = dict(template)
        x, weight, scales, biases, offset = map(mx.stop_gradient, inputs)  # a kernel has no gradient
        storage = {"group_size": values["GROUP"], "bits": values["BITS"]}
        y = mx.quantized_matmul(x, weight, scales=scales, biases=biases, transpose=True, **storage)
        return [y + offset if values["OFFSET"] else y]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Passing]:
    passing = Passing()
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (passing.make, True))
    names = [name for name in KERNELS if not name.startswith(("qmm_", "few_row"))]
    monkeypatch.setenv("DFLASH2_KERNELS", ",".join(["auto", *(f"{name}=mlx" for name in names)]))
    dispatcher.cache_clear()
    yield passing
    dispatcher.cache_clear()


def refused(message: str, **options: Any) -> None:
    with pytest.raises(d2.SettingError) as caught:
        d2.load(options.pop("target", "mini"), exactness="exact", **options)
    assert str(caught.value) == message


def model(family: str = "qwen3", bits: int | None = 4, dtype: mx.Dtype = mx.float32) -> Any:
    return make_mlx_model(target_config(family), bits=bits, dtype=dtype)


def parameters(module: nn.Module) -> dict[str, mx.array]:
    flat: Any = tree_flatten(module.parameters())
    return dict(flat)


def test_an_unknown_word():
    with pytest.raises(d2.SettingError, match=r"^exactness: got 'exactly', expected fast or exact$"):
        d2.load("mini", exactness="exactly")


def test_without_metal_it_is_refused_before_weights_are_read(monkeypatch):
    monkeypatch.setattr(load_module, "read_target", lambda *_, **__: pytest.fail("weights are read"))
    refused("exactness: got 'exact', expected 'fast': MLX has no Metal here")


def test_targets_that_cannot_have_it(kernels, monkeypatch):
    monkeypatch.setattr(load_module, "read_target", lambda *_, **__: pytest.fail("weights are read"))
    refused(
        "exactness: got 'exact', expected 'fast': target_dtype float32 unpacks the quantized weights",
        target_dtype="float32",
    )
    monkeypatch.setattr(load_module, "describe_quantization", lambda _: None)
    refused("exactness: got 'exact', expected 'fast': the target is not quantized")


def test_a_kernel_that_is_switched_off_or_fails(kernels, monkeypatch):
    monkeypatch.setenv("DFLASH2_KERNELS", "mlx")
    dispatcher.cache_clear()
    refused("exactness: got 'exact', expected 'fast': kernel qmm_rows is switched off")
    for wish, name in (("mlx,qmm_rows=auto", "few_row_attention"), ("auto,qmm_rows=mlx", "qmm_rows")):
        monkeypatch.setenv("DFLASH2_KERNELS", wish)
        dispatcher.cache_clear()
        refused(f"exactness: got 'exact', expected 'fast': kernel {name} is switched off")
    monkeypatch.setenv("DFLASH2_KERNELS", "mlx,qmm_rows=auto,few_row_attention=auto")
    monkeypatch.setattr(kernels, "run", lambda **call: [y + 1 for y in Passing().run(**call)])
    dispatcher.cache_clear()
    with pytest.raises(d2.SettingError, match=r"expected 'fast': .*: kernel qmm_rows does not run \(qmm_rows: off by"):
        d2.load("mini", exactness="exact")


@pytest.mark.parametrize(
    ("family", "storage", "message"),
    [
        ("qwen3_moe", {"bits": 4}, "switch_mlp"),
        ("qwen3", {"bits": 3}, "3 bits in groups of 32 (affine)"),
        ("qwen3", {"bits": None}, "not a linear layer quantized in affine mode"),
    ],
)
def test_layers_that_it_does_not_cover_are_named(kernels, family, storage, message):
    with pytest.raises(d2.SettingError) as caught:
        make_target(model(family, **storage), target_config(family), exact=True)
    assert str(caught.value).startswith("exactness: got 'exact', expected 'fast': ") and message in str(caught.value)


def test_matrices_beside_a_linear_layer_are_found(kernels):
    adapted = model()
    attention = adapted.model.layers[0].self_attn
    attention.q_proj = LoRALinear.from_base(attention.q_proj)
    with pytest.raises(d2.SettingError, match=r"layers\.0\.self_attn\.q_proj: not a linear layer quantized in affine"):
        make_target(adapted, target_config("qwen3"), exact=True)


def test_blocks_beyond_what_it_covers(kernels, monkeypatch):
    monkeypatch.setattr(load_module, "EXACT_ROWS", 7)
    monkeypatch.setattr(load_module, "read_target", lambda *_, **__: pytest.fail("weights are read"))
    refused("exactness: got 'exact', expected 'fast': the drafter's block_size is 8, more than 7 rows")


def test_an_exact_engine_is_another_one(kernels, monkeypatch):
    monkeypatch.setattr(load_module, "settle_target_dtype", lambda asked, _: (asked, None))  # as with a GPU
    fast, exact = d2.load("mini"), d2.load("mini", exactness="exact")
    assert (fast.exactness, exact.exactness) == ("fast", "exact")
    assert fast.fingerprint != exact.fingerprint
    assert {layer.exact for _, layer in row_layers(exact.target.text_model)} == {True}
    assert {layer.exact for _, layer in row_layers(fast.target.text_model)} == {False}
    before = kernels.calls
    question = d2.GenerationConfig(max_tokens=4)
    assert (
        d2.generate(exact, "What is 2 + 3?", question).token_ids
        == d2.generate(fast, "What is 2 + 3?", question).token_ids
    )
    assert kernels.calls > before


# The modules.


def test_without_metal_models_keep_their_own_modules():
    target = make_target(model(), target_config("qwen3"))
    assert not list(row_layers(target.text_model))
    assert target.quantized_matrices() == []


@pytest.mark.parametrize("name", [name for name in KERNELS if name.startswith("qmm_")])
def test_each_kernel_by_itself_gets_the_layers(kernels, monkeypatch, name):
    for wish, expected in ((f"mlx,{name}=auto", True), ("mlx", False)):
        monkeypatch.setenv("DFLASH2_KERNELS", wish)
        dispatcher.cache_clear()
        assert bool(list(row_layers(make_target(model(), target_config("qwen3")).text_model))) is expected


def test_modules_hold_the_same_arrays_under_the_same_names(kernels):
    own, ours = model("qwen2"), model("qwen2")
    use_row_kernels(ours)
    want, got = parameters(own), parameters(ours)
    assert want.keys() == got.keys() and any(name.endswith("q_proj.bias") for name in got)
    assert all(mx.array_equal(got[name], want[name]).item() for name in want)
    assert parameters_count(own) == parameters_count(ours) == 0  # quantized weights are frozen
    layers = dict(row_layers(ours))
    assert isinstance(layers["model.embed_tokens"], RowsEmbedding)
    assert isinstance(layers["model.layers.0.self_attn.q_proj"], RowsLinear)
    assert type(own.model.layers[0].self_attn.q_proj) is nn.QuantizedLinear, "a class was changed"
    ids = mx.array([PROMPT])
    assert mx.array_equal(own(ids), ours(ids)).item()


def parameters_count(module: nn.Module) -> int:
    flat: Any = tree_flatten(module.trainable_parameters())
    return sum(array.dtype == mx.uint32 for _, array in flat)


def test_experts_and_subclasses_stay(kernels):
    class Other(nn.QuantizedLinear):
        pass

    mixture = model("qwen3_moe")
    mixture.model.layers[0].self_attn.q_proj = Other(64, 128, False, 32, 4)
    kinds = {path: type(leaf) for path, leaf in mixture.named_modules()}
    use_row_kernels(mixture)
    changed = {path for path, leaf in mixture.named_modules() if type(leaf) is not kinds[path]}
    assert changed == set(dict(row_layers(mixture)))
    assert not any("switch_mlp" in path for path in changed) and "model.layers.0.self_attn.q_proj" not in changed


@pytest.mark.parametrize("family", ["qwen3", "qwen3_untied"])
def test_a_head_with_a_gradient(kernels, family, monkeypatch):
    monkeypatch.setattr(qmm_rows, "this_chip", lambda: read_chip("applegpu_g13s"))
    target = make_target(model(family), target_config(family))
    hidden = mx.random.normal((3, 64), key=mx.random.key(1))
    table = target.text_model.lm_head if family == "qwen3_untied" else target.text_model.model.embed_tokens
    assert isinstance(table, RowsLinear | RowsEmbedding)
    assert mx.allclose(target.head(hidden), target.trainable_head(hidden), atol=1e-5).item()
    before = kernels.calls
    assert before > 0, "a pass of three rows is the kernel's"
    gradient = mx.grad(lambda x: (target.trainable_head(x) ** 2).sum())(hidden)
    assert kernels.calls == before, "kernels have no gradient"
    want = mx.grad(lambda x: (stock_product(x, table.packed()) ** 2).sum())(hidden)
    np.testing.assert_array_equal(np.array(gradient), np.array(want))
    assert mx.array_equal(trainable_product(table, hidden), target.trainable_head(hidden)).item()


def test_training_on_a_quantized_target(kernels, monkeypatch):
    monkeypatch.setattr(qmm_rows, "this_chip", lambda: read_chip("applegpu_g13s"))
    tokens = np.array([*PROMPT, 8, 90, 17, 33, 61, 5], dtype=np.int32)
    document = training.Document(tokens, np.arange(len(tokens)) >= 6)  # so few rows that kernels take them
    settings = training.TrainSettings(steps=2, sequences=1, anchors=2, learning_rate=1e-3)

    def step() -> Any:
        target = make_target(model(), target_config("qwen3"))
        drafter = training.new_drafter(drafter_config(), seed=3)
        return training.Trainer(target, drafter, [document], settings).step()

    with_kernels = step()
    assert kernels.calls > 0, "the taps of twelve rows are the kernels'"
    monkeypatch.setenv("DFLASH2_KERNELS", "mlx")
    dispatcher.cache_clear()
    without = step()
    assert with_kernels.loss == pytest.approx(without.loss, rel=1e-4)
    assert with_kernels.gradient == pytest.approx(without.gradient, rel=1e-3) and without.gradient > 0


def test_what_a_target_multiplies_by(kernels):
    tied, untied = (make_target(model(family), target_config(family)) for family in ("qwen3", "qwen3_untied"))
    assert len(tied.quantized_matrices()) == len(untied.quantized_matrices()) == 4 * 7 + 1
    mixture = make_target(model("qwen3_moe"), target_config("qwen3_moe"))
    assert len(mixture.quantized_matrices()) == 4 * 5 + 1  # attention, router, head

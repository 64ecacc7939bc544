"""Attention layers run from their parts: the very numbers of mlx-lm's own layers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tuner.lora import LoRALinear

from dflash2_mlx.errors import SettingError
from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.layers import gated_delta
from dflash2_mlx.targets import layer_loop
from dflash2_mlx.targets.registry import make_target
from tests.kernels.conftest import metal, msl_cache, own_dispatcher  # noqa: F401
from tests.runs import target_config
from tests.tiny import TARGET_CONFIGS, make_mlx_model, make_tiny_target

# More rows than a few, so that only the block's pass may run the kernel.
PROMPT = mx.array([[3, 5, 9, 100, 20, 77, 8, 41, 150, 2, 33, 60, 7, 12, 90, 4, 44, 101]], dtype=mx.int32)
BLOCK = mx.array([[7, 8, 120, 9, 64]], dtype=mx.int32)


def verify(family: str, rows: int = 5, batch: int = 1) -> list[mx.array]:
    """Logits and buffers after a prompt and a pass of a few rows."""
    target = make_tiny_target(family)
    state = target.new_state(batch)
    if batch == 1:  # so long that sliding buffers drop rows and Ministral's scale is not 1
        for end in (18, 36, 54, 72):
            target.forward(PROMPT + end // 2, state)
            target.commit(state, 18)
            state.forget_future(end)
        assert state.sliding.num_layers == 0 or state.sliding.base > 0
    else:
        target.forward(mx.concatenate([PROMPT, PROMPT + 1]), state)
        target.commit(state, mx.array([18, 15]))
    out = target.forward(mx.broadcast_to(BLOCK[:, :rows], (batch, rows)), state, taps=(1,))
    return [out.logits, out.taps, *state.arrays()]


@pytest.mark.parametrize("family", TARGET_CONFIGS)
@pytest.mark.parametrize("batch", [1, 2])
def test_layers_from_their_parts_equal_mlx_lms(family: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = verify(family, batch=batch)
    ran = []
    layer = layer_loop.run_attention_layer
    monkeypatch.setattr(layer_loop, "run_attention_layer", lambda *a: ran.append(1) or layer(*a))
    # Only the adapter is told so: the operation itself takes its twin, as there is no Metal.
    monkeypatch.setattr(layer_loop, "few_row_wanted", lambda queries, *_: queries[2] == 5)
    ours = verify(family, batch=batch)
    assert ran
    for mine, theirs in zip(ours, stock, strict=True):
        np.testing.assert_array_equal(np.array(mine), np.array(theirs))


@pytest.mark.parametrize("family", ["llama_sliding", "ministral3", "qwen3_5", "muse_glimmer"])
def test_with_the_kernel_only_rounding_differs(family: str, request: pytest.FixtureRequest) -> None:
    stock = verify(family)
    request.getfixturevalue("metal")
    ours = verify(family)
    (state,) = (state for state in dispatcher().states() if state.name == "few_row_attention")
    assert state.tested and state.runs == "metal"
    np.testing.assert_allclose(np.array(ours[0]), np.array(stock[0]), rtol=0, atol=2e-4)
    assert not np.array_equal(np.array(ours[0]), np.array(stock[0])), "the kernel did not run"


@pytest.mark.parametrize("rows", [1, 5])
def test_without_metal_mlx_lm_runs_its_layers(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> mx.array:
        raise AssertionError

    monkeypatch.setattr(layer_loop, "run_attention_layer", never)
    verify("qwen3", rows)


def test_a_single_row_is_mlx_lms(metal: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(layer_loop, "run_attention_layer", None)
    verify("qwen3", 1)


def test_layers_of_another_class_stay_mlx_lms(metal: None) -> None:  # noqa: F811
    target = make_tiny_target("qwen3")
    layer = target.layers[0]

    class Other(type(layer)):  # type: ignore[misc]
        pass

    assert layer_loop.attention_shape(layer) is not None
    layer.__class__ = Other
    assert layer_loop.attention_shape(layer) is None
    layer.__class__ = Other.__bases__[0]
    own = layer.self_attn.k_proj
    layer.self_attn.k_proj = LoRALinear.from_base(own)
    assert layer_loop.attention_shape(layer) is None
    layer.self_attn.k_proj = own
    assert layer_loop.attention_shape(layer) is not None
    layer.self_attn.scale *= 2
    assert layer_loop.attention_shape(layer) is None


def test_in_exact_mode_few_rows_are_the_kernels_always(metal: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("DFLASH2_KERNELS", "auto")
    dispatcher.cache_clear()
    config = target_config("qwen3_5")
    target = make_target(make_mlx_model(config, bits=4), config, exact=True)
    assert target.exact and not make_tiny_target("qwen3_5").exact
    state, many = target.new_state(), mx.concatenate([PROMPT, PROMPT], axis=1)
    tested = {variant for variant in dispatcher()._tested if variant[0] == "few_row_attention"}
    by_kernel = []
    layer, step = layer_loop.run_attention_layer, gated_delta.gated_delta_verify
    monkeypatch.setattr(layer_loop, "run_attention_layer", lambda *a: by_kernel.append("attention") or layer(*a))
    monkeypatch.setattr(gated_delta, "gated_delta_verify", lambda *a, **k: by_kernel.append("state") or step(*a, **k))
    for ids, keep, expected in (
        (many, 36, set()),  # more rows than exactness covers
        (BLOCK, mx.array([3]), {"attention", "state"}),
        (BLOCK[:, :1], 1, {"attention", "state"}),
        (many[:, :32], 32, {"attention", "state"}),
        (many, 36, {"state"}),  # applies the rows before, in the way that a pass of few rows would have done
    ):
        by_kernel.clear()
        target.forward(ids, state)
        target.commit(state, keep)
        assert set(by_kernel) == expected, f"{ids.shape[1]} rows"
    # Every width was tested while loading.
    assert {variant for variant in dispatcher()._tested if variant[0] == "few_row_attention"} == tested != set()


@pytest.mark.parametrize("name", ["few_row_attention", "gated_delta_verify"])
def test_exactness_needs_every_kernel_of_a_pass(name: str, metal: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("DFLASH2_KERNELS", f"auto,{name}=mlx")
    dispatcher.cache_clear()
    config = target_config("qwen3_5")
    with pytest.raises(SettingError) as caught:
        target = make_target(make_mlx_model(config, bits=4), config, exact=True)
        target.forward(BLOCK[:, :1], target.new_state())
    reason = f"kernel {name} does not run (switched off by DFLASH2_KERNELS)"
    assert str(caught.value) == f"exactness: got 'exact', expected 'fast': {reason}"


def test_exactness_needs_attention_that_we_know(metal: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(layer_loop, "attention_shape", lambda _: None)
    config = target_config("qwen3_5")
    with pytest.raises(SettingError, match="expected 'fast': full attention layers that our kernel does not know"):
        make_target(make_mlx_model(config, bits=4), config, exact=True)

"""Configs of new drafters fit their targets, large and small."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dflash2_mlx as d2
from dflash2_mlx.checkpoints.configs import check_pair
from dflash2_mlx.checkpoints.drafter_weights import expected_shapes
from dflash2_mlx.training import (
    DrafterShape,
    TrainSettings,
    config_for,
    default_taps,
    memory_estimate,
    new_drafter,
    parameter_count,
)
from tests.pairs import bootstrap_pair
from tests.tiny import TARGET_CONFIGS

LARGE = {
    "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408, "vocab_size": 248320, "rope_theta": 1e7,
}  # fmt: skip


@pytest.mark.parametrize("family", TARGET_CONFIGS)
@pytest.mark.parametrize("plain", [False, True])
def test_a_config_fits_its_target(family, plain):
    raw = DrafterShape(conv=not plain, selector=not plain).config(TARGET_CONFIGS[family], 7)
    config = d2.DrafterConfig.from_dict(raw)
    check_pair(config, TARGET_CONFIGS[family])
    assert config.version == (1 if plain else 2) and config.causal == (False,) * config.num_layers
    assert parameter_count(raw) == sum(array.size for _, array in _parameters(raw))


def _parameters(raw):
    from mlx.utils import tree_flatten

    return tree_flatten(new_drafter(raw).parameters())


def test_defaults_grow_with_the_target():
    config = d2.DrafterConfig.from_dict(DrafterShape().config(LARGE, 248070))
    assert (config.num_layers, config.block_size, config.selector_rank, config.conv_group_size) == (5, 8, 256, 16)
    assert config.target_layer_ids == (1, 16, 31, 46, 61) and config.rope_theta == 1e7
    assert expected_shapes(config)["fc.weight"] == (5120, 5 * 5120)


@pytest.mark.parametrize("depth", range(1, 80))
def test_taps_are_layers_of_the_target_in_order(depth):
    for count in range(1, 6):
        taps = default_taps(depth, count)
        assert list(taps) == sorted(set(taps)) and taps[0] >= 0 and taps[-1] < depth


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (DrafterShape(block_size=1), "block_size: got 1"),
        (DrafterShape(taps=(0, 64)), "taps: got"),
        (DrafterShape(taps=(5, 2)), "taps: got"),
        (DrafterShape(taps=(2, 2)), "taps: got"),
        (DrafterShape(layers=65), "layers: got 65"),
        (DrafterShape(window=0), "window: got 0"),
        (DrafterShape(conv_kernel=0), "conv_kernel: got 0"),
        (DrafterShape(selector_rank=5000), "selector_rank: got 5000"),
    ],
)
def test_impossible_shapes(shape, words):
    with pytest.raises(d2.ConfigError, match=words):
        shape.config(LARGE, 0)


def test_a_target_config_without_sizes():
    with pytest.raises(d2.ConfigError, match="target hidden_size: got None"):
        DrafterShape().config({**LARGE, "hidden_size": None}, 0)


def test_the_embedded_target():
    engine = bootstrap_pair()
    raw = config_for(engine, DrafterShape(block_size=5))
    config = d2.DrafterConfig.from_dict(raw)
    check_pair(config, engine.target_config)
    assert config.block_size == 5 and 0 <= config.mask_token_id < engine.target.spec.embedding_rows
    assert config.mask_token_id not in engine.stop_token_ids


@pytest.mark.parametrize(("conv", "selector"), [(True, False), (False, True)])
def test_one_part_without_the_other_is_a_dflash_2_drafter_that_does_not_use_it(conv, selector):
    raw = DrafterShape(conv=conv, selector=selector, conv_kernel=3, selector_rank=48).config(LARGE, 0)
    config = d2.DrafterConfig.from_dict(raw)
    assert config.version == 2
    assert (config.conv_kernel_size, config.selector_rank) == ((3, 4) if conv else (1, 48))


def test_what_is_chosen_is_in_the_config():
    shape = DrafterShape(layers=3, taps=(2, 30), window=77, conv_kernel=4, selector_rank=20)
    config = d2.DrafterConfig.from_dict(shape.config(LARGE, 0))
    assert (config.num_layers, config.target_layer_ids, config.sliding_window) == (3, (2, 30), 77)
    assert (config.conv_kernel_size, config.selector_rank) == (4, 20)


def test_the_memory_estimate_grows_with_what_takes_memory():
    raw, settings = DrafterShape().config(LARGE, 0), TrainSettings(steps=1, anchors=64)
    weights, activations = memory_estimate(raw, settings, 100)
    assert weights == 16 * parameter_count(raw) and activations > 0
    for more in (
        memory_estimate(raw, replace(settings, anchors=128), 100),
        memory_estimate(raw, settings, 4000),
        memory_estimate({**raw, "num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 6}, settings, 100),
    ):
        assert more[1] > activations
    assert memory_estimate(raw, replace(settings, dtype="bfloat16"), 100)[1] < activations

"""Configs of new drafters fit their targets, large and small."""

from __future__ import annotations

import pytest

import dflash2_mlx as d2
from dflash2_mlx.load import check_pair
from dflash2_mlx.training import DrafterShape, config_for, default_taps, new_drafter, parameter_count
from dflash2_mlx.weights import expected_shapes
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
        (DrafterShape(conv=False), "conv, selector"),
        (DrafterShape(selector=False), "conv, selector"),
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

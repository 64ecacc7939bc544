"""What a drafter's config may not say: foreign keys and values out of range, each refused by its name (CK-7)."""

from __future__ import annotations

import copy
import math

import pytest

from tests.tiny import drafter_config

from .raw_configs import MISSING, edited, parse, refused

# Keys of other families, each refused by its name.

FOREIGN_NESTED = {
    "causal": False,
    "use_swa": True,
    "swa_window_size": 1024,
    "attention_sink_bias": True,
    "value_scale": 0.7,
    "partial_rotary_factor": 0.5,
    "aux_hidden_norms": True,
    "draft_vocab_size": 32000,
    "conv_kernel": 2,
}
FOREIGN_TOP = {
    "attention_sink_bias": True,
    "swa_window_size": 1024,
    "use_swa": True,
    "transformer_layer_config": {"a": 1},
    "aux_hidden_state_layer_ids": [2, 4],
    "draft_vocab_size": 32000,
    "sliding_window_non_causal": True,
    "attention_value_scale": 0.7,
    "gating": True,
    "num_experts": 8,
    "layer_scale": 1.0,
    "block_sise": 8,
}


@pytest.mark.parametrize("key", FOREIGN_NESTED)
def test_foreign_nested_keys_are_refused_by_name(key):
    value = FOREIGN_NESTED[key]
    refused(edited(drafter_config(), **{f"nested__{key}": value}), f"dflash_config.{key}", value, "no such key")


@pytest.mark.parametrize("key", FOREIGN_TOP)
def test_foreign_top_level_keys_are_refused_by_name(key):
    refused(edited(drafter_config(), **{key: FOREIGN_TOP[key]}), key, FOREIGN_TOP[key], "no such key")


def test_speculators_layout_is_refused_with_advice():
    refused({"speculators_model_type": "dflash2", "block_size": 8}, "speculators_model_type", "dflash2", "convert")


@pytest.mark.parametrize("place", ["nested__", ""])
def test_predicting_from_the_anchor_is_refused(place):
    refused(edited(drafter_config(), **{place + "sample_from_anchor": True}), "sample_from_anchor", True, "false")
    assert parse(edited(drafter_config(), **{place + "sample_from_anchor": False})).version == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention_bias", True), ("mlp_bias", True), ("hidden_act", "gelu"), ("hidden_act", None)],
)
def test_other_layer_shapes_are_refused(key, value):
    refused(drafter_config(**{key: value}), key, value)


@pytest.mark.parametrize("received", [None, [], ["Qwen3ForCausalLM"], "DFlash2DraftModel"])
def test_architecture_decides(received):
    refused(drafter_config(architectures=received), "architectures", received, "DFlash2DraftModel")


def test_projector_type_of_another_trainer_is_harmless():
    assert parse(edited(drafter_config(), nested__projector_type="dflash2")).version == 2


# Single values.

NEEDED = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
]


@pytest.mark.parametrize("key", [*NEEDED, "rms_norm_eps"])
def test_missing_shape_keys_are_named(key):
    refused(edited(drafter_config(layer_types=None), **{key: MISSING}), key, None, "a value")


@pytest.mark.parametrize("key", NEEDED)
@pytest.mark.parametrize("value", [0, -1, "64", 64.0, True])
def test_shape_keys_are_positive_integers(key, value):
    refused(drafter_config(layer_types=None, **{key: value}), key, value, "an integer >= 1")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rms_norm_eps", 0, "> 0"),
        ("rms_norm_eps", "1e-6", "a number"),
        ("rms_norm_eps", math.nan, "a number"),
        pytest.param("rms_norm_eps", 10**400, "a number", id="more than a float holds"),
        ("block_size", 1, ">= 2"),
        ("block_size", 0, ">= 1"),
        ("block_size", "8", "an integer"),
        ("mask_token_id", -1, ">= 0"),
        ("mask_token_id", 1.0, "an integer"),
        ("conv_kernel_size", 0, ">= 1"),
        ("conv_group_size", 0, ">= 1"),
        ("conv_group_size", 24, "divisor of hidden_size (64)"),
        ("selector_rank", 0, ">= 1"),
        ("selector_top_k", 0, ">= 1"),
        ("selector_top_k", 212, "1..211"),
        ("num_key_value_heads", 3, ""),
        ("head_dim", 15, "even"),
        ("output_multiplier", 0.0, "> 0"),
        ("output_multiplier", "x", "a number"),
        ("final_logit_softcapping", "20", "a finite number"),
        ("final_logit_softcapping", math.inf, "a finite number"),
        ("input_embedding_scale", None, ""),
        ("input_embedding_scale", math.nan, "a finite number"),
        ("num_target_layers", 0, ">= 1"),
        ("num_target_layers", "4", "an integer"),
    ],
)
def test_values_out_of_range(key, value, expected):
    raw = drafter_config(**{key: value})
    if key == "num_key_value_heads":
        refused(raw, "num_attention_heads", 4, "a multiple of num_key_value_heads (3)")
    elif value is None:
        assert parse(raw).input_embedding_scale == 1.0  # null is absent
    else:
        refused(raw, key, value, expected)


@pytest.mark.parametrize("raw", [[], "config", None])
def test_not_an_object(raw):
    refused(raw, "drafter config", type(raw).__name__, "a JSON object")


def test_nested_group_must_be_an_object():
    refused(edited(drafter_config(), dflash_config=[1]), "dflash_config", [1], "a JSON object")


def test_reading_leaves_the_raw_config_alone():
    raw = drafter_config()
    before = copy.deepcopy(raw)
    parse(raw)
    assert raw == before

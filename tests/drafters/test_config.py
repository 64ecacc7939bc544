"""What a drafter's `config.json` may say (docs/dflash2.md 2.1, 2.5, 2.6; CK-7).

Every refusal is checked for its form: one line, `field: got received, expected ...`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from dflash2_mlx.checkpoints.drafter_weights import expected_shapes
from dflash2_mlx.drafters.dflash2.config import default_target_layer_ids
from dflash2_mlx.targets.registry import text_config
from tests.published import DFLASH2, dflash1, muse_assistant
from tests.tiny import drafter_config

from .raw_configs import MISSING, edited, parse, refused

# The published files.


@pytest.mark.parametrize("name", DFLASH2)
def test_published_layouts_are_read_as_published(name):
    published = DFLASH2[name]
    raw, nested = published.raw, published.raw["dflash_config"]
    config = parse(raw)
    assert config.version == 2
    assert config.hidden_size == raw["hidden_size"]
    assert config.num_layers == raw["num_hidden_layers"]
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (raw["num_attention_heads"], 8, 128)
    assert config.intermediate_size == raw["intermediate_size"]
    assert config.vocab_size == raw["vocab_size"]
    assert config.rms_norm_eps == raw["rms_norm_eps"]
    assert config.rope_theta == raw["rope_parameters"]["rope_theta"]
    assert config.layer_types == ("sliding_attention",) * config.num_layers
    assert config.causal == (False,) * config.num_layers
    assert (config.sliding_window, config.context_window) == (2048, 2047)
    assert config.block_size == nested["block_size"]
    assert config.mask_token_id == nested["mask_token_id"]
    assert config.target_layer_ids == tuple(nested["target_layer_ids"])
    assert config.num_target_layers == raw["num_target_layers"]
    assert config.target_layer_ids[-1] == config.num_target_layers - 3
    assert (config.conv_kernel_size, config.conv_group_size) == (2, 16)
    assert (config.selector_rank, config.selector_top_k) == (256, 16)
    assert config.output_multiplier == nested.get("output_multiplier", 1.0)
    assert config.final_logit_softcapping == nested.get("final_logit_softcapping")
    assert config.input_embedding_scale == 1.0
    assert config.quantization is None


@pytest.mark.parametrize("name", DFLASH2)
def test_published_parameter_counts(name):
    published = DFLASH2[name]
    shapes = expected_shapes(parse(published.raw))
    assert sum(math.prod(shape) for shape in shapes.values()) == published.parameters
    assert len(shapes) == published.tensors
    hidden = published.raw["hidden_size"]
    assert shapes["layers.4.mlp_conv.kernel_projection.weight"] == (4 * published.conv_groups, hidden)
    assert shapes["layers.4.attention_conv.base_kernel"] == (2, 2, hidden)
    assert shapes["fc.weight"] == (hidden, len(published.raw["dflash_config"]["target_layer_ids"]) * hidden)


def test_version_1_file():
    config = parse(dflash1())
    assert config.version == 1
    assert config.block_size == 16
    assert config.rope_theta == 1000000
    assert config.conv_kernel_size is None and config.conv_group_size is None and config.selector_rank is None
    assert config.causal == (True, True, True, True, False)  # absent: sliding causal, full not
    assert config.context_window is None  # one layer sees everything
    shapes = expected_shapes(config)
    assert len(shapes) == 3 + 5 * 11
    assert not any("conv" in name or "selector" in name for name in shapes)


def test_muse_assistant_file():
    config = parse(muse_assistant())
    assert config.version == 1
    assert config.mask_token_id == 201818
    assert config.target_layer_ids == (1, 13, 25, 37, 49)
    assert config.output_multiplier == pytest.approx(26**-0.5)
    assert config.final_logit_softcapping == 20.0


@pytest.mark.parametrize(
    ("target_layers", "layers", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (32, 5, (1, 8, 15, 22, 29)),
        (52, 5, (1, 13, 25, 37, 49)),
        (36, 1, (18,)),
        (37, 5, (1, 9, 18, 26, 34)),
        (7, 3, (1, 2, 4)),  # 2.5 rounds to the even neighbour
        (33, 1, (16,)),
    ],
)
def test_default_taps(target_layers, layers, taps):
    assert default_target_layer_ids(target_layers, layers) == taps
    raw = edited(
        dflash1(num_hidden_layers=layers, layer_types=None, num_target_layers=target_layers),
        nested__target_layer_ids=MISSING,
    )
    assert parse(raw).target_layer_ids == taps
    raw.pop("num_target_layers")
    assert parse(raw, num_target_layers=target_layers).target_layer_ids == taps
    refused(raw, "target_layer_ids", None, "a list")


def test_default_taps_are_never_assumed_for_version_2():
    refused(
        drafter_config(target_layer_ids=None),
        "target_layer_ids",
        None,
        "a list of target layer numbers",
        num_target_layers=36,
    )


# Where a value is looked up.


@pytest.mark.parametrize("key", ["block_size", "mask_token_id", "selector_top_k", "selector_rank"])
def test_drafter_keys_are_read_nested_first_then_top(key):
    raw = drafter_config()
    nested = raw["dflash_config"][key]
    assert vars(parse(raw))[key] == nested
    assert vars(parse(edited(raw, **{f"nested__{key}": MISSING, key: 3})))[key] == 3
    assert vars(parse(edited(raw, **{key: 3})))[key] == nested  # both, different: nested wins
    refused(edited(raw, **{f"nested__{key}": MISSING}), key, None, "an integer")


def test_number_of_target_layers_is_read_wherever_it_stands():
    raw = edited(drafter_config(), num_target_layers=MISSING)
    assert parse(raw).num_target_layers is None
    assert parse(edited(raw, nested__num_target_layers=9)).num_target_layers == 9
    assert parse(edited(raw, num_target_layers=8)).num_target_layers == 8


@pytest.mark.parametrize("key", ["output_multiplier", "input_embedding_scale", "final_logit_softcapping"])
def test_optional_factors_are_read_nested_or_top(key):
    raw = drafter_config()
    assert vars(parse(edited(raw, **{f"nested__{key}": 0.5})))[key] == 0.5
    assert vars(parse(edited(raw, **{key: 0.5})))[key] == 0.5
    assert vars(parse(edited(raw, **{f"nested__{key}": None})))[key] == (None if key.startswith("final") else 1.0)


def test_softcap_of_zero_or_less_is_off():
    for value in (0, -1.0):
        assert parse(drafter_config(final_logit_softcapping=value)).final_logit_softcapping is None


class TestRopeBase:
    RAW = drafter_config()

    def base(self, **changes: Any) -> float:
        return parse(edited(self.RAW, **changes)).rope_theta

    def test_nested(self):
        assert self.base(rope__rope_theta=2e6) == 2e6

    def test_flat(self):
        assert self.base(rope_parameters=MISSING, rope_theta=3e6) == 3e6

    def test_both_same(self):
        assert self.base(rope__rope_theta=1e7, rope_theta=10000000) == 1e7

    def test_both_different(self):
        refused(edited(self.RAW, rope__rope_theta=1e7, rope_theta=1e6), "rope_theta", 1e6, "10000000")

    def test_absent(self):
        refused(edited(self.RAW, rope_parameters=MISSING), "rope_theta", None, "rope_parameters or at top level")
        refused(edited(self.RAW, rope__rope_theta=MISSING), "rope_theta", None)

    @pytest.mark.parametrize("value", ["1e7", [1e7], True, 0, -1.0, math.inf])
    def test_not_a_positive_number(self, value):
        refused(edited(self.RAW, rope__rope_theta=value), "rope_theta", value, "a number > 0")
        refused(edited(self.RAW, rope__rope_theta=value, rope_theta=1e4), "rope_theta", value, "a number > 0")
        refused(edited(self.RAW, rope_theta=value), "rope_theta", value, "a number > 0")

    @pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic", "llama3"])
    def test_scaling_is_refused(self, kind):
        refused(edited(self.RAW, rope__rope_type=kind), "rope_parameters.rope_type", kind, "'default'")
        refused(edited(self.RAW, rope_scaling={"type": kind}), "rope_scaling.rope_type", kind, "'default'")
        refused(edited(self.RAW, rope_scaling={"rope_type": "default", "factor": 4.0}), "rope_scaling.factor", 4.0)
        refused(edited(self.RAW, rope_scaling=kind), "rope_scaling", kind, "a JSON object")
        refused(edited(self.RAW, rope_parameters=kind), "rope_parameters", kind, "a JSON object")

    def test_partial_rotary_is_refused(self):
        refused(edited(self.RAW, rope__partial_rotary_factor=0.5), "rope_parameters.partial_rotary_factor", 0.5)
        refused(edited(self.RAW, partial_rotary_factor=0.5), "partial_rotary_factor", 0.5)

    def test_base_inside_rope_scaling_is_not_dropped(self):
        refused(edited(self.RAW, rope_scaling={"rope_theta": 5.0}), "rope_scaling.rope_theta", 5.0)


# Layers and masks.


def test_layer_types():
    mixed = ["full_attention", "sliding_attention"]
    assert parse(drafter_config(layer_types=mixed)).layer_types == tuple(mixed)
    assert parse(edited(drafter_config(), layer_types=MISSING)).layer_types == ("full_attention",) * 2
    refused(drafter_config(layer_types=["full_attention"]), "layer_types", ["full_attention"], "2 entries")
    refused(drafter_config(layer_types=["full_attention", "linear_attention"]), "layer_types", "linear_attention")
    refused(drafter_config(layer_types="full_attention"), "layer_types", "full_attention")


def test_window_is_needed_by_sliding_layers_only():
    refused(edited(drafter_config(), sliding_window=MISSING), "sliding_window", None, "an integer >= 1")
    full = ["full_attention"] * 2
    config = parse(edited(drafter_config(layer_types=full), sliding_window=None))
    assert (config.sliding_window, config.context_window) == (None, None)
    assert parse(drafter_config(layer_types=full)).sliding_window is None


def test_causality_must_be_stated_by_version_2():
    assert parse(drafter_config(is_causal=True)).causal == (True, True)
    assert parse(drafter_config(is_causal=False)).causal == (False, False)
    refused(edited(drafter_config(), is_causal=MISSING), "is_causal", None, "true or false")
    refused(drafter_config(is_causal="no"), "is_causal", "no", "true or false")
    assert parse(dflash1(is_causal=False)).causal == (False,) * 5


@pytest.mark.parametrize(
    ("taps", "received"),
    [
        ([0, 4], 4),
        ([-1, 2], -1),
        ([2, 0], [2, 0]),
        ([1, 1], [1, 1]),
        ([], []),
        ("0,2", "0,2"),
        ([0, "2"], "2"),
        ([True, 2], True),
        ([0.0, 2], 0.0),
    ],
)
def test_taps_are_target_layers_in_order(taps, received):
    refused(drafter_config(target_layer_ids=taps), "target_layer_ids", received)


def test_taps_beyond_the_targets_layers_name_the_range():
    refused(drafter_config(target_layer_ids=[0, 4]), "target_layer_ids", 4, "0..3")
    raw = edited(drafter_config(target_layer_ids=[0, 40]), num_target_layers=MISSING)
    refused(raw, "target_layer_ids", 40, "0..35", num_target_layers=36)
    assert parse(raw).target_layer_ids == (0, 40)  # nothing known to check against yet


def test_number_of_taps_is_free():
    assert parse(drafter_config(target_layer_ids=[0, 1, 3])).target_layer_ids == (0, 1, 3)


# The target's side of CK-7: the text tower's values win over the top level's.


def test_text_config_is_merged_over_the_top_level():
    merged = text_config({"model_type": "x", "vocab_size": 5, "eos_token_id": 1, "text_config": {"vocab_size": 7}})
    assert (merged["vocab_size"], merged["eos_token_id"]) == (7, 1)
    assert text_config({"vocab_size": 5})["vocab_size"] == 5

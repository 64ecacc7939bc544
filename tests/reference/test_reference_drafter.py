"""Checks T5 and T6 of the specification, and invariances of the whole forward."""

import numpy as np
import pytest

from tests.reference.drafter import ReferenceDrafter, default_target_layer_ids, tap_layers

CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "vocab_size": 17,
    "rms_norm_eps": 1e-6,
    "is_causal": False,
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 7,
    "rope_parameters": {"rope_theta": 500.0},
    "dflash_config": {
        "block_size": 4,
        "mask_token_id": 16,
        "target_layer_ids": [0, 2, 3],
        "conv_kernel_size": 2,
        "conv_group_size": 3,
        "selector_rank": 5,
        "selector_top_k": 3,
    },
}
TAPS_WIDTH = 36


def random_weights(rng):
    """Random tensors under the published names for CONFIG."""
    shapes = {"fc.weight": (12, TAPS_WIDTH), "hidden_norm.weight": (12,), "norm.weight": (12,)}
    for layer in range(2):
        name = f"layers.{layer}"
        shapes |= {
            f"{name}.input_layernorm.weight": (12,),
            f"{name}.post_attention_layernorm.weight": (12,),
            f"{name}.self_attn.q_proj.weight": (24, 12),
            f"{name}.self_attn.k_proj.weight": (12, 12),
            f"{name}.self_attn.v_proj.weight": (12, 12),
            f"{name}.self_attn.o_proj.weight": (12, 24),
            f"{name}.self_attn.q_norm.weight": (6,),
            f"{name}.self_attn.k_norm.weight": (6,),
            f"{name}.mlp.gate_proj.weight": (20, 12),
            f"{name}.mlp.up_proj.weight": (20, 12),
            f"{name}.mlp.down_proj.weight": (12, 20),
        }
        for module in ("attention_conv", "mlp_conv"):
            shapes[f"{name}.{module}.base_kernel"] = (2, 2, 12)
            shapes[f"{name}.{module}.kernel_projection.weight"] = (16, 12)
    shapes["candidate_selector.predecessor_codebook"] = (17, 5)
    shapes["candidate_selector.successor_codebook"] = (17, 5)
    shapes["candidate_selector.hidden_projection.weight"] = (5, 12)
    return {name: rng.normal(scale=0.6, size=shape) for name, shape in shapes.items()}


@pytest.fixture
def parts():
    rng = np.random.default_rng(5)
    tables = rng.normal(size=(17, 12)), rng.normal(size=(17, 12))
    return random_weights(rng), tables, rng.normal(size=(15, TAPS_WIDTH))


def test_identity_convolution_and_zero_codebook_are_version_1(parts):
    weights, tables, taps = parts
    for name in list(weights):
        if name.endswith("base_kernel"):
            weights[name] = np.zeros((2, 2, 12))
            weights[name][:, 0] = 1
        if name.endswith(("kernel_projection.weight", "successor_codebook")):
            weights[name] = np.zeros_like(weights[name])
    second = ReferenceDrafter(CONFIG, weights, *tables)
    first = ReferenceDrafter(CONFIG | {"architectures": ["DFlashDraftModel"]}, weights, *tables)
    out_2, out_1 = second.forward(taps, 4, 4), first.forward(taps, 4, 4)
    np.testing.assert_array_equal(out_2.hidden, out_1.hidden)
    np.testing.assert_array_equal(second.greedy_proposal(out_2, 4), first.greedy_proposal(out_1, 4))
    np.testing.assert_array_equal(first.greedy_proposal(out_1, 4), np.argmax(out_1.logits, axis=-1))


def test_rows_outside_the_window_do_not_matter(parts):
    weights, tables, taps = parts
    drafter = ReferenceDrafter(CONFIG, weights, *tables)
    whole = drafter.forward(taps, 4, 4)
    visible = drafter.forward(taps[9:], 4, 4, context_start=9)
    np.testing.assert_allclose(visible.hidden, whole.hidden, atol=1e-12)
    short = drafter.forward(taps[10:], 4, 4, context_start=10)
    assert np.abs(short.hidden - whole.hidden).max() > 1e-3


def test_only_distances_between_positions_matter(parts):
    # Rotary scores depend on differences, so shifting every position by the
    # same amount changes nothing. It would, if a row were rebased alone.
    weights, tables, taps = parts
    drafter = ReferenceDrafter(CONFIG, weights, *tables)
    np.testing.assert_allclose(
        drafter.forward(taps, 4, 4, context_start=1000).hidden, drafter.forward(taps, 4, 4).hidden, atol=1e-9
    )


def test_logit_keys_apply_in_order(parts):
    weights, tables, taps = parts
    plain = ReferenceDrafter(CONFIG, weights, *tables).forward(taps, 4, 4)
    nested = CONFIG["dflash_config"] | {"output_multiplier": 0.25, "final_logit_softcapping": 2.0}
    capped = ReferenceDrafter(CONFIG | {"dflash_config": nested}, weights, *tables).forward(taps, 4, 4)
    np.testing.assert_allclose(capped.logits, 2 * np.tanh(plain.logits * 0.25 / 2))


@pytest.mark.parametrize("tap", range(6))
def test_a_tap_is_the_stream_after_its_layer(tap):
    layers = [lambda stream, add=level + 1: np.full_like(stream, add) for level in range(6)]
    taps = tap_layers(np.zeros((2, 3)), layers, [0, tap])
    np.testing.assert_array_equal(taps[:, :3], 1.0)
    np.testing.assert_array_equal(taps[:, 3:], (tap + 1) * (tap + 2) / 2)


@pytest.mark.parametrize(
    ("target_layers", "draft_layers", "expected"),
    [
        (36, 5, [1, 9, 17, 25, 33]),
        (32, 5, [1, 8, 15, 22, 29]),
        (52, 5, [1, 13, 25, 37, 49]),
        (36, 1, [18]),
    ],
)
def test_default_taps_of_version_1(target_layers, draft_layers, expected):
    assert default_target_layer_ids(target_layers, draft_layers) == expected

"""The five published DFlash 2 configs and their v1 kin, written from the specification's table (2.2, 2.5).

`parameters` and `tensors` are what their files hold: the sum over all shapes must hit them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """One row of the table: the raw config and the facts to be read out of it."""

    raw: dict[str, Any]
    parameters: int
    tensors: int
    conv_groups: int


def _layout(
    *,
    hidden: int,
    layers: int,
    inner: int,
    heads: int,
    vocab: int,
    mask: int,
    taps: list[int],
    block: int,
    theta: float,
    eps: float,
    target_layers: int,
    positions: int = 262144,
    nested: dict[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    return {
        "architectures": ["DFlash2DraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * layers,
        "max_position_embeddings": positions,
        "max_window_layers": layers,
        "model_type": "qwen3",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "num_target_layers": target_layers,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "sliding_window": 2048,
        "tie_word_embeddings": False,
        "transformers_version": "5.0.0",
        "use_cache": True,
        "use_sliding_window": True,
        "vocab_size": vocab,
        "dflash_config": {
            "block_size": block,
            "mask_token_id": mask,
            "target_layer_ids": taps,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
            **(nested or {}),
        },
        **top,
    }


DFLASH2 = {
    "Qwen3.8-27B": Published(
        _layout(
            hidden=5120,
            layers=5,
            inner=17408,
            heads=32,
            vocab=248320,
            mask=248070,
            taps=[5, 19, 33, 47, 61],
            block=8,
            theta=10000000,
            eps=1e-6,
            target_layers=64,
            bos_token_id=None,
            eos_token_id=248044,
            pad_token_id=248044,
        ),
        parameters=1_924_404_480,
        tensors=81,
        conv_groups=320,
    ),
    "Muse-Glimmer-30B": Published(
        _layout(
            hidden=6656,
            layers=5,
            inner=19968,
            heads=32,
            vocab=202048,
            mask=201818,
            taps=[1, 13, 25, 37, 49],
            block=16,
            theta=500000.0,
            eps=1e-5,
            target_layers=52,
            positions=131072,
            nested={"output_multiplier": 0.19611613513818404, "final_logit_softcapping": 20.0},
            bos_token_id=200000,
            eos_token_id=200001,
            pad_token_id=200018,
        ),
        parameters=2_772_159_744,
        tensors=81,
        conv_groups=416,
    ),
    "GLM-5.3-Flash": Published(
        _layout(
            hidden=4096,
            layers=5,
            inner=12288,
            heads=32,
            vocab=154880,
            mask=154856,
            taps=[5, 14, 24, 33, 42],
            block=8,
            theta=10000,
            eps=1e-5,
            target_layers=45,
        ),
        parameters=1_171_080_448,
        tensors=81,
        conv_groups=256,
    ),
    "GLM-5.3": Published(
        _layout(
            hidden=6144,
            layers=6,
            inner=12288,
            heads=64,
            vocab=154880,
            mask=154856,
            taps=[5, 19, 33, 47, 61, 75],
            block=8,
            theta=1000000,
            eps=1e-5,
            target_layers=78,
            positions=1048576,
            bos_token_id=None,
            eos_token_id=[154820, 154827, 154829],
            pad_token_id=154820,
        ),
        parameters=2_459_424_256,
        tensors=96,
        conv_groups=384,
    ),
    "Qwen3.6-35B-A3B": Published(
        _layout(
            hidden=2048,
            layers=6,
            inner=6144,
            heads=32,
            vocab=248320,
            mask=248077,
            taps=[1, 6, 11, 16, 22, 27, 32, 37],
            block=8,
            theta=10000000,
            eps=1e-6,
            target_layers=40,
        ),
        parameters=526_251_520,
        tensors=96,
        conv_groups=128,
    ),
}


def dflash1(**changes: Any) -> dict[str, Any]:
    """A DFlash v1 config: block size and RoPE base at top level, no convolution, no selector, no `is_causal`."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "sliding_window": 2048,
        "use_sliding_window": True,
        "max_window_layers": 5,
        "num_target_layers": 36,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "block_size": 16,
        "tie_word_embeddings": False,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
        **changes,
    }


def muse_assistant() -> dict[str, Any]:
    """Meta's own v1 drafter: everything at top level."""
    raw = dflash1(
        architectures=["MuseGlimmerAssistantModel"],
        hidden_size=6656,
        intermediate_size=19968,
        vocab_size=202048,
        rms_norm_eps=1e-5,
        num_target_layers=52,
        rope_theta=500000.0,
        mask_token_id=201818,
        target_layer_ids=[1, 13, 25, 37, 49],
        output_multiplier=0.19611613513818404,
        final_logit_softcapping=20.0,
    )
    del raw["dflash_config"]
    return raw

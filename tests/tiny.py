"""Tiny random models of every supported family, in memory or as checkpoint folders.

Used by tests only. Sizes are odd where the format allows it. Weights are normal with std 1.2 / sqrt(fan-in),
embeddings 0.5: random enough that a wrong row or state shows within a few tokens.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path

from dflash2_mlx.checkpoints.drafter_weights import expected_shapes
from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.targets.base import Target
from dflash2_mlx.targets.registry import make_target

VOCAB = 211
HIDDEN = 64
LAYERS = 4

_ATTENTION = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "eos_token_id": VOCAB - 1,
}
_GATED_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "type": "default"},
}
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}

# Every family the registry names, as its config.json would say it.
TARGET_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {**_ATTENTION, "model_type": "qwen3", "rope_theta": 10000.0, "tie_word_embeddings": True},
    "qwen3_untied": {**_ATTENTION, "model_type": "qwen3", "rope_theta": 10000.0, "tie_word_embeddings": False},
    "qwen2": {**_ATTENTION, "model_type": "qwen2", "head_dim": 16, "rope_theta": 10000.0},
    "llama": {**_ATTENTION, "model_type": "llama", "rope_theta": 10000.0, "tie_word_embeddings": True},
    "mistral": {**_ATTENTION, "model_type": "mistral", "rope_theta": 10000.0, "tie_word_embeddings": False},
    "llama_sliding": {
        **_ATTENTION,
        "model_type": "llama",
        "rope_theta": 10000.0,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    },
    "ministral3": {
        **_ATTENTION,
        "model_type": "ministral3",
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen3_moe": {
        **_ATTENTION,
        **_EXPERTS,
        "model_type": "qwen3_moe",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": {**_ATTENTION, **_GATED_DELTA, "model_type": "qwen3_5_text", "tie_word_embeddings": False},
    },
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": {
            **_ATTENTION,
            **_GATED_DELTA,
            **_EXPERTS,
            "model_type": "qwen3_5_moe_text",
            "tie_word_embeddings": False,
        },
    },
    "muse_glimmer": {
        **_ATTENTION,
        "model_type": "muse_glimmer",
        "sliding_window": 8,
        "rope_theta": 10000.0,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "output_multiplier": 0.7,
        "final_logit_softcapping": 20.0,
        "qk_scale_factor": 1.7,
        "tie_word_embeddings": False,
        "num_key_value_heads": 1,
    },
    "qwen3_vl": {
        "model_type": "qwen3_vl",
        "text_config": {
            **_ATTENTION,
            "model_type": "qwen3_vl_text",
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
        },
    },
    "mistral3": {
        "model_type": "mistral3",
        "text_config": {**_ATTENTION, "model_type": "mistral", "rope_theta": 10000.0},
    },
}


def make_mlx_model(
    config: dict[str, Any], *, seed: int = 0, dtype: mx.Dtype = mx.float32, bits: int | None = None
) -> Any:
    """mlx-lm's own model object with random weights."""
    kind = config["model_type"]
    module = importlib.import_module("mlx_lm.models." + {"mistral": "llama"}.get(kind, kind))
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    keys = iter(mx.random.split(mx.random.key(seed), 4096))

    def fill(path: str, old: mx.array) -> mx.array:
        noise = mx.random.normal(old.shape, key=next(keys))
        if path.endswith("A_log"):
            return mx.log(1.0 + mx.abs(noise))
        if path.endswith("dt_bias"):
            return noise
        if old.ndim == 1:  # norms; the centred kind of Muse is added to 1
            centred = kind == "muse_glimmer" and "layernorm" in path
            return 0.2 * noise + (0.0 if centred else 1.0)
        if "embed_tokens" in path:
            return 0.5 * noise
        fan_in = old.shape[1] if path.endswith("conv1d.weight") else old.shape[-1]
        return noise * (1.2 / fan_in**0.5)

    model.update(tree_map_with_path(fill, model.parameters()))
    model.set_dtype(dtype)
    if bits is not None:
        nn.quantize(model, group_size=32, bits=bits)
        model.set_dtype(dtype)
    model.eval()
    mx.eval(model.parameters())
    return model


def make_tiny_target(family: str, *, seed: int = 0, dtype: mx.Dtype = mx.float32, bits: int | None = None) -> Target:
    """A random target of one family, wrapped by our adapter."""
    config = TARGET_CONFIGS[family]
    return make_target(make_mlx_model(config, seed=seed, dtype=dtype, bits=bits), config)


def drafter_config(**changes: Any) -> dict[str, Any]:
    """A published-layout DFlash 2 config that fits the tiny targets; nested keys may be named directly."""
    nested = {
        "block_size": 5,
        "mask_token_id": 7,
        "target_layer_ids": [0, 2],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 20,
        "selector_top_k": 6,
    }
    top = {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 8,
        "num_target_layers": LAYERS,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
    }
    for key, value in changes.items():
        (nested if key in nested or key in ("output_multiplier", "final_logit_softcapping") else top)[key] = value
    return {**top, "dflash_config": nested}


def drafter_weights(config: DrafterConfig, *, seed: int = 1) -> dict[str, mx.array]:
    """Random float32 tensors of the published names."""
    weights = {}
    for key, (name, shape) in zip(
        mx.random.split(mx.random.key(seed), 4096), expected_shapes(config).items(), strict=False
    ):
        noise = mx.random.normal(shape, key=key)
        if len(shape) == 1:
            weights[name] = 1.0 + 0.2 * noise
        elif name.endswith("base_kernel"):
            weights[name] = 0.3 * noise + mx.array([1.0] + [0.0] * (shape[1] - 1))[None, :, None]
        else:
            weights[name] = noise * (1.0 / shape[-1] ** 0.5)
    return weights


def make_tiny_drafter(seed: int = 1, *, compiled: bool = False, **changes: Any) -> DraftModel:
    """A random drafter for the tiny targets."""
    config = DrafterConfig.from_dict(drafter_config(**changes))
    model = DraftModel(config)
    model.load_weights(list(drafter_weights(config, seed=seed).items()))
    mx.eval(model.parameters())
    if compiled:
        model.compile_for_inference()
    return model


def save_drafter(folder: Path, *, seed: int = 1, **changes: Any) -> Path:
    """Write a drafter checkpoint folder in the published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = drafter_config(**changes)
    (folder / "config.json").write_text(json.dumps(raw))
    mx.save_safetensors(str(folder / "model.safetensors"), drafter_weights(DrafterConfig.from_dict(raw), seed=seed))
    return folder


def save_target(
    folder: Path, family: str, *, seed: int = 0, bits: int | None = None, tokenizer: Path | None = None
) -> Path:
    """Write a target checkpoint folder; `tokenizer` is a folder whose tokenizer files are copied."""
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(TARGET_CONFIGS[family])
    if bits is not None:
        config["quantization"] = {"group_size": 32, "bits": bits}
    model = make_mlx_model(TARGET_CONFIGS[family], seed=seed, bits=bits)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    if tokenizer is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((tokenizer / name).read_bytes())
    return folder

"""Target checkpoints in every form they are found in give the same logits, bit for bit (CK-8).

Qwen3.5 files straight from the Hub store norms minus one and the short convolution transposed; MLX's converter
undoes both. Norm weights here lie on a grid of 1/1024, so that adding and taking away one is exact.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import dflash2_mlx as d2
from dflash2_mlx.targets.registry import make_target
from tests.pairs import BOOTSTRAP
from tests.tiny import TARGET_CONFIGS, make_mlx_model, save_drafter

IDS = mx.array([[3, 5, 9, 100, 20, 77, 8]])
NORMS = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "model.norm.weight",
    "q_norm.weight",
    "k_norm.weight",
)
Weights = dict[str, mx.array]


def save(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((BOOTSTRAP / "target" / name).read_bytes())
    return folder


def logits(folder: Path) -> np.ndarray:
    target = d2.load(folder).target
    return np.array(target.forward(IDS, target.new_state()).logits)


def converted(family: str, norm_mean: float = 1.0) -> Weights:
    """Weights as mlx-lm's modules hold them."""
    weights = dict(tree_flatten(make_mlx_model(TARGET_CONFIGS[family]).parameters()))
    for name, array in weights.items():
        if array.ndim == 1 and name.endswith(NORMS):
            weights[name] = mx.round((array - 1.0 + norm_mean) * 1024) / 1024
    return weights


# Qwen3.5: the ways its files are stored.


def hub_names(weights: Weights) -> Weights:
    return {
        name.replace("language_model.model.", "model.language_model.").removeprefix("language_model."): array
        for name, array in weights.items()
    }


def raw(weights: Weights) -> Weights:
    """As published: Hub names, norms minus one, convolution [C, 1, K]."""
    stored = {}
    for name, array in hub_names(weights).items():
        if array.ndim == 1 and name.endswith((*NORMS, "language_model.norm.weight")):
            array = array - 1.0
        stored[name] = array.moveaxis(1, 2) if name.endswith("conv1d.weight") else array
    return stored


def with_mtp(weights: Weights) -> Weights:
    """Keys of the multi-token head; an older rule took them for a sign of raw norms."""
    extra = {
        "mtp.norm.weight": mx.zeros((64,)),
        "mtp.layers.0.input_layernorm.weight": mx.zeros((64,)),
        "mtp.fc.weight": mx.zeros((64, 128)),
    }
    return {**weights, **extra}


def with_vision(weights: Weights) -> Weights:
    return {
        **weights,
        "model.visual.patch_embed.proj.weight": mx.zeros((4, 3)),
        "vision_tower.blocks.0.attn.qkv.weight": mx.zeros((4, 4)),
    }


FORMS: dict[str, Callable[[Weights], Weights]] = {
    "converted": lambda weights: weights,
    "hub names": hub_names,
    "raw": raw,
    "converted + MTP": with_mtp,
    "raw + MTP": lambda weights: with_mtp(raw(weights)),
    "raw + vision": lambda weights: with_vision(raw(weights)),
    "converted + vision + MTP": lambda weights: with_mtp(with_vision(weights)),
}


@pytest.mark.parametrize("norm_mean", [1.0, 0.27, 0.49])  # no rule that guesses from the mean can tell these apart
def test_qwen3_5_in_every_form(tmp_path, norm_mean):
    config, weights = TARGET_CONFIGS["qwen3_5"], converted("qwen3_5", norm_mean)
    model = make_mlx_model(config)
    model.load_weights(list(weights.items()))
    target = make_target(model, config)
    in_memory = target.forward(IDS, target.new_state()).logits
    expected = None
    for name, form in FORMS.items():
        got = logits(save(tmp_path / name.replace(" ", ""), config, form(weights)))
        expected = got if expected is None else expected
        np.testing.assert_array_equal(got, expected, err_msg=name)
        # Loading may lay matrices out otherwise, which moves the last bits.
        np.testing.assert_allclose(got, in_memory, rtol=0, atol=1e-4, err_msg=name)


def test_the_forms_do_differ(tmp_path):
    # Raw norms read as they are would change everything: the test above can fail.
    weights = converted("qwen3_5", 0.49)
    wrong = dict(weights)
    wrong.update({name: array - 1.0 for name, array in weights.items() if name.endswith(NORMS) and array.ndim == 1})
    config = TARGET_CONFIGS["qwen3_5"]
    difference = logits(save(tmp_path / "a", config, weights)) - logits(save(tmp_path / "b", config, wrong))
    assert np.abs(difference).max() > 0.1


def test_norms_of_the_gated_output_are_not_shifted(tmp_path):
    target = d2.load(save(tmp_path / "raw", TARGET_CONFIGS["qwen3_5"], raw(converted("qwen3_5")))).target
    expected = converted("qwen3_5")
    for number, layer in enumerate(target.layers):
        names = ["linear_attn.norm"] if layer.is_linear else ["self_attn.q_norm", "self_attn.k_norm"]
        modules = dict(layer.named_modules())
        for name in [*names, "input_layernorm"]:
            want = expected[f"language_model.model.layers.{number}.{name}.weight"]
            np.testing.assert_array_equal(modules[name].weight, want, err_msg=f"{number} {name}")


@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer", "qwen3_vl", "mistral3", "llama"])
def test_loading_and_saving_again_changes_nothing(tmp_path, family):
    first = save(tmp_path / "first", TARGET_CONFIGS[family], converted(family))
    target = d2.load(first).target
    held = dict(tree_flatten(target.text_model.parameters()))
    prefix = "language_model." if "text_config" in TARGET_CONFIGS[family] else ""
    again = save(tmp_path / "again", TARGET_CONFIGS[family], {prefix + name: array for name, array in held.items()})
    np.testing.assert_array_equal(logits(again), logits(first))


# Text towers of multimodal files.


def test_qwen3_vl_text_tower(tmp_path):
    weights = converted("qwen3_vl")
    hub = {"model." + name.replace("_model.model.", "_model."): array for name, array in weights.items()}
    assert "model.language_model.layers.0.mlp.up_proj.weight" in hub
    expected = logits(save(tmp_path / "text", TARGET_CONFIGS["qwen3_vl"], weights))
    vision = {"visual.blocks.0.attn.qkv.weight": mx.zeros((4, 4))}
    config = {**TARGET_CONFIGS["qwen3_vl"], "vision_config": {"depth": 1}, "image_token_id": 5}
    np.testing.assert_array_equal(logits(save(tmp_path / "a", config, {**weights, **vision})), expected)
    nested = {**hub, **{"model." + name: array for name, array in vision.items()}}
    np.testing.assert_array_equal(logits(save(tmp_path / "b", config, nested)), expected)


def test_mistral3_text_tower(tmp_path):
    weights = converted("mistral3")
    expected = logits(save(tmp_path / "text", TARGET_CONFIGS["mistral3"], weights))
    vision = {"vision_tower.ln_pre.weight": mx.zeros((4,)), "multi_modal_projector.linear_1.weight": mx.zeros((4, 4))}
    config = {**TARGET_CONFIGS["mistral3"], "vision_config": {"hidden_size": 4}}
    np.testing.assert_array_equal(logits(save(tmp_path / "a", config, {**weights, **vision})), expected)


def test_text_config_decides_about_the_pair(tmp_path):
    config = copy.deepcopy(TARGET_CONFIGS["qwen3_5"])
    config.update(hidden_size=9999, vocab_size=10, num_hidden_layers=1)  # what the outer model says is not the text's
    target = save(tmp_path / "target", config, converted("qwen3_5"))
    engine = d2.load(target, save_drafter(tmp_path / "drafter"))
    assert engine.target.spec.num_layers == 4


# Quantized files whose config says more of some modules.


def mixed(family: str) -> tuple[dict[str, Any], Weights]:
    """A 4-bit target with one matrix of 8 bits, one of larger groups and one that is not packed.

    Returns:
        the settings of these three under mlx-lm's paths, and the weights
    """
    model = make_mlx_model(TARGET_CONFIGS[family])
    own = {"0.mlp.up_proj": {"group_size": 32, "bits": 8}, "1.mlp.up_proj": {"group_size": 64, "bits": 4},
           "2.mlp.up_proj": False}  # fmt: skip
    told: dict[str, Any] = {}

    def how(path: str, module: Any) -> Any:
        for end, setting in own.items():
            if path.endswith("layers." + end):
                told[path] = setting
                return setting
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0

    nn.quantize(model, group_size=32, bits=4, class_predicate=how)
    assert len(told) == 3
    return told, dict(tree_flatten(model.parameters()))


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_settings_by_module_under_any_prefix(tmp_path, family, key):
    told, weights = mixed(family)
    found = []
    for number, prefix in enumerate(
        ["", "model.", "language_model.", "language_model.model.", "model.language_model."]
    ):
        renamed = {prefix + path[path.index("layers.") :]: setting for path, setting in told.items()}
        config = {**TARGET_CONFIGS[family], key: {"group_size": 32, "bits": 4, **renamed}}
        engine = d2.load(save(tmp_path / str(number), config, weights), target_dtype="bfloat16")
        layers = engine.target.layers
        kinds = [
            (getattr(layer.mlp.up_proj, "bits", None), getattr(layer.mlp.up_proj, "group_size", None))
            for layer in layers
        ]
        assert kinds == [(8, 32), (4, 64), (None, None), (4, 32)], prefix
        assert engine.target.spec.quantization == "4-bit group 32"
        found.append((logits(tmp_path / str(number)).tobytes(), d2.memory_estimate(config, None, 8).target_weights))
    assert len(set(found)) == 1
    plain = {**TARGET_CONFIGS[family], key: {"group_size": 32, "bits": 4}}
    assert found[0][1] > d2.memory_estimate(plain, None, 8).target_weights

"""Drafter files: names, shards, tensors, dtypes (docs/dflash2.md 2.3, 2.5; T12, CK-9).

`refused` demands that everything wrong is found in headers, before a weight is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx import DrafterConfig, load_drafter
from dflash2_mlx.checkpoints.drafter_weights import expected_shapes
from tests.checkpoint_files import CODEBOOKS, fitting, parameters, refused, same, write
from tests.published import muse_assistant
from tests.tiny import drafter_config, drafter_weights

ONE_LAYER = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
ONE_LAYER_NAMES = sorted(expected_shapes(DrafterConfig.from_dict(drafter_config(**ONE_LAYER))))

# Names.


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_prefix_and_codebook_suffix(tmp_path, prefix, suffix):
    raw, weights = fitting()
    spelled = {prefix + name + (suffix if name in CODEBOOKS else ""): array for name, array in weights.items()}
    same(load_drafter(write(tmp_path, raw, spelled)), weights)


@pytest.mark.parametrize("second", [CODEBOOKS[0] + ".weight", "model." + CODEBOOKS[1], "model.norm.weight"])
def test_both_spellings_at_once_are_refused(tmp_path, second):
    raw, weights = fitting()
    ours = second.removeprefix("model.").removesuffix(".weight")
    ours = ours if ours in weights else ours + ".weight"
    refused(write(tmp_path, raw, {**weights, second: weights[ours]}), ours, "twice")


def test_names_of_the_muse_assistant(tmp_path):
    raw = drafter_config(architectures=["MuseGlimmerAssistantModel"], is_causal=None)
    raw.update(raw.pop("dflash_config"))
    config = DrafterConfig.from_dict(raw)
    weights = drafter_weights(config)
    assert not any("conv" in name or "selector" in name for name in weights)
    theirs = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    same(load_drafter(write(tmp_path, raw, {theirs.get(n, n): w for n, w in weights.items()})), weights)
    assert set(expected_shapes(DrafterConfig.from_dict(muse_assistant()))) >= set(theirs)


# Shards.


def shard(folder: Path, raw: dict[str, Any], weights: dict[str, mx.array]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    names = sorted(weights)
    parts = {
        "model-00001-of-00003.safetensors": names[::3],
        "model-00002-of-00003.safetensors": names[1::3],
        "model-00003-of-00003.safetensors": names[2::3],
    }
    for file, part in parts.items():
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in part})
    index = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return [folder / file for file in parts]


def test_sharded_files(tmp_path):
    raw, weights = fitting()
    shard(tmp_path, raw, weights)
    same(load_drafter(tmp_path), weights)


def test_a_missing_shard_is_named(tmp_path):
    shard(tmp_path, *fitting())[1].unlink()
    refused(tmp_path, "missing weight files", "model-00002-of-00003.safetensors")


def test_a_shard_without_index_is_not_enough(tmp_path):
    files = shard(tmp_path, *fitting())
    (tmp_path / "model.safetensors.index.json").unlink()
    files[0].unlink()
    refused(tmp_path, "missing tensors")


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    raw, weights = fitting()
    shard(tmp_path, raw, weights)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"norm.weight": weights["norm.weight"]})
    refused(tmp_path, "'norm.weight'", "twice")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', pytest.param("[" * 100_000, id="nested")])
def test_a_damaged_index_is_refused(tmp_path, text):
    shard(tmp_path, *fitting())
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, "index.json", "weight_map")


def test_no_weights_at_all(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(drafter_config()))
    refused(tmp_path, "no model*.safetensors")


# Tensors.


@pytest.mark.parametrize("name", ["fc.weight", "layers.1.mlp_conv.base_kernel", CODEBOOKS[1], "norm.weight"])
def test_missing_tensors_are_named(tmp_path, name):
    raw, weights = fitting()
    del weights[name]
    refused(write(tmp_path, raw, weights), "missing tensors", name)


@pytest.mark.parametrize(
    "name",
    [
        "embed_tokens.weight",
        "lm_head.weight",
        "mask_embedding",
        "layers.2.input_layernorm.weight",
        "layers.0.self_attn.q_proj.bias",
        "layers.0.self_attn.g_proj.weight",
        "aux_hidden_norms.0.weight",
        "layers.0.self_attn.attention_sink_bias",
        "norm.scales",
        "layers.0.mlp_conv.base_kernel.scales",
        "layers.0.self_attn.q_proj.weight_scale_inv",
    ],
)
def test_unknown_tensors_are_named(tmp_path, name):
    raw, weights = fitting()
    weights[name] = mx.zeros((4, 4))
    refused(write(tmp_path, raw, weights), "unknown tensors", name)


def test_shared_tables_of_the_target_are_not_taken_for_weights(tmp_path):
    # A trainer that saved the borrowed embedding with the drafter must take it out: it would be loaded for nothing.
    raw, weights = fitting()
    weights["model.embed_tokens.weight"] = mx.zeros((211, 64))
    refused(write(tmp_path, raw, weights), "embed_tokens.weight")


@pytest.mark.parametrize("name", ONE_LAYER_NAMES)
def test_every_wrong_shape_is_named_with_both_shapes(tmp_path, name):
    raw, weights = fitting(**ONE_LAYER)
    shape = list(weights[name].shape)
    wrong = [shape[0] + 1, *shape[1:]]
    weights[name] = mx.zeros(wrong)
    refused(write(tmp_path, raw, weights), f"tensor {name}", wrong, shape)


def test_transposed_kernels_are_refused(tmp_path):
    raw, weights = fitting(conv_kernel_size=3)
    name = "layers.0.attention_conv.base_kernel"
    assert weights[name].shape == (2, 3, 64)  # [side, tap, channel]
    weights[name] = weights[name].swapaxes(0, 1)
    refused(write(tmp_path, raw, weights), f"tensor {name}: got shape [3, 2, 64], expected [2, 3, 64]")


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8, mx.uint32])
def test_integer_weights_are_refused(tmp_path, dtype):
    raw, weights = fitting()
    weights["fc.weight"] = weights["fc.weight"].astype(dtype)
    refused(write(tmp_path, raw, weights), "tensor fc.weight", "BF16")


@pytest.mark.parametrize(("stored", "read"), [(mx.bfloat16, mx.float32), (mx.float16, mx.float32)])
def test_weights_take_the_activation_dtype(tmp_path, stored, read):
    raw, weights = fitting()
    folder = write(tmp_path, raw, {name: array.astype(stored) for name, array in weights.items()})
    model = load_drafter(folder)  # "auto" on the CPU back-end
    assert {array.dtype for array in parameters(model).values()} == {read}
    assert model.dtype == read
    same(model, {name: array.astype(stored).astype(read) for name, array in weights.items()})
    half = load_drafter(folder, dtype="bfloat16")
    assert {array.dtype for array in parameters(half).values()} == {mx.bfloat16}


# One version's file under the other's config.


def test_version_2_tensors_under_a_version_1_config(tmp_path):
    raw, weights = fitting()
    raw["architectures"] = ["DFlashDraftModel"]
    refused(write(tmp_path, raw, weights), "unknown tensors", "candidate_selector")


def test_version_1_tensors_under_a_version_2_config(tmp_path):
    raw, weights = fitting()
    names = [name for name in weights if "conv" not in name and "selector" not in name]
    refused(write(tmp_path, raw, {name: weights[name] for name in names}), "missing tensors", "candidate_selector")

"""Quantized drafters: on load, and files that MLX has quantized before (docs/dflash2.md 8.12; CK-9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx import ConfigError, DrafterConfig, load_drafter, memory_estimate
from dflash2_mlx.kernels.select_walk import neighbour_edges
from tests.checkpoint_files import CODEBOOKS, WIDE, fitting, parameters, refused, write
from tests.tiny import TARGET_CONFIGS, drafter_config, drafter_weights, save_drafter

LINEAR = (nn.Linear, nn.QuantizedLinear)
QUANTIZED = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "fc"}


# Quantization on load.


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_draft_bits_quantize_the_large_matrices_only(tmp_path, bits, group):
    save_drafter(tmp_path, **WIDE)
    weights = drafter_weights(DrafterConfig.from_dict(drafter_config(**WIDE)))
    model = load_drafter(tmp_path, draft_bits=bits, draft_group_size=group)
    kinds = {path: module for path, module in model.named_modules() if isinstance(module, LINEAR)}
    packed = {path for path, module in kinds.items() if isinstance(module, nn.QuantizedLinear)}
    assert packed == {path for path in kinds if path.rsplit(".", 1)[-1] in QUANTIZED}
    assert len(packed) == 2 * 7 + 1
    assert {path.rsplit(".", 1)[-1] for path in kinds.keys() - packed} == {"kernel_projection", "hidden_projection"}
    for path in packed:
        module = kinds[path]
        assert (module.bits, module.group_size) == (bits, group)
        expected = mx.quantize(weights[path + ".weight"], group_size=group, bits=bits)
        for got, want in zip((module.weight, module.scales, module.biases), expected, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=path)
    kept = {name: array for name, array in weights.items() if name.removesuffix(".weight") not in packed}
    got = parameters(model)
    for name, array in kept.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"draft_bits": 3}, ("draft_bits", 3, "4 or 8")),
        ({"draft_bits": "4"}, ("draft_bits", "'4'")),
        ({"draft_bits": True}, ("draft_bits", True)),
        ({"draft_bits": 4, "draft_group_size": 48}, ("draft_group_size", 48, "32, 64 or 128")),
        ({"draft_bits": 4, "draft_group_size": 64}, ("draft_group_size", 64, "intermediate_size (96)")),
        ({"draft_bits": 8, "draft_group_size": 128}, ("draft_group_size", 128, "hidden_size (64)")),
        ({"dtype": "float16"}, ("dtype", "float16")),
    ],
)
def test_impossible_quantization_is_refused_before_reading(tmp_path, settings, parts):
    save_drafter(tmp_path)
    refused(tmp_path, *parts, error=ConfigError, **settings)


# Files that MLX has already quantized.


def quantized_file(
    folder: Path, *, bits: int, modules: Any = None, group: int = 32, **changes: Any
) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """Write one; returns the dequantized weights and the tensors as stored."""
    raw, weights = fitting(**{**WIDE, **changes})
    raw["quantization"] = {"group_size": group, "bits": bits}
    stored, meant = {}, dict(weights)
    for name, array in weights.items():
        module = name.removesuffix(".weight")
        if array.ndim != 2 or (modules is not None and not modules(module)):
            stored[name] = array
            continue
        spelled = module + ".weight"  # MLX packs the codebooks as embeddings
        packed, scales, biases = mx.quantize(array, group_size=group, bits=bits)
        stored.update({spelled: packed, module + ".scales": scales, module + ".biases": biases})
        meant[name] = mx.dequantize(packed, scales, biases, group_size=group, bits=bits)
    write(folder, raw, stored)
    return meant, stored


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_files_with_codebooks(tmp_path, bits):
    meant, stored = quantized_file(tmp_path, bits=bits)
    model = load_drafter(tmp_path)
    got = parameters(model)
    packed = {path for path, module in model.named_modules() if isinstance(module, nn.QuantizedLinear)}
    assert packed == {name.removesuffix(".weight") for name in meant if meant[name].ndim == 2} - set(CODEBOOKS)
    for path in packed:
        np.testing.assert_array_equal(got[path + ".weight"], stored[path + ".weight"], err_msg=path)
    for codebook in CODEBOOKS:  # looked up row by row: unpacked, at their full width
        assert got[codebook].shape == (211, 32)
        np.testing.assert_array_equal(got[codebook], meant[codebook])


def test_quantized_file_drafts_like_its_dequantized_twin(tmp_path):
    meant, _ = quantized_file(tmp_path / "packed", bits=4)
    write(tmp_path / "plain", drafter_config(**WIDE), meant)
    taps = mx.random.normal((1, 11, 256), key=mx.random.key(3))
    block = mx.random.normal((1, 5, 128), key=mx.random.key(4))
    outcomes = []
    for folder in (tmp_path / "packed", tmp_path / "plain"):
        model = load_drafter(folder)
        context = model.new_context()
        model.append_context(taps, context, 11)
        hidden = model.hidden(block, context)[:, 1:]
        ids = mx.array([[[3, 8, 20]] * 4])
        module = model.candidate_selector
        books = (module.predecessor_codebook, module.successor_codebook)
        outcomes.append((hidden, neighbour_edges(ids, module.gate(hidden), mx.array([9]), *books)))
    for packed, unpacked in zip(*outcomes, strict=True):
        np.testing.assert_allclose(packed, unpacked, rtol=0, atol=2e-4)


def test_quantized_in_part_and_by_module(tmp_path):
    _, stored = quantized_file(tmp_path, bits=4, modules=lambda module: "mlp." in module)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["quantization"]["fc"] = {"group_size": 64, "bits": 8}
    packed, scales, biases = mx.quantize(stored["fc.weight"], group_size=64, bits=8)
    write(tmp_path, raw, {**stored, "fc.weight": packed, "fc.scales": scales, "fc.biases": biases})
    model = load_drafter(tmp_path)
    assert (model.fc.bits, model.fc.group_size) == (8, 64)
    assert (model.layers[1].mlp.up_proj.bits, model.layers[1].mlp.up_proj.group_size) == (4, 32)
    assert isinstance(model.layers[0].self_attn.q_proj, nn.Linear)


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
@pytest.mark.parametrize("prefix", ["", "model.", "language_model.", "model.language_model."])
@pytest.mark.parametrize("tensors", ["", "model.", "language_model.model."])
def test_settings_by_module_under_any_prefix(tmp_path, tensors, prefix, key):
    _, stored = quantized_file(tmp_path, bits=4, modules=lambda module: module != "layers.0.mlp.up_proj")
    raw = json.loads((tmp_path / "config.json").read_text())
    quantization = raw.pop("quantization")
    for module in ("layers.0.self_attn.q_proj", "fc", CODEBOOKS[0]):  # 8 bits in groups of the same size
        bare = fitting(**WIDE)[1][module if module in CODEBOOKS else module + ".weight"]
        parts = mx.quantize(bare, group_size=32, bits=8)
        stored.update(zip((module + ".weight", module + ".scales", module + ".biases"), parts, strict=True))
        quantization[prefix + module] = {"group_size": 32, "bits": 8}
    quantization[prefix + "layers.0.mlp.up_proj"] = False
    renamed = {tensors + name: array for name, array in stored.items()}
    write(tmp_path, {**raw, key: quantization}, renamed)
    model = load_drafter(tmp_path)
    assert (model.layers[0].self_attn.q_proj.bits, model.fc.bits, model.layers[1].self_attn.q_proj.bits) == (8, 8, 4)
    assert isinstance(model.layers[0].mlp.up_proj, nn.Linear)
    np.testing.assert_array_equal(model.fc.scales, stored["fc.scales"])
    sizes = memory_estimate(TARGET_CONFIGS["qwen3"], {**raw, key: quantization, "hidden_size": 128}, 8)
    unsaid = {name: value for name, value in quantization.items() if not isinstance(value, bool | dict)}
    assert sizes.drafter_weights > memory_estimate(TARGET_CONFIGS["qwen3"], {**raw, key: unsaid}, 8).drafter_weights


def test_a_renamed_module_and_its_settings(tmp_path):
    _, stored = quantized_file(tmp_path, bits=4, modules=lambda module: module == "fc")
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["quantization"] = {"group_size": 64, "bits": 8, "model.encoder.fc": {"group_size": 32, "bits": 4}}
    write(tmp_path, raw, {name.replace("fc.", "model.encoder.fc."): array for name, array in stored.items()})
    assert (load_drafter(tmp_path).fc.bits, load_drafter(tmp_path).fc.group_size) == (4, 32)


def test_two_spellings_that_say_different_things(tmp_path):
    quantized_file(tmp_path, bits=4)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["quantization"].update({"fc": {"bits": 8}, "model.fc": {"bits": 4}})
    (tmp_path / "config.json").write_text(json.dumps(raw))
    refused(tmp_path, "quantization.model.fc", "one setting of fc", error=ConfigError)


def test_quantized_files_are_not_quantized_again(tmp_path):
    quantized_file(tmp_path, bits=8)
    refused(tmp_path, "draft_bits", 4, "already quantized", error=ConfigError, draft_bits=4, draft_group_size=32)


@pytest.mark.parametrize(
    ("quantization", "parts"),
    [
        (None, ("quantization", "group_size and bits")),
        ({"group_size": 32}, ("quantization", "bits")),
        ({"group_size": 32, "bits": "4"}, ("quantization",)),
        ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, ("quantization", "mxfp4", "affine")),
        ({"quant_method": "fp8"}, ("quantization", "fp8", "affine")),
        ("4-bit", ("quantization", "4-bit")),
    ],
)
def test_unusable_quantization_settings(tmp_path, quantization, parts):
    quantized_file(tmp_path, bits=4)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["quantization"] = quantization
    (tmp_path / "config.json").write_text(json.dumps(raw))
    refused(tmp_path, *parts, error=ConfigError)


@pytest.mark.parametrize(
    ("name", "change", "parts"),
    [
        ("fc.weight", lambda a: a[:, :-1], ("tensor fc.weight", [128, 31], [128, 32])),
        ("fc.scales", lambda a: a[:-1], ("tensor fc.scales", [127, 8], [128, 8])),
        ("fc.biases", lambda a: None, ("tensor fc.biases", [128, 8])),
        (CODEBOOKS[0] + ".scales", lambda a: a[:-1], (CODEBOOKS[0] + ".scales", [210, 1], [211, 1])),
        (CODEBOOKS[0] + ".weight", lambda a: None, ("missing tensors", CODEBOOKS[0])),
    ],
)
def test_damaged_quantized_tensors(tmp_path, name, change, parts):
    _, stored = quantized_file(tmp_path, bits=4)
    changed = change(stored.pop(name))
    if changed is not None:
        stored[name] = changed
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored)
    refused(tmp_path, *parts)

"""`d2.load`: pairs that belong together, and everything that does not (docs/dflash2.md 2.4; CK-9, CK-23, T12).

`stops` demands that loading ends before a weight is read. Weight conventions are in test_target_weights.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import dflash2_mlx as d2
from dflash2_mlx.checkpoints.configs import check_pair
from dflash2_mlx.targets.registry import FAMILIES
from tests.checkpoint_files import nothing_is_read
from tests.messages import mentions
from tests.pairs import BOOTSTRAP
from tests.tiny import LAYERS, TARGET_CONFIGS, VOCAB, drafter_config, save_drafter, save_target

MINI = Path(d2.__file__).parent / "data" / "mini"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target` and `drafter` that belong together; not to be changed."""
    folder = tmp_path_factory.mktemp("pair")
    save_target(folder / "target", "qwen3_untied", tokenizer=BOOTSTRAP / "target")
    save_drafter(folder / "drafter")
    return folder


@pytest.fixture
def own_pair(pair: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(pair, tmp_path / "own"))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], name: str = "config.json") -> None:
    raw = json.loads((folder / name).read_text())
    change(raw)
    (folder / name).write_text(json.dumps(raw))


def stops(error: type[Exception], *parts: object, target: Any, drafter: Any = None, **settings: Any) -> None:
    with nothing_is_read(), pytest.raises(error) as caught:
        d2.load(target, drafter, **settings)
    mentions(caught.value, *parts)


# What loads.


def test_a_pair_loads_and_drafts(pair):
    engine = d2.load(pair / "target", pair / "drafter")
    assert engine.target_name == str(pair / "target")
    assert engine.drafter_name == str(pair / "drafter")
    assert engine.block_size == 5
    assert engine.context_length == 8192
    spec = engine.target.spec
    assert (spec.family, spec.num_layers, spec.vocab_size, spec.recurrent) == ("Qwen3", LAYERS, VOCAB, False)
    replies = {
        mode: d2.generate(engine, [3, 5, 9], d2.GenerationConfig(max_tokens=24, mode=mode, stop_token_ids=()))
        for mode in ("plain", "dflash2")
    }
    assert replies["plain"].token_ids == replies["dflash2"].token_ids
    assert replies["dflash2"].stats.mode == "dflash2" and replies["dflash2"].drafter == engine.drafter_name


def test_text_paths_work_like_path_objects(pair):
    engine = d2.load(str(pair / "target"), str(pair / "drafter"))
    assert engine.drafter is not None


def test_without_a_drafter(pair):
    engine = d2.load(pair / "target")
    assert (engine.drafter, engine.drafter_name, engine.block_size) == (None, None, None)


def test_mini_loads_by_name():
    engine = d2.load("mini")
    assert (engine.target_name, engine.drafter_name) == ("mini", "mini")
    assert engine.drafter is not None and engine.block_size == engine.drafter.config.block_size
    assert engine.stop_token_ids == {2}
    assert engine.target.spec.quantization == "4-bit group 64"
    assert d2.load().target_name == "mini"


def test_mini_with_another_drafter(tmp_path):
    shutil.copytree(MINI / "drafter", tmp_path / "other")
    engine = d2.load("mini", tmp_path / "other")
    assert engine.drafter_name == str(tmp_path / "other")


def test_draft_bits_reach_the_drafter(pair):
    engine = d2.load(pair / "target", pair / "drafter", draft_bits=8, draft_group_size=32)
    assert (engine.drafter.fc.bits, engine.drafter.fc.group_size) == (8, 32)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (7, None, {7}),
        ([7, 9], None, {7, 9}),
        (None, None, set()),
        (7, {"eos_token_id": [8, 9]}, {8, 9}),
        (7, {"eos_token_id": 8}, {8}),
        (7, {"temperature": 1.0}, {7}),
        (7, {"eos_token_id": None}, {7}),
    ],
)
def test_stop_tokens(own_pair, config, generation, expected):
    target = own_pair / "target"
    edit(target, lambda raw: raw.update(eos_token_id=config))
    if generation is not None:
        (target / "generation_config.json").write_text(json.dumps(generation))
    assert d2.load(target).stop_token_ids == expected | {0}  # 0 is the tokenizer's own


def test_stop_tokens_of_a_text_tower(tmp_path):
    target = save_target(tmp_path, "qwen3_5", tokenizer=BOOTSTRAP / "target")
    assert d2.load(target).stop_token_ids == {VOCAB - 1, 0}


# Pairs that do not belong together.


def test_a_drafter_is_no_target(pair):
    stops(d2.PairError, "target", "DFlash2DraftModel", "pass it as drafter", target=pair / "drafter")


def test_a_target_is_no_drafter(pair):
    stops(d2.ConfigError, "architectures", "DFlash2DraftModel", target=pair / "target", drafter=pair / "target")


def test_swapped_places(pair):
    stops(d2.PairError, "DFlash2DraftModel", target=pair / "drafter", drafter=pair / "target")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hidden_size": 128}, ("hidden_size", 128, 64)),
        ({"vocab_size": VOCAB + 1}, ("vocab_size", VOCAB + 1, VOCAB)),
        ({"num_target_layers": LAYERS + 1}, ("num_target_layers", LAYERS + 1, LAYERS)),
        ({"num_target_layers": None, "target_layer_ids": [0, LAYERS]}, ("target_layer_ids", LAYERS)),
        ({"mask_token_id": VOCAB}, ("mask_token_id", VOCAB)),
    ],
)
def test_a_drafter_made_for_another_target(pair, tmp_path, changes, parts):
    save_drafter(tmp_path, **changes)
    stops((d2.PairError, d2.ConfigError), *parts, target=pair / "target", drafter=tmp_path)


def test_taps_beyond_the_target_are_refused_by_the_pair_check_itself():
    config = d2.DrafterConfig.from_dict(drafter_config(num_target_layers=None, target_layer_ids=[0, LAYERS]))
    with pytest.raises(d2.PairError) as caught:
        check_pair(config, TARGET_CONFIGS["qwen3"])
    mentions(caught.value, "target_layer_ids", LAYERS)


def test_a_drafter_for_a_smaller_vocabulary_fits(pair, tmp_path):
    save_drafter(tmp_path, vocab_size=100, mask_token_id=205)  # the mask row may lie beyond the drafter's own ids
    engine = d2.load(pair / "target", tmp_path)
    result = d2.generate(engine, [3, 5, 9], d2.GenerationConfig(max_tokens=8, stop_token_ids=()))
    plain = d2.generate(engine, [3, 5, 9], d2.GenerationConfig(max_tokens=8, stop_token_ids=(), mode="plain"))
    assert result.token_ids == plain.token_ids


def test_versions_swapped(own_pair):
    edit(own_pair / "drafter", lambda raw: raw.update(architectures=["DFlashDraftModel"]))
    stops(d2.CheckpointError, "unknown tensors", target=own_pair / "target", drafter=own_pair / "drafter")
    edit(own_pair / "drafter", lambda raw: raw.update(architectures=["DFlash2DraftModel"], is_causal=None))
    stops(d2.ConfigError, "is_causal", target=own_pair / "target", drafter=own_pair / "drafter")


def test_the_pair_is_checked_before_anything_is_wrong_with_files(own_pair):
    # The cheapest refusal comes first: no file of a hopeless pair is opened.
    for part in ("target", "drafter"):
        (own_pair / part / "model.safetensors").write_bytes(b"cut")
    edit(own_pair / "drafter", lambda raw: raw.update(hidden_size=128))
    stops(d2.PairError, "hidden_size", target=own_pair / "target", drafter=own_pair / "drafter")


def test_the_drafters_files_are_checked_before_the_targets_are_read(own_pair):
    (own_pair / "drafter" / "model.safetensors").write_bytes(b"cut")
    stops(d2.CheckpointError, "drafter", target=own_pair / "target", drafter=own_pair / "drafter")


def test_impossible_draft_bits(pair):
    stops(d2.ConfigError, "draft_bits", 5, target=pair / "target", drafter=pair / "drafter", draft_bits=5)
    stops(d2.ConfigError, "draft_group_size", 64, target=pair / "target", drafter=pair / "drafter", draft_bits=4)


def test_draft_bits_without_a_drafter(pair):
    stops(d2.ConfigError, "draft_bits", 4, "drafter", target=pair / "target", draft_bits=4)


# Targets that cannot be loaded.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_theta", math.nan),
        ("rope_theta", math.inf),
        ("rope_theta", -5.0),
        ("rope_theta", 0),
        ("rope_parameters", {"rope_theta": math.nan}),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("max_position_embeddings", 0),
        ("num_attention_heads", 0),
        ("num_attention_heads", math.nan),
        ("head_dim", -1),
        ("intermediate_size", "96"),
    ],
)
def test_target_settings_that_mlx_lm_would_not_follow(own_pair, key, value):
    edit(own_pair / "target", lambda raw: raw.update({key: value}))
    stops(d2.ConfigError, f"target {key}", "expected", target=own_pair / "target", drafter=own_pair / "drafter")


def test_a_norm_weight_that_is_not_finite(own_pair):
    file = own_pair / "target" / "model.safetensors"
    weights = mx.load(str(file))
    name = "model.layers.1.input_layernorm.weight"
    mx.save_safetensors(str(file), {**weights, name: mx.full(weights[name].shape, math.nan)}, {"format": "mlx"})
    with pytest.raises(d2.CheckpointError) as caught:
        d2.load(own_pair / "target", own_pair / "drafter")
    mentions(caught.value, "not finite", name)


@pytest.mark.parametrize("eps", [math.nan, math.inf, -1e-6, "1e-6", None, True])
def test_a_norm_that_would_spoil_every_number(own_pair, eps):
    edit(own_pair / "target", lambda raw: raw.update(rms_norm_eps=eps))
    stops(d2.ConfigError, "rms_norm_eps", repr(eps), target=own_pair / "target", drafter=own_pair / "drafter")


@pytest.mark.parametrize("kind", ["gpt2", None, "qwen3_next", 5, ["qwen3"]])
def test_an_unsupported_family_lists_the_supported_ones(own_pair, kind):
    edit(own_pair / "target", lambda raw: raw.update(model_type=kind))
    stops(
        d2.UnsupportedModelError,
        "model_type",
        repr(kind),
        "llama, mistral",
        "qwen3_5",
        "muse_glimmer",
        target=own_pair / "target",
        drafter=own_pair / "drafter",
    )


def test_every_supported_family_has_a_tiny_model():
    assert {config["model_type"] for config in TARGET_CONFIGS.values()} | {"qwen3_vl_moe"} == set(FAMILIES)


@pytest.mark.parametrize("part", ["target", "drafter"])
@pytest.mark.parametrize("content", ["", "{", "[]", "null", b"\xff\xfe\x00", pytest.param("[" * 100_000, id="nested")])
def test_a_damaged_config(own_pair, part, content):
    file = own_pair / part / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    stops(d2.CheckpointError, "config.json", "JSON", target=own_pair / "target", drafter=own_pair / "drafter")


def test_a_folder_without_config(tmp_path):
    stops(d2.CheckpointError, "got no config.json", target=tmp_path)


@pytest.mark.parametrize("source", ["no/such/folder", "./nothing", "nothing", Path("owner/name"), "~/nothing", ""])
def test_no_such_folder(source):
    # What cannot be a Hub id is not looked for there.
    parts = (repr(str(source)), "an existing folder or a Hub id")
    stops(d2.CheckpointError, "model", *parts, target=source)
    stops(d2.CheckpointError, "drafter", *parts, target="mini", drafter=source)


def test_a_hub_id_that_cannot_be_reached():
    stops(d2.CheckpointError, "model", "'nobody/nothing'", "reachable Hub repository", target="nobody/nothing")


def test_target_files_cut_short(own_pair):
    file = own_pair / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    stops(d2.CheckpointError, "target", "cut short", target=own_pair / "target")


def test_a_missing_target_shard(own_pair):
    target = own_pair / "target"
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    stops(d2.CheckpointError, "missing weight files", "model-00002-of-00002.safetensors", target=target)


def test_missing_and_unknown_target_tensors(own_pair):
    file = own_pair / "target" / "model.safetensors"
    weights = dict(mx.load(str(file)))
    norm = weights.pop("model.norm.weight")
    mx.save_safetensors(str(file), weights)
    with pytest.raises(d2.CheckpointError) as caught:
        d2.load(own_pair / "target")
    mentions(caught.value, "model.norm.weight")
    mx.save_safetensors(str(file), {**weights, "model.norm.weight": norm, "model.extra.weight": norm})
    with pytest.raises(d2.CheckpointError) as caught:
        d2.load(own_pair / "target")
    mentions(caught.value, "model.extra.weight")


@pytest.mark.parametrize("missing", ["tokenizer.json", "both"])
def test_a_target_without_tokenizer(own_pair, missing):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if missing in (name, "both"):
            (own_pair / "target" / name).unlink()
    stops(d2.CheckpointError, "tokenizer", target=own_pair / "target")


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"added_tokens": []}'])
def test_a_damaged_tokenizer(own_pair, content):
    (own_pair / "target" / "tokenizer.json").write_text(content)
    stops(d2.CheckpointError, "tokenizer", target=own_pair / "target")


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_damaged_generation_config(own_pair, content):
    (own_pair / "target" / "generation_config.json").write_text(content)
    stops(d2.CheckpointError, "generation_config.json", "JSON", target=own_pair / "target")


@pytest.mark.parametrize("layers", [None, "4", 4.0])
def test_a_target_config_without_layer_count(own_pair, layers):
    edit(own_pair / "target", lambda raw: raw.update(num_hidden_layers=layers))
    stops(d2.ConfigError, "num_hidden_layers", repr(layers), target=own_pair / "target", drafter=own_pair / "drafter")


def test_an_unknown_target_dtype(pair):
    stops(
        d2.ConfigError,
        "target_dtype",
        "'float16'",
        "auto, bfloat16 or float32",
        target=pair / "target",
        target_dtype="float16",
    )


# The dtype of activations.


def dtypes(engine: d2.Engine) -> set[mx.Dtype]:
    return {array.dtype for _, array in tree_flatten(engine.target.text_model.parameters())}


def test_target_dtypes(tmp_path, monkeypatch):
    target = save_target(tmp_path, "qwen3_5", bits=4, tokenizer=BOOTSTRAP / "target")
    monkeypatch.setattr(
        "dflash2_mlx.checkpoints.precision.fast_blas", lambda: False
    )  # with one, auto unpacks; test_blas.py
    auto = d2.load(target)
    assert dtypes(auto) == {mx.uint32, mx.float32}  # packed weights, float32 activations on the CPU back-end
    assert auto.target.spec.quantization == "4-bit group 32"
    assert "4-bit" in auto.row_cost_note
    assert dtypes(d2.load(target, target_dtype="bfloat16")) == {mx.uint32, mx.bfloat16, mx.float32}  # A_log stays
    exact = d2.load(target, target_dtype="float32")
    assert dtypes(exact) == {mx.float32}
    ids = mx.array([[3, 5, 9, 100]])
    logits = [engine.target.forward(ids, engine.target.new_state()).logits for engine in (auto, exact)]
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-4)


def test_auto_runs_bfloat16_files_in_float32_on_the_cpu(own_pair):
    file = own_pair / "target" / "model.safetensors"
    weights = {name: array.astype(mx.bfloat16) for name, array in mx.load(str(file)).items()}
    mx.save_safetensors(str(file), weights)
    assert dtypes(d2.load(own_pair / "target")) == {mx.float32}
    assert dtypes(d2.load(own_pair / "target", target_dtype="bfloat16")) == {mx.bfloat16}

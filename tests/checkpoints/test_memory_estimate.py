"""The memory estimate against what MLX allocates: weights to the byte, caches and peaks within stated bounds."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

import dflash2_mlx as d2
from dflash2_mlx import analysis
from dflash2_mlx.analysis import machine
from dflash2_mlx.checkpoints.files import MINI
from dflash2_mlx.checkpoints.memory import Precision, memory_estimate
from dflash2_mlx.checkpoints.shapes import target_shape
from dflash2_mlx.decode.request import RoundResult
from dflash2_mlx.decode.session import DFlash2Session, Request
from tests.published import DFLASH2
from tests.runs import lively_target, thinned
from tests.tiny import TARGET_CONFIGS, drafter_config, make_mlx_model, make_tiny_drafter, save_drafter, save_target

ROOT = Path(__file__).resolve().parents[2]
SINGLE = Precision(target_bytes=4, drafter_bytes=4)
LONG = [(7 * i + i // 13) % 200 for i in range(4000)]
GIGA = 10**9

# mlx-community/Qwen3.8-27B-4bit as the shared specification describes the family: hidden 5120, 64 layers.
QWEN_27B = {
    "model_type": "qwen3_5",
    "quantization": {"group_size": 64, "bits": 4},
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 24,
        "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 17408, "vocab_size": 248320,
        "linear_num_value_heads": 48, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "tie_word_embeddings": False,
    },
}  # fmt: skip


def text_parameters(model: Any) -> dict[str, mx.array]:
    inner = model.language_model if "language_model" in model else model
    return dict(tree_flatten(inner.parameters()))


@pytest.mark.parametrize("family", TARGET_CONFIGS)
def test_tensors_are_those_of_the_module(family: str) -> None:
    held = text_parameters(make_mlx_model(TARGET_CONFIGS[family]))
    assert dict(target_shape(TARGET_CONFIGS[family]).tensors) == {name: array.shape for name, array in held.items()}


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "qwen3_5_moe", "muse_glimmer"])
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_target_weights_to_the_byte(family: str, bits: int | None) -> None:
    config = json.loads(json.dumps(TARGET_CONFIGS[family]))
    if "moe" in family:  # a multiple of the group size
        config["text_config"].update(moe_intermediate_size=64, shared_expert_intermediate_size=64)
    held = text_parameters(make_mlx_model(config, bits=bits))
    if bits is not None:
        config["quantization"] = {"group_size": 32, "bits": bits}
    expected = sum(array.nbytes for array in held.values())
    assert memory_estimate(config, None, 100, precision=SINGLE).target_weights == expected


def test_decay_stays_in_single_precision() -> None:
    half, single = (memory_estimate(TARGET_CONFIGS["qwen3_5"], None, 9, precision=Precision(n)) for n in (2, 4))
    heads, recurrent_layers = 4, 3
    assert 2 * half.target_weights - single.target_weights == 4 * heads * recurrent_layers


def test_exceptions_of_a_mixed_quantization() -> None:
    plain = {**TARGET_CONFIGS["qwen3"], "quantization": {"group_size": 32, "bits": 4}}
    down = "language_model.model.layers.1.mlp.down_proj"
    exceptions = {"model.embed_tokens": False, down: {"group_size": 32, "bits": 8}}
    mixed = {**plain, "quantization": {**plain["quantization"], **exceptions}}
    numbers, rows = 211 * 64, 64 * 96
    grown = memory_estimate(mixed, None, 9).target_weights - memory_estimate(plain, None, 9).target_weights
    assert grown == (numbers * 2 - (numbers // 2 + numbers // 32 * 4)) + rows // 2


@pytest.mark.parametrize("bits", [None, 4])
def test_what_a_loaded_pair_takes(tmp_path: Path, bits: int | None) -> None:
    """Both models as `load` holds them on this machine, the drafter's doubled weights included."""
    if mx.default_device() != mx.Device(mx.cpu):
        pytest.skip("on a GPU the loader keeps bfloat16")
    wide = {"hidden_size": 64, "head_dim": 32, "selector_rank": 32}
    target = save_target(tmp_path / "t", "qwen3_5", bits=4, tokenizer=ROOT / "dflash2_mlx/data/mini/target")
    drafter = save_drafter(tmp_path / "d", **wide)
    gc.collect()
    mx.clear_cache()  # a buffer that other tests left may be larger than what is asked for, and counts whole
    before = mx.get_active_memory()
    engine = d2.load(target, drafter, draft_bits=bits, draft_group_size=32)
    raw = {**TARGET_CONFIGS["qwen3_5"], "quantization": {"group_size": 32, "bits": 4}}
    held = d2.load_precision(draft_bits=bits, draft_group_size=32, target_config=raw)
    estimate = memory_estimate(raw, drafter_config(**wide), 10, precision=held)
    counted = estimate.target_weights + estimate.drafter_weights
    assert engine.drafter is not None
    for _ in range(100):  # the owner thread may still hold what loading read, until it has nothing to do
        gc.collect()
        taken = mx.get_active_memory() - before
        if taken <= counted + 48_000:
            break
        time.sleep(0.02)
    assert counted <= taken <= counted + 48_000, "small vectors kept twice, and what the allocator rounds up"


@pytest.mark.parametrize(("family", "length"), thinned(["qwen3", "qwen3_5", "muse_glimmer"], [300, 4000]))
def test_caches_and_peak_of_a_long_prompt(family: str, length: int) -> None:
    session = DFlash2Session(lively_target(family), make_tiny_drafter(sliding_window=64))
    estimate = memory_estimate(
        TARGET_CONFIGS[family], drafter_config(sliding_window=64), length, precision=SINGLE, prefill_chunk=128
    )
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    session.begin(Request(LONG[:length], 40, width=5, prefill_chunk=128))
    while not isinstance(session.step(), RoundResult):
        pass
    for _ in range(5):
        session.step()
    state = sum(array.nbytes for array in session.memory.state.arrays() if array.ndim > 1)
    held = session.memory.context
    assert held is not None
    context = sum(array.nbytes for array in held.arrays() if array.ndim > 1)
    assert state <= estimate.target_cache and context <= estimate.drafter_cache
    if family != "muse_glimmer":  # where windows keep most layers short, only the bound can be right
        assert state > 0.2 * estimate.target_cache
    peak, scratch = mx.get_peak_memory() - before, estimate.total - estimate.target_weights - estimate.drafter_weights
    assert peak <= scratch < 4 * peak, f"{family} at {length}: {peak} bytes against {scratch}"


@pytest.mark.parametrize("name", DFLASH2)
def test_published_drafters(name: str) -> None:
    """Every parameter of the published table, in bfloat16, and the context's K and V weights once more."""
    published = DFLASH2[name]
    config = d2.DrafterConfig.from_dict(published.raw)
    doubled = 2 * config.num_layers * config.num_kv_heads * config.head_dim * config.hidden_size
    raw_target = {**TARGET_CONFIGS["qwen3"], "num_hidden_layers": 100}
    estimate = memory_estimate(raw_target, config, 1000)
    assert estimate.drafter_weights == 2 * (published.parameters + doubled)


def test_the_announced_pair_fits_32_gigabytes_and_the_context_counts() -> None:
    pair = (QWEN_27B, DFLASH2["Qwen3.8-27B"].raw)
    small, large = memory_estimate(*pair, 8192), memory_estimate(*pair, 131072)
    assert 14 * GIGA < small.target_weights < 16 * GIGA  # 27e9 weights of 4.5 bits
    assert small.total < 24 * GIGA
    per_token = 16 * 2 * 4 * 256 * 2  # 16 full layers, K and V, 4 heads of 256, bfloat16
    assert large.target_cache - small.target_cache == 2 * (131072 - 8192) * per_token
    assert large.drafter_cache == small.drafter_cache, "its window bounds it"


def test_the_mini_pair_and_plain_decoding() -> None:
    folder = ROOT / "dflash2_mlx" / "data" / MINI
    target, drafter = (json.loads((folder / part / "config.json").read_text()) for part in ("target", "drafter"))
    both, plain = memory_estimate(target, drafter, 1000), memory_estimate(target, None, 1000)
    assert plain.drafter_weights == plain.drafter_cache == plain.taps == 0
    assert both.target_weights == plain.target_weights
    assert both.total == sum(value for key, value in both.to_dict().items() if key not in ("context", "total"))


@pytest.mark.parametrize("context", [0, -1, True, 1.5])
def test_a_context_that_is_none(context: Any) -> None:
    with pytest.raises(d2.ConfigError, match=r"^context: got .*, expected an integer >= 1$"):
        memory_estimate(TARGET_CONFIGS["qwen3"], None, context)


def test_what_is_no_target() -> None:
    with pytest.raises(d2.UnsupportedModelError, match=r"^model_type: got 'bert'"):
        memory_estimate({"model_type": "bert"}, None, 10)


def test_the_limit_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = analysis.memory_limit()
    assert limit is None or limit > GIGA
    monkeypatch.setattr(machine, "backend", lambda: "metal")
    monkeypatch.setattr(machine.mx, "device_info", lambda: {"memory_size": 9, "max_recommended_working_set_size": 7})
    assert analysis.memory_limit() == 7
    monkeypatch.setattr(machine, "backend", lambda: "cpu")
    assert analysis.memory_limit() == 9

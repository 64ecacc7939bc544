"""The registry says what the sources say, suggests by name and shape, and checks real pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.errors import AppError
from dflash2_app.models import registry
from dflash2_app.models.registry import bare_name, best_fit, check_pair, config_folder, known_pairs, suggest
from tests.published import DFLASH2
from tests.tiny import TARGET_CONFIGS, drafter_config

BY_NAME = {pair.target.name: pair for pair in known_pairs() if pair.version == 2}
QWEN = BY_NAME["Qwen3.8-27B"]


@pytest.mark.parametrize("name", DFLASH2)
def test_facts_agree_with_the_published_configs(name: str) -> None:
    """`tests/published.py` was written from the specification on its own."""
    pair, published = BY_NAME[name], DFLASH2[name]
    raw = published.raw
    assert (pair.target.hidden_size, pair.target.vocab_size) == (raw["hidden_size"], raw["vocab_size"])
    assert pair.target.layers == raw["num_target_layers"]
    assert pair.block_size == raw["dflash_config"]["block_size"]
    assert pair.drafter_parameters == published.parameters
    assert pair.drafter_bytes in (None, 2 * published.parameters)


def test_every_published_pair_is_there_with_the_announced_setup() -> None:
    assert set(BY_NAME) == set(DFLASH2)
    assert all((pair.runtime_block_size, pair.verify_mode) == (5, "dflash") for pair in known_pairs())
    assert QWEN.sampling == {"temperature": 1.0, "top_p": 0.95, "top_k": 20}
    assert QWEN.mirrors == ("z-lab/Qwen3.8-27B-DFlash2",)
    assert registry.find_drafter("Z-LAB/qwen3.8-27b-dflash2") == QWEN
    assert registry.find_drafter("nobody/x") is None


def test_licences() -> None:
    flash = BY_NAME["GLM-5.3-Flash"]
    assert flash.non_commercial and "CC BY-NC-ND 4.0: not for commercial use" in str(flash.licence_note())
    assert not QWEN.non_commercial and QWEN.licence_note() is None
    unknown = BY_NAME["GLM-5.3"]
    assert unknown.licence is None and "not on record" in str(unknown.licence_note())


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("mlx-community/Qwen3.8-27B-4bit", "qwen3.8-27b"),
        ("mlx-community--Qwen3.8-27B-MLX-8bit", "qwen3.8-27b"),
        ("/models/x/Qwen3.8-27B-mxfp4/", "qwen3.8-27b"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3.6-35b-a3b"),
        ("Qwen3-4B-Instruct-2507-bf16", "qwen3-4b-instruct-2507"),
        ("GLM-5.3-Flash-4bit-DWQ", "glm-5.3-flash"),
        ("GLM-5.3", "glm-5.3"),
    ],
)
def test_bare_names(name: str, bare: str) -> None:
    assert bare_name(name) == bare


def shapes(name: str, **changes: Any) -> dict[str, Any]:
    target = BY_NAME[name].target
    stated = {"num_hidden_layers": target.layers, "hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    return {**stated, **changes}


def test_suggestions() -> None:
    assert [item.pair for item in suggest("mlx-community/Qwen3.8-27B-4bit")] == [QWEN]
    assert suggest("someone/Unknown-3B") == []
    named = suggest("Qwen3.8-27B-8bit", {"text_config": shapes("Qwen3.8-27B")})
    assert [(item.pair, item.by_name) for item in named] == [(QWEN, True)]
    tuned = suggest("someone/Fine-Tune", shapes("Qwen3.8-27B"))
    assert [(item.pair, item.by_name) for item in tuned] == [(QWEN, False)]
    assert "which has the same shapes" in tuned[0].reason
    assert suggest("Qwen3.8-27B-pruned-4bit", shapes("Qwen3.8-27B", num_hidden_layers=60)) == []
    assert suggest("Qwen3.8-27B-4bit", shapes("Qwen3.8-27B", num_hidden_layers=60)) == [], "the name is not enough"
    assert suggest(config=shapes("GLM-5.3"))[0].pair == BY_NAME["GLM-5.3"]


def test_version_1_drafters_are_suggested_by_name_and_after_those_of_version_2() -> None:
    found = suggest("mlx-community/Qwen3-8B-4bit", {"num_hidden_layers": 36, "hidden_size": 4096, "vocab_size": 151936})
    assert [(item.pair.drafter, item.by_name) for item in found] == [("z-lab/Qwen3-8B-DFlash-b16", True)]
    both = [item.pair for item in suggest("Qwen3.6-35B-A3B-4bit")]
    assert [pair.version for pair in both] == [2, 1]
    assert len({pair.drafter for pair in known_pairs()}) == len(known_pairs())
    assert {item.pair.version for item in suggest("someone/Tuned", shapes("GLM-5.3"))} == {2}


def test_best_fit() -> None:
    need = 15_200_000_000 + 3_848_808_960 + registry.BEST_FIT_RESERVE_BYTES
    assert best_fit(need) == QWEN and best_fit(need - 1) is None


def folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, None),
        ({"hidden_size": 128}, "hidden_size: got 128 in the drafter"),
        ({"vocab_size": 10_000}, "vocab_size: got 10000 in the drafter"),
        ({"num_target_layers": 9}, "num_target_layers: got 9 in the drafter"),
        ({"target_layer_ids": [1, 77]}, "target_layer_ids: got "),
    ],
)
def test_the_pairing_check(tmp_path: Path, changes: dict[str, Any], word: str | None) -> None:
    target = folder(tmp_path / "t", TARGET_CONFIGS["qwen3"])
    raw = drafter_config()
    for name, value in changes.items():
        where = raw["dflash_config"] if name in raw["dflash_config"] else raw
        where[name] = value
    drafter = folder(tmp_path / "d", raw)
    if word is None:
        assert check_pair(target, drafter).block_size == raw["dflash_config"]["block_size"]
        return
    with pytest.raises(AppError) as caught:
        check_pair(target, drafter)
    assert str(caught.value).startswith(f"{drafter} for {target}: ") and word in str(caught.value)


def test_configs_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = folder(tmp_path / "x", {})
    assert config_folder(str(local)) == local
    assert config_folder(str(tmp_path)) is None and config_folder("bare") is None
    assert config_folder("owner/name") is None and config_folder("o w/n") is None
    commit = "0" * 40
    cached = folder(tmp_path / "hub" / "models--owner--name" / "snapshots" / commit, {})
    (cached.parents[1] / "refs").mkdir()
    (cached.parents[1] / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert config_folder("owner/name") == cached

"""What a config is said to be."""

from __future__ import annotations

from typing import Any

import pytest

import dflash2_mlx as d2
from tests.published import DFLASH2, dflash1, muse_assistant
from tests.tiny import TARGET_CONFIGS


@pytest.mark.parametrize("family", TARGET_CONFIGS)
def test_targets(family: str) -> None:
    facts = d2.describe_config(TARGET_CONFIGS[family])
    assert (facts.kind, facts.context_length, facts.quantization, facts.reason) == ("target", 8192, None, None)
    assert facts.family


def test_quantization_and_drafters() -> None:
    quantized = {**TARGET_CONFIGS["qwen3"], "quantization": {"group_size": 64, "bits": 4}}
    assert d2.describe_config(quantized).quantization == "4-bit group 64"
    for raw, family, block in (
        (DFLASH2["Qwen3.8-27B"].raw, "DFlash 2", 8), (dflash1(), "DFlash", 16), (muse_assistant(), "DFlash", 16),
        (dflash1(num_target_layers=None, dflash_config={"mask_token_id": 1}), "DFlash", 16),
    ):  # fmt: skip
        facts = d2.describe_config(raw)
        assert (facts.kind, facts.family, facts.block_size) == ("drafter", family, block)


@pytest.mark.parametrize(
    ("config", "family", "words"),
    [
        ({"model_type": "bert"}, "bert", "model_type: got 'bert'"),
        ({}, None, "model_type: got None"),
        ({"model_type": ["x"], "architectures": "x"}, None, "model_type: got ['x']"),
        ({"model_type": "qwen3"}, "qwen3", "target hidden_size: got None"),
        ({"architectures": ["DFlash2DraftModel"]}, None, "num_hidden_layers: got None"),
        ({**TARGET_CONFIGS["qwen3"], "quantization": {"mode": "x"}}, "qwen3", "quantization: got"),
    ],
)
def test_the_rest_is_told_with_its_reason(config: dict[str, Any], family: str | None, words: str) -> None:
    facts = d2.describe_config(config)
    assert (facts.kind, facts.family) == ("other", family)
    assert words in str(facts.reason)

"""Experts that are not quantized: MLX's CPU back-end multiplies them in float32 only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

import dflash2_mlx as d2
from dflash2_mlx.device.layout import on_cpu
from tests.pairs import BOOTSTRAP
from tests.runs import target_config
from tests.tiny import make_mlx_model

FAMILIES = ("qwen3_moe", "qwen3_5_moe")
SHORT = d2.GenerationConfig(max_tokens=3)

pytestmark = pytest.mark.skipif(not on_cpu(), reason="a GPU has kernels for half precision")


def save(folder: Path, family: str, dtype: mx.Dtype, *, keep: str | None = "", said: bool = True) -> Path:
    """A target on disk.

    Args:
        keep: modules with this in their paths are left unquantized; None quantizes all that can be.
        said: whether the config tells which.
    """
    config = target_config(family)
    model = make_mlx_model(config, dtype=dtype)
    if keep != "":
        kept: list[str] = []

        def packs(path: str, module: Any) -> bool:
            if keep is not None and keep in path:
                kept.append(path)
                return False
            return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0

        nn.quantize(model, group_size=32, bits=4, class_predicate=packs)
        told = dict.fromkeys(kept, False) if said else {}
        config["quantization"] = {"group_size": 32, "bits": 4, **told}
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((BOOTSTRAP / "target" / name).read_bytes())
    return folder


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_auto_is_float32_and_says_so(tmp_path, family, dtype):
    engine = d2.load(save(tmp_path, family, dtype))
    (notice,) = engine.load_notices
    assert notice.startswith("target_dtype auto: float32, as experts that are not quantized")
    result = d2.generate(engine, [3, 5, 9], SHORT)
    assert len(result.token_ids) == 3 and notice in result.stats.notices
    assert engine.target.embed(mx.array([[1]])).dtype == mx.float32
    assert d2.load(tmp_path, target_dtype="float32").load_notices == ()


@pytest.mark.parametrize(
    ("keep", "said"), [("", True), ("switch_mlp", True), ("down_proj", True), ("2.mlp.switch_mlp", False)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_refused_by_name(tmp_path, family, keep, said):
    save(tmp_path, family, mx.bfloat16, keep=keep, said=said)
    with pytest.raises(d2.SettingError, match=r"target_dtype: got 'bfloat16', expected 'auto' or 'float32'.* experts"):
        d2.load(tmp_path, target_dtype="bfloat16")
    config = json.loads((tmp_path / "config.json").read_text())
    d2.load_precision(target_dtype="bfloat16", target_config=config)  # an estimate refuses nothing
    for dtype in ("auto", "float32"):
        assert len(d2.generate(d2.load(tmp_path, target_dtype=dtype), [3, 5, 9], SHORT).token_ids) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_quantized_experts_run_in_half_precision(tmp_path, family):
    engine = d2.load(save(tmp_path, family, mx.bfloat16, keep=None), target_dtype="bfloat16")
    assert len(d2.generate(engine, [3, 5, 9], SHORT).token_ids) == 3
    assert engine.load_notices == ()

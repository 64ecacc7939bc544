"""The acceptance of the authors' package on the bootstrap pair, round by round.

`tests/golden/bootstrap.json` holds what the authors' MLX back-end did greedily on eight code prompts at three
widths: the emitted ids and the tokens committed in every round. Their run used float32 weights, dequantized from
the 4-bit target with float32 scales, and OpenBLAS, whose sums differ in the last bits from those of MLX's own CPU
matmul. Near-ties could therefore part the texts. Measured with mlx 0.32.4 on Linux, they do not: all 8 texts and all
24 lists of committed tokens are identical, with OpenBLAS and without it. So these tests ask
for identity. Should another MLX part a text, `MAY_PART` is how many of the eight may; a run whose text parts says
nothing about acceptance and is left out, all others stay exact.

A process has one BLAS, so a (slow) test runs this file as a child process for the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from tests.pairs import BOOTSTRAP, bootstrap_pair

HERE = Path(__file__).resolve().parent
RECORD = json.loads((HERE / "golden" / "bootstrap.json").read_text(encoding="utf-8"))
MAY_PART = 1
SHORT = 56  # tokens of the fast in-process run; the recorded runs have 160
WIDTHS = [8, 5, 3]


@cache
def engine() -> d2.Engine:
    return bootstrap_pair(target_dtype="float32")


def run(prompt: list[int], width: int, max_tokens: int) -> tuple[list[int], list[int]]:
    """Emitted ids (a stop token would be left out; none occurs) and the tokens committed per round."""
    config = d2.GenerationConfig(max_tokens=max_tokens, block_size=width)
    ids: list[int] = []
    committed: list[int] = []
    for event in d2.stream_generate(engine(), prompt, config):
        ids += event.token_ids
        if event.round is not None:
            committed.append(event.round.committed)
    return ids, committed


def check_width(width: int, max_tokens: int) -> dict[str, Any]:
    """Run every prompt at one width; returns how many texts are the authors', and which rounds differ there."""
    same, differing = 0, []
    runs = RECORD["widths"][str(width)]["runs"]
    for number, (prompt, theirs) in enumerate(zip(RECORD["prompts"], runs, strict=True)):
        ids, committed = run(prompt["prompt_token_ids"], width, max_tokens)
        if ids != prompt["token_ids"][:max_tokens]:
            continue
        same += 1
        expected = theirs["committed"]
        if max_tokens < len(prompt["token_ids"]):  # a shorter run cuts its last round
            committed, expected = committed[:-1], expected[: len(committed) - 1]
        if committed != expected:
            differing.append((number, committed, expected))
    return {"same": same, "differing": differing}


def assert_like_the_authors(report: dict[str, Any]) -> None:
    assert report["differing"] == []
    assert report["same"] >= len(RECORD["prompts"]) - MAY_PART, f"only {report['same']} of 8 texts are the authors'"


def test_rounds_equal_the_authors() -> None:
    assert_like_the_authors(check_width(8, SHORT))


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_whole_runs_equal_the_authors(width: int) -> None:
    assert_like_the_authors(check_width(width, RECORD["max_tokens"]))


def run_with_mlx_blas(widths: list[int]) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.test_bootstrap", *map(str, widths)],
        cwd=HERE.parent, env={**os.environ, "DFLASH2_BLAS": "off"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.mark.slow
def test_whole_runs_equal_the_authors_with_mlx_own_blas() -> None:
    for report in run_with_mlx_blas(WIDTHS).values():
        assert_like_the_authors(report)


def test_float32_target_keeps_the_stored_weights() -> None:
    """Dequantized with the scales in bfloat16, weights are rounded: three of the eight texts then part."""
    stored = mx.load(str(BOOTSTRAP / "target" / "model.safetensors"))
    name = "model.layers.1.mlp.up_proj"
    packed, scales, biases = (
        np.array(stored[f"{name}.{part}"].astype(kind))
        for part, kind in (("weight", mx.uint32), ("scales", mx.float32), ("biases", mx.float32))
    )
    digits = (packed[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    expected = digits.reshape(len(packed), -1, 64) * scales[..., None] + biases[..., None]
    weight = engine().target.text_model.model.layers[1].mlp.up_proj.weight
    np.testing.assert_allclose(np.array(weight), expected.reshape(weight.shape), rtol=1e-6, atol=1e-7)


if __name__ == "__main__":
    print(json.dumps({width: check_width(int(width), RECORD["max_tokens"]) for width in sys.argv[1:]}))

"""Record what the authors' package reaches on the bootstrap pair, greedily.

Run from the repository root in the environment of ``make_golden.py``; preload
OpenBLAS, or it takes much longer::

    python -m tests.golden.make_bootstrap PAIR_FOLDER

PAIR_FOLDER holds ``target/`` (4-bit) and ``drafter/`` (bfloat16).  Both are
dequantized to float32 first, so that the numbers say something about the
method and not about a kernel.  Writes ``bootstrap.json``: per prompt the
emitted ids (plain greedy decoding and every width must agree on them), per
width and prompt the tokens committed in every round.  The acceptance length is
the mean over rounds of the tokens committed, and over prompts the unweighted
mean of that.  The first token comes from the prefill and is in no round.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from dflash import model_mlx as authors
from mlx import nn
from mlx_lm.models import qwen3
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_tokenizer

from tests.golden import run_mlx
from tests.golden.variants import json_text

WIDTHS = (8, 5, 3)
MAX_TOKENS = 160
PROMPTS = (
    "import os\nimport sys\n\n\ndef main(argv=None):\n",
    'class Stack:\n    """A last-in, first-out list."""\n\n    def __init__(self):\n        self._items = []\n',
    "def read_lines(path):\n    with open(path, encoding='utf-8') as file:\n",
    "import unittest\n\n\nclass TestParser(unittest.TestCase):\n    def setUp(self):",
    "try:\n    import ssl\nexcept ImportError:",
    "def gcd(a, b):\n    while b:\n",
    "    def __repr__(self):\n        return",
    "for name in sorted(os.listdir(directory)):\n    if name.startswith('.'):",
)


def load_target(folder: Path) -> qwen3.Model:
    """Load a 4-bit Qwen3 target with float32 weights."""
    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization")
    stored = mx.load(str(folder / "model.safetensors"))
    weights = {}
    for name, tensor in stored.items():
        prefix, _, kind = name.rpartition(".")
        if kind in ("scales", "biases"):
            continue
        if f"{prefix}.scales" in stored:
            scales, biases = stored[f"{prefix}.scales"], stored[f"{prefix}.biases"]
            tensor = mx.dequantize(
                tensor,
                scales.astype(mx.float32),
                biases.astype(mx.float32),
                group_size=quantization["group_size"],
                bits=quantization["bits"],
            )
        weights[name] = tensor.astype(mx.float32)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    model.load_weights(list(model.sanitize(weights).items()))
    model.eval()
    return model


def load_drafter(folder: Path) -> authors.DFlashDraftModel:
    """Load the drafter with float32 weights."""
    stored = mx.load(str(folder / "model.safetensors"))
    weights = {name: tensor.astype(mx.float32) for name, tensor in stored.items()}
    return run_mlx.build(json.loads((folder / "config.json").read_text()), weights)


def plain_greedy(target: nn.Module, prompt: list[int], eos: set[int]) -> list[int]:
    """Greedy decoding of the target alone."""
    cache = make_prompt_cache(target)
    pending, tokens = mx.array([prompt]), []
    while len(tokens) < MAX_TOKENS:
        token = mx.argmax(target(pending, cache)[:, -1], axis=-1).item()
        tokens.append(token)
        if token in eos:
            break
        pending = mx.array([[token]])
    return tokens


def run_prompt(
    target: nn.Module, drafter: nn.Module, tokenizer: Any, prompt: list[int], width: int, expected: list[int]
) -> dict[str, Any]:
    """One greedy run; ``committed`` counts the tokens of every round."""
    tokens: list[int] = []
    committed: list[int] = []
    stream = authors.stream_generate(
        target, drafter, tokenizer, mx.array(prompt), block_size=width, max_tokens=MAX_TOKENS, temperature=0.0
    )
    for response in stream:
        tokens += response.tokens
        # Their field counts the bonus too, and is None outside a round.
        if response.accepted is not None:
            committed.append(response.accepted)
    if tokens != expected:
        raise SystemExit(f"width {width}: the text differs from plain decoding")
    return {"acceptance_length": round(sum(committed) / len(committed), 6), "committed": committed}


def main() -> None:
    """Run every prompt at every width and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", type=Path)
    folder = parser.parse_args().pair
    tokenizer = load_tokenizer(folder / "target")
    target, drafter = load_target(folder / "target"), load_drafter(folder / "drafter")
    eos = set(tokenizer.eos_token_ids)
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]
    plain = [plain_greedy(target, prompt, eos) for prompt in prompts]
    widths = {}
    for width in WIDTHS:
        runs = [
            run_prompt(target, drafter, tokenizer, prompt, width, ids)
            for prompt, ids in zip(prompts, plain, strict=True)
        ]
        lengths = [run["acceptance_length"] for run in runs]
        rounds = [len(run["committed"]) for run in runs]
        widths[str(width)] = {
            "acceptance_length": round(sum(lengths) / len(lengths), 4),
            "acceptance_length_over_all_rounds": round(sum(sum(run["committed"]) for run in runs) / sum(rounds), 4),
            "runs": runs,
        }
    record = {
        "made_with": {name: version(name) for name in ("dflash", "mlx", "mlx-lm")},
        "dtype": "float32, target dequantized from 4 bits",
        "max_tokens": MAX_TOKENS,
        "tolerance": 0.02,
        "prompts": [
            {"text": text, "prompt_token_ids": prompt, "token_ids": ids}
            for text, prompt, ids in zip(PROMPTS, prompts, plain, strict=True)
        ],
        "widths": widths,
    }
    (Path(__file__).parent / "bootstrap.json").write_text(json_text(record))


if __name__ == "__main__":
    main()

"""How many block rows a training step learns from in a second: packed passes, beside one sequence at a time.

Both arms draw the same blocks of the same random sequences, run the same target and compute the same gradients; which
begins changes from repeat to repeat. Time is the process's CPU time, so that neighbours on the machine do not count;
MLX's own threads are in it. The target's share is measured apart, because cached taps take it away.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.machine import (
    BadInput,
    OneLineParser,
    check_writable,
    describe_machine,
    print_machine,
    run_command,
    write_json,
)
from dflash2_mlx.targets.registry import make_target
from dflash2_mlx.training import Document, DrafterShape, Trainer, TrainSettings, new_drafter
from tests.tiny import make_mlx_model
from tests.training import one_by_one

SIZES: dict[str, dict[str, Any]] = {
    "mini": {"hidden_size": 256, "num_hidden_layers": 12, "intermediate_size": 768, "vocab_size": 2048,
             "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96, "vocab_size": 256,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}  # fmt: skip
SHORTEST, LONGEST = 60, 250


def make_trainer(size: str, sequences: int, anchors: int, block_size: int) -> Trainer:
    """A random target, a new drafter and random sequences, of which the last two thirds are learned."""
    config = {
        **SIZES[size], "model_type": "qwen3", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    target = make_target(make_mlx_model(config), config)
    drafter = new_drafter(DrafterShape(2, block_size).config(config, 7))
    rng = np.random.default_rng(0)
    documents = [
        Document(rng.integers(0, config["vocab_size"], length).astype(np.int32), np.arange(length) >= length // 3)
        for length in rng.integers(SHORTEST, LONGEST + 1, 8 * sequences)
    ]
    return Trainer(target, drafter, documents, TrainSettings(steps=100, sequences=sequences, anchors=anchors))


def measure(trainer: Trainer, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each arm, repeat by repeat; both see the same step. One more, uncounted, comes first."""
    arms: dict[str, Callable[[int], object]] = {
        "one by one": lambda step: one_by_one.gradients(trainer.drafter, trainer.target, trainer.drawn(step)),
        "packed": lambda step: mx.eval(trainer.gradients(step)),
        "packed, target alone": lambda step: list(trainer.passes(step)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):
        order = list(arms) if repeat % 2 else list(arms)[::-1]
        for name in order:
            began = time.process_time()
            arms[name](repeat)
            if repeat:
                seconds[name].append(time.process_time() - began)
    return seconds


def main(arguments: Sequence[str] | None) -> None:
    parser = OneLineParser(
        prog="bench_train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="mini", choices=tuple(SIZES))
    for name, default in (("--sequences", 8), ("--anchors", 64), ("--block-size", 8), ("--repeats", 5)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--json", type=Path, help="write the timings here")
    given = parser.parse_args(arguments)
    for name, low in (("sequences", 1), ("anchors", 1), ("block_size", 2), ("repeats", 1)):
        if getattr(given, name) < low:
            raise BadInput(f"--{name.replace('_', '-')}: got {getattr(given, name)}, expected at least {low}")
    check_writable(given.json)
    machine = describe_machine()
    print_machine(machine)
    trainer = make_trainer(given.size, given.sequences, given.anchors, given.block_size)
    rows = [sum(int(blocks.supervised.sum()) for _, blocks in trainer.drawn(step)) for step in range(given.repeats + 1)]
    seconds = measure(trainer, given.repeats)
    rates = {name: sum(rows[1:]) / sum(spent) for name, spent in seconds.items()}
    ratios = [one / packed for one, packed in zip(seconds["one by one"], seconds["packed"], strict=True)]
    target = statistics.median(
        alone / packed for alone, packed in zip(seconds["packed, target alone"], seconds["packed"], strict=True)
    )
    print(f"\n{'arm':<14} {'rows per CPU second':>20}")
    for name in ("one by one", "packed"):
        print(f"{name:<14} {rates[name]:>20.0f}")
    print(f"\nratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    print(f"the target's share of a packed step: {target:.0%}")
    if given.json is not None:
        settings = {key: value for key, value in vars(given).items() if key != "json"}
        record = {"machine": machine, "settings": settings, "rows": rows[1:], "cpu_seconds": seconds,
                  "rows_per_cpu_second": rates, "ratios": ratios, "target_share": target}  # fmt: skip
        write_json(given.json, record)


if __name__ == "__main__":
    run_command(main, "bench_train")

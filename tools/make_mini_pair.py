#!/usr/bin/env python3
"""Make the embedded mini pair: corpus, tokenizer, target, quantization, check. Drafters come from `dflash2-mlx train`.

For maintainers. Everything it learns from is written by `tools/mini/`: no text is downloaded. Work happens in one
folder outside the tree, and every stage goes on where an interrupted one stopped.

    pip install torch transformers
    python tools/make_mini_pair.py tokenizer --work ~/mini
    python tools/make_mini_pair.py target    --work ~/mini --minutes 90
    python tools/make_mini_pair.py quantize  --work ~/mini
    python tools/make_mini_pair.py questions --work ~/mini
    python tools/make_mini_pair.py check     --work ~/mini
    python tools/make_mini_pair.py embed     --work ~/mini --drafter ~/mini/drafter
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mini.corpus import conversation, questions, training
from mini.families import FAMILIES

PROMPTS = 4  # embedded of each family


def make_tokenizer(arguments: argparse.Namespace) -> None:
    from mini.tokens import make_tokenizer

    make_tokenizer(arguments.work / "target", seed=0)


def make_target(arguments: argparse.Namespace) -> None:
    import torch
    from mini.target import Plan, TargetTrainer

    torch.set_num_threads(arguments.threads)
    trainer = TargetTrainer(arguments.work, Plan(steps=arguments.steps))
    done = trainer.run(arguments.minutes * 60)
    trainer.export(arguments.work / "target-bf16")
    print("done" if done else "time is up; the same command goes on")


def quantize(arguments: argparse.Namespace) -> None:
    """4-bit target in groups of 64, as mlx-lm writes it."""
    from mlx_lm import convert

    convert(str(arguments.work / "target-bf16"), str(arguments.work / "target-4bit"), quantize=True, q_group_size=64,
            q_bits=4)  # fmt: skip


def write_questions(arguments: argparse.Namespace) -> None:
    """Training conversations and held-out questions, as JSON lines."""
    with (arguments.work / "train.jsonl").open("w", encoding="utf-8") as file:
        for item in islice(training(seed=2), arguments.count):
            line = {"messages": item["messages"], "chat_template_kwargs": {"enable_thinking": item["thinking"]}}
            file.write(json.dumps(line | ({"tools": item["tools"]} if item["tools"] else {})) + "\n")
    with (arguments.work / "questions.jsonl").open("w", encoding="utf-8") as file:
        for family in FAMILIES:
            for sample in questions(family, arguments.each):
                item: dict[str, Any] = conversation([sample], random.Random(0), thinking=False)
                last = max(place for place, message in enumerate(item["messages"]) if message["role"] == "user")
                check = {"kind": sample.turns[0].check.kind, "data": sample.turns[0].check.data}
                record = {"family": family, "messages": item["messages"][: last + 1], "check": check}
                file.write(json.dumps(record | ({"tools": item["tools"]} if item["tools"] else {})) + "\n")


def check(arguments: argparse.Namespace) -> None:
    """Ask the target the held-out questions and count the right answers."""
    from mini.examine import examine

    examine(arguments.target or arguments.work / "target-4bit", arguments.work / "questions.jsonl", arguments.each)


def embed(arguments: argparse.Namespace) -> None:
    """Put the pair and some held-out questions into the package."""
    work, folder = arguments.work, Path(__file__).resolve().parent.parent / "dflash2_mlx" / "data" / "mini"
    parts = {
        "target": [(work / "target-4bit", name) for name in ("config.json", "model.safetensors", "tokenizer.json")]
        + [(work / "target", "tokenizer_config.json")],
        "drafter": [(arguments.drafter, name) for name in ("config.json", "model.safetensors")],
    }
    for part, files in parts.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for source, name in files:
            shutil.copyfile(source / name, folder / part / name)
    generation = {"eos_token_id": 2, "pad_token_id": 0, "do_sample": True, "temperature": 0.7, "top_p": 0.95}
    (folder / "target" / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(PROMPTS):
            for family in FAMILIES:
                if family != "tools":  # a prompt file tells of no tools
                    sample = questions(family, PROMPTS)[number]
                    line = {"family": family, "messages": [{"role": "user", "content": sample.turns[0].user}]}
                    file.write(json.dumps(line) + "\n")


STAGES = {
    "tokenizer": make_tokenizer,
    "target": make_target,
    "quantize": quantize,
    "questions": write_questions,
    "check": check,
    "embed": embed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--work", type=Path, required=True, help="folder for everything, outside the tree")
    parser.add_argument("--minutes", type=float, default=90, help="target: stop after this time")
    parser.add_argument("--steps", type=int, default=1400, help="target: steps in all")
    parser.add_argument("--threads", type=int, default=2, help="target: of torch")
    parser.add_argument("--count", type=int, default=30_000, help="questions: conversations to train drafters on")
    parser.add_argument("--each", type=int, default=20, help="questions, check: held-out questions of each family")
    parser.add_argument("--target", type=Path, help="check: another folder than the quantized one")
    parser.add_argument("--drafter", type=Path, help="embed: folder that `dflash2-mlx train` wrote")
    arguments = parser.parse_args()
    STAGES[arguments.stage](arguments)


if __name__ == "__main__":
    main()

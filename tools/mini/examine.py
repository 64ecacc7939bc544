"""How many held-out questions a target answers correctly, greedy, by family."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import dflash2_mlx as d2

from .check import correct, visible
from .sample import Check


def examine(target: Path, questions: Path, each: int, *, thinking: bool = False) -> float:
    """Print right answers by family and some wrong ones; returns the mean over families."""
    engine = d2.load(str(target), target_dtype="float32")
    asked: dict[str, list[bool]] = defaultdict(list)
    wrong: dict[str, tuple[str, str]] = {}
    for line in questions.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        family = item["family"]
        if len(asked[family]) >= each:
            continue
        options = {"enable_thinking": thinking} | ({"tools": item["tools"]} if "tools" in item else {})
        config = d2.GenerationConfig(max_tokens=400, chat_template_kwargs=options)
        reply = visible(d2.generate(engine, item["messages"], config).text)
        right = correct(reply, Check(**item["check"]))
        asked[family].append(right)
        if not right:
            wrong[family] = (item["messages"][-1]["content"], reply)
    shares = {family: sum(results) / len(results) for family, results in asked.items()}
    for family, share in shares.items():
        print(f"{family:14} {share:6.1%} of {len(asked[family])}")
        if family in wrong:
            print(f"    {wrong[family][0]!r}\n    -> {wrong[family][1]!r}")
    mean = sum(shares.values()) / len(shares)
    print(f"{'mean':14} {mean:6.1%}")
    return mean

"""Writes down how many drafts a round accepts, wherever in a reply it begins: what width policies are tried on.

A block is drafted after every token of finished replies, so that any policy can be played over the record: a round of
w rows at token t accepts min(a[t], w - 1). Sampled replies are coupled: their noise belongs to positions, so the text
is the same at every width. `bench_widths` plays what was recorded: the first file is what the policy was made with, the
second (other prompts, other ways to sample, texts that the pair never learnt) is what it is judged by.

    python -m benchmarks.record_traces tests/data/traces.json
    python -m benchmarks.record_traces tests/data/traces_held_out.json --prompts tests/data/trace_prompts.jsonl \\
        --sampling 0.7:0.95 --sampling 1.4 --seeds 1
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import dflash2_mlx as d2
from dflash2_mlx.analysis.recall import next_tokens
from dflash2_mlx.analysis.replies import Reply, blocks, decode
from dflash2_mlx.bench.prompts import BenchPrompt, mini_prompts, read_prompts
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.sampling.sampler import TokenChooser

SEEDS = 3  # replies per prompt where they are sampled
MAX_TOKENS = 200
_TOGETHER = 16


def accepted_at(engine: d2.Engine, reply: Reply, sampling: d2.SamplingConfig) -> tuple[np.ndarray, np.ndarray]:
    """Accepted drafts of a block at each anchor [A], and what the walk gave its drafts [A, N]."""
    drafter, target = engine.drafter, engine.target
    assert drafter is not None
    width = drafter.config.block_size
    chooser = TokenChooser(
        sampling, target.spec.vocab_size, sampling.seed or 0, list(reply.tokens[: reply.prompt_tokens])
    )
    labels, asked = next_tokens(reply, width)
    tokens, chances, queued = [], [], []

    def read() -> None:
        mx.eval([(p.tokens, p.candidates, p.q) for p in queued])
        for p in queued:
            drawn = np.array(p.candidates[0]) == np.array(p.tokens[0])[:, None]
            tokens.append(np.array(p.tokens[0]))
            chances.append((np.array(p.q[0]) * drawn).sum(axis=-1))
        queued.clear()

    for anchor, context in blocks(target, drafter, reply, reply.anchors):
        start = mx.array([anchor], dtype=mx.int32)
        shared = None if sampling.greedy else chooser.shared_noise(start, width)
        noise = chooser.draft_noise(start, width - 1, shared) or mx.zeros_like  # without noise: the greedy walk
        queued.append(
            drafter.propose(
                mx.array([reply.tokens[anchor]], dtype=mx.int32), context, width, target, temperature=1.0, noise=noise
            )
        )
        if len(queued) == _TOGETHER:
            read()
    read()
    if not tokens:
        return np.zeros(0, int), np.zeros((0, width - 1))
    right = (np.stack(tokens) == labels) & asked
    return np.cumprod(right, axis=1).sum(axis=1), np.stack(chances)


def record(
    engine: d2.Engine, prompts: Sequence[BenchPrompt], temperature: float, top_p: float, seeds: int, tell: bool = True
) -> dict[str, Any]:
    """All replies of one way to sample, by family of prompt."""
    found: dict[str, tuple[list[str], list[list[list[int]]]]] = {}
    for number, prompt in enumerate(prompts):
        for seed in range(1, 1 + (seeds if temperature else 1)):
            sampling = d2.SamplingConfig(
                temperature=temperature,
                top_p=top_p,
                seed=seed if temperature else None,
                lossless_mode="coupled" if temperature else None,
            )
            reply = decode(engine, prompt.first, d2.GenerationConfig(max_tokens=MAX_TOKENS, sampling=sampling))
            kept, chances = owner().call(lambda reply=reply, sampling=sampling: accepted_at(engine, reply, sampling))
            replies, sure = found.setdefault(prompt.family or "", ([], []))
            replies.append("".join(map(str, kept)))
            sure.append((100 * chances).round().astype(int).tolist())
        if tell:
            print(f"T {temperature}, top-p {top_p}: {number + 1} prompts", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--prompts", type=Path, help="a file of prompts; the embedded ones if not given")
    parser.add_argument("--sampling", action="append", metavar="T[:TOP_P]", help="may be repeated; else 0 and 1")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="replies per prompt where they are sampled")
    parser.add_argument("--chances", type=Path, help="also write what the selector gave each draft, in percent")
    options = parser.parse_args(arguments)
    engine = d2.load("mini", target_dtype="float32")
    prompts = read_prompts(options.prompts) if options.prompts else mini_prompts()
    head = {"made_with": "python -m benchmarks.record_traces", "pair": "mini", "block_size": engine.block_size}
    traces, chances = [], []
    for way in options.sampling or ("0", "1"):
        temperature, top_p = (float(number) for number in (*way.split(":"), "1")[:2])
        shown = {"temperature": temperature, **({"top_p": top_p} if top_p < 1 else {})}
        for family, (replies, sure) in record(engine, prompts, temperature, top_p, options.seeds).items():
            traces.append({"family": family, **shown, "replies": replies})
            chances.append({"family": family, **shown, "percent": sure})
        # After each way to sample: a run that is cut short leaves what it has.
        options.file.write_text(json.dumps({**head, "traces": traces}, indent=1) + "\n", encoding="utf-8")
        if options.chances:
            options.chances.write_text(json.dumps({**head, "traces": chances}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

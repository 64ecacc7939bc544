"""The whole analysis of a pair: every drafter, every temperature, plain JSON (6.1)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_mlx.analysis import analyze, decode, method, with_drafter
from dflash2_mlx.device.runtime import owner
from tests.checkpoint_files import parameters
from tests.drafters.test_model import V1
from tests.engines import scripted_engine, tiny_engine
from tests.messages import mentions
from tests.runs import PROMPT
from tests.scripted import ramp
from tests.tiny import make_tiny_drafter, save_drafter, save_target

CONFIG = d2.GenerationConfig(max_tokens=10)
TOKENIZER = Path(d2.__file__).parent / "data" / "mini" / "target"


def other(engine: d2.Engine, **changes: object) -> d2.Engine:
    return replace(engine, drafter=owner().call(lambda: make_tiny_drafter(seed=5, compiled=True, **changes)))


def test_everything_is_measured():
    engine = tiny_engine("qwen3", owner().call(lambda: make_tiny_drafter(compiled=True)))
    told: list[str] = []
    others = {"plain DFlash": other(engine, **V1), "narrow": other(engine, block_size=3)}
    found = analyze(engine, [PROMPT, [9, 4]], CONFIG, others=others, repeats=2, tell=told.append).to_dict()
    json.dumps(found, allow_nan=False)
    names = ["tiny", "selector off", "convolution off", "both off", "plain DFlash", "narrow"]
    table = found["acceptance"]
    assert [(row["temperature"], row["name"]) for row in table] == [(t, name) for t in (0.0, 1.0) for name in names]
    assert [row["kind"] for row in table[:6]] == ["loaded", *["switched off"] * 3, *["another drafter"] * 2]
    assert [row["block_size"] for row in table[:6]] == [5] * 5 + [3]
    assert all(row["identity_holds"] and row["requests"] == 2 for row in table)
    assert [row["same_text"] for row in table] == [True] * 6 + [None] * 6
    assert [(row["temperature"], row["name"]) for row in found["recall"]] == [
        (t, name) for t in (0.0, 1.0) for name in ("tiny", "plain DFlash", "narrow")
    ]
    assert [len(row["recall_at_k"]) for row in found["recall"][:3]] == [4, 4, 2]
    assert {row["name"]: len(row["by_layer_and_head"]) for row in found["attention"]} == {
        "tiny": 2, "plain DFlash": 2, "narrow": 2,
    }  # fmt: skip
    assert list(found["costs"]["parts"]) == names[1:4]
    assert len(told) == 2 * (6 + 3) + 3 + 1


def test_the_table_counts_as_the_specification_says():
    # Two replies: accepted 0, 1, 2, 3, 4, 0, ... of four drafts, 12 and 5 tokens after the first one.
    replies = [
        decode(scripted_engine("qwen3", ramp(4)), PROMPT, d2.GenerationConfig(max_tokens=tokens, mode="dflash2"))
        for tokens in (13, 6)
    ]
    variant = method.Variant("scripted", method.FULL, scripted_engine("qwen3", ramp(4)))
    found = method._acceptance(variant, 0.0, replies, replies, CONFIG)
    # Committed 1, 2, 3, 4 and the last two of five; then 1, 2 and the last two of three.
    assert found.acceptance_length == pytest.approx((12 / 5 + 5 / 3) / 2)
    assert found.rounds == 8 and found.requests == 2
    # Accepted before any cut: 0, 1, 2, 3, 4 and 0, 1, 2.
    assert found.conditional == [6 / 8, 4 / 6, 2 / 4, 1 / 2]
    assert found.pooled == pytest.approx(1 + 13 / 8) and found.expected == pytest.approx(found.pooled)
    assert found.identity_holds and not replace(found, expected=found.expected + 1e-3).identity_holds


def test_the_same_prompts_are_drawn_with_the_same_seeds():
    engine = tiny_engine("qwen3", owner().call(lambda: make_tiny_drafter(compiled=True)))
    config = replace(CONFIG, sampling=d2.SamplingConfig(seed=7))
    settings = method._settings(config, 1.0, engine)
    assert settings.sampling.temperature == 1.0 and settings.sampling.lossless_mode == "rejection"
    first, again = (method._replies(engine, [PROMPT, PROMPT], settings) for _ in range(2))
    assert [reply.tokens for reply in first] == [reply.tokens for reply in again]
    assert first[0].tokens != first[1].tokens, "every prompt has a seed of its own"
    assert [reply.stats.seed for reply in first] == [7, 8]


def test_with_drafter_takes_another_for_the_same_target(tmp_path):
    engine = d2.load(save_target(tmp_path / "target", "qwen3", tokenizer=TOKENIZER), save_drafter(tmp_path / "a"))
    second = with_drafter(engine, save_drafter(tmp_path / "b", seed=9), draft_bits=4, draft_group_size=32)
    assert second.target is engine.target and second.drafter_name == str(tmp_path / "b")
    want = d2.load_drafter(tmp_path / "b", draft_bits=4, draft_group_size=32)
    assert parameters(second.drafter).keys() == parameters(want).keys()
    save_drafter(tmp_path / "wrong", hidden_size=128)
    with pytest.raises(d2.PairError) as caught:
        with_drafter(engine, tmp_path / "wrong")
    mentions(caught.value, "hidden_size", 128, 64)


def test_what_cannot_be_analyzed():
    engine = tiny_engine("qwen3", owner().call(make_tiny_drafter))

    def stops(
        *parts: object, engine: d2.Engine = engine, prompts: object = (PROMPT,), block_size: int = 5, **settings: object
    ) -> None:
        with pytest.raises(d2.ConfigError) as caught:
            analyze(engine, prompts, replace(CONFIG, block_size=block_size), **settings)
        mentions(caught.value, *parts)

    stops("drafter", "none", engine=tiny_engine())
    stops("prompts", "none", prompts=())
    stops("block_size", 6, "2..5", block_size=6)
    stops("temperatures", [0.0, 0.0], temperatures=(0.0, 0.0))
    stops("temperatures", [], temperatures=())
    stops("others", "'tiny' twice", others={"tiny": other(engine)})
    stops("others", "'x' with another target", others={"x": tiny_engine("llama", other(engine).drafter)})
    stops("others", "'x'", others={"x": replace(engine, drafter=None)})

"""A whole run: what it writes, that it goes on, and that its drafter decodes (7.3)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.training import (
    Document,
    DrafterShape,
    TrainSettings,
    acceptance_length,
    config_for,
    new_drafter,
    train,
)
from tests.pairs import bootstrap_pair
from tests.runs import PROMPT, lively_reply, lively_target
from tests.scripted import ScriptedDrafter
from tests.tiny import drafter_config

SETTINGS = TrainSettings(steps=6, sequences=1, anchors=8, learning_rate=3e-3)


@pytest.fixture(scope="module")
def engine() -> d2.Engine:
    return bootstrap_pair(target_dtype="float32")


def documents(engine: d2.Engine) -> list[Document]:
    texts = [
        "import os\nimport sys\n\n\ndef main(argv=None):\n    return os.getcwd()\n" * 2,
        "class A:\n    pass\n" * 8,
    ]
    tokens = [np.array(engine.tokenizer.encode(text), dtype=np.int32) for text in texts]
    return [Document(ids, np.ones(len(ids), dtype=bool)) for ids in tokens]


def config(engine: d2.Engine) -> dict:
    return config_for(engine, DrafterShape(layers=1, block_size=4))


def steps(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_a_run_leaves_a_drafter_a_log_and_no_checkpoints(engine, tmp_path):
    data = documents(engine)
    events = list(
        train(engine, config(engine), data, SETTINGS, tmp_path, validation=data[:1], every=3, notes={"data": "a.jsonl"})
    )
    assert [event.report.step for event in events] == list(range(6))
    assert [event.acceptance_length is not None for event in events] == [False, False, True, False, False, True]
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "train.jsonl",
        "README.md",
    }
    logged = steps(tmp_path)
    assert [line["loss"] for line in logged] == [event.report.loss for event in events]
    assert logged[-1]["acceptance_length"] == events[-1].acceptance_length >= 1
    assert "| data | a.jsonl |" in (tmp_path / "README.md").read_text()
    pair = bootstrap_pair(tmp_path, target_dtype="float32")
    prompt = "import os\n"
    drafted, plain = (
        d2.generate(pair, prompt, d2.GenerationConfig(max_tokens=20, mode=mode)).token_ids
        for mode in ("dflash2", "plain")
    )
    assert drafted == plain


def test_an_interrupted_run_goes_on(engine, tmp_path):
    data, raw = documents(engine), config(engine)
    whole = list(train(engine, raw, data, SETTINGS, tmp_path / "whole", every=2))
    events = train(engine, raw, data, SETTINGS, tmp_path / "cut", every=2)
    for _ in range(5):  # four of them are in a checkpoint
        next(events)
    events.close()
    assert len(steps(tmp_path / "cut")) == 5
    rest = list(train(engine, raw, data, SETTINGS, tmp_path / "cut", every=2))
    assert [event.report for event in rest] == [event.report for event in whole[4:]]
    assert {event.resumed for event in rest} == {4}
    assert [line["step"] for line in steps(tmp_path / "cut")] == list(range(6))
    names = [(tmp_path / part / "model.safetensors").read_bytes() for part in ("whole", "cut")]
    assert names[0] == names[1]


def test_acceptance_is_what_decoding_accepts():
    text = [*PROMPT, *lively_reply("qwen3", max_tokens=48)]
    document = Document(np.array(text), np.arange(len(text)) >= len(PROMPT))
    target = lively_target("qwen3")
    knowing = ScriptedDrafter(text, [4])  # always right
    assert owner().call(lambda: acceptance_length(target, knowing, [document])) > 4
    question = Document(np.array(PROMPT), np.zeros(len(PROMPT), dtype=bool))
    alone = owner().call(lambda: acceptance_length(target, knowing, [question]))
    assert alone > 4, "a question is all prompt"
    wrong = ScriptedDrafter(text, [0])
    stopping = frozenset(text[len(PROMPT) + 1 : len(PROMPT) + 2])
    assert owner().call(lambda: acceptance_length(target, wrong, [document, question], stopping)) == 1
    fresh = new_drafter(drafter_config())
    assert 1 <= owner().call(lambda: acceptance_length(target, fresh, [document])) < 1.5

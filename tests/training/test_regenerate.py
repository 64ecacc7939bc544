"""The target's own replies: many at a time as one by one, the same after an interruption; other files are refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.request import Request
from dflash2_mlx.decode.session import PlainSession
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.training import (
    Item,
    ReplySettings,
    batch_replies,
    read_regenerated,
    regenerate,
)
from dflash2_mlx.training import batch as batch_module
from tests.engines import tiny_engine
from tests.runs import lively_target, run
from tests.training.test_data import Chats, chat

SETTINGS = ReplySettings(max_tokens=10, batch=4, max_length=8)
PROMPTS = [[5], [7, 8, 9, 10, 11, 12], [3, 4], [20, 21, 22], [50] * 11, [9, 9, 9], [1, 2, 3, 4]]


@pytest.mark.parametrize("family", ["qwen3", "llama_sliding", "qwen3_5", "muse_glimmer"])
def test_many_at_a_time_say_what_each_says_alone(family, monkeypatch):
    monkeypatch.setattr(batch_module, "_CHUNK", 4)  # so that long prompts take several passes
    first = owner().call(lambda: PlainSession(lively_target(family)))
    stops = [run(first, Request(PROMPTS[0], 5)).tokens[-1]]
    engine = tiny_engine(family, stops=stops)
    found = {reply.index: reply.tokens for reply in batch_replies(engine, PROMPTS, SETTINGS)}
    for number, prompt in enumerate(PROMPTS):
        session = owner().call(lambda: PlainSession(lively_target(family)))
        alone = run(session, Request(prompt, 10, stop_token_ids=frozenset(stops)))
        assert found[number] == alone.tokens, number
    assert len({len(tokens) for tokens in found.values()}) > 1  # some stopped, or nothing is said about stopping


def test_draws_depend_on_seed_and_stream_only():
    engine, warm = tiny_engine(), replace(SETTINGS, temperature=1.0)

    def said(settings: ReplySettings, which: list[int]) -> dict[int, list[int]]:
        replies = batch_replies(engine, [PROMPTS[number] for number in which], settings, streams=which)
        return {which[reply.index]: reply.tokens for reply in replies}

    together = said(warm, list(range(7)))
    assert said(replace(warm, batch=1), [6, 2]) == {number: together[number] for number in (6, 2)}
    assert said(replace(warm, seed=1), [0, 1, 2]) != {number: together[number] for number in (0, 1, 2)}
    assert together != said(SETTINGS, list(range(7)))


def test_draws_follow_the_targets_law():
    settings = ReplySettings(max_tokens=1, temperature=0.7, batch=64)
    counts = Counter(reply.tokens[0] for reply in batch_replies(tiny_engine(), [[5, 6, 7]] * 640, settings))
    target = lively_target("qwen3")

    def law() -> np.ndarray:
        logits = target.forward(mx.array([[5, 6, 7]]), target.new_state(1), last_only=True).logits[0, 0]
        return np.array(mx.softmax(logits / 0.7))

    probabilities = owner().call(law)
    likely = np.argsort(-probabilities)[:12]
    share = float(probabilities[likely].sum())
    assert abs(sum(counts[int(token)] for token in likely) - 640 * share) < 4 * (640 * share * (1 - share)) ** 0.5
    for token in likely:
        p = float(probabilities[token])
        assert abs(counts[int(token)] - 640 * p) < 4.5 * (640 * p * (1 - p)) ** 0.5


class Tokens(Chats):
    """The chat tokenizer of the data tests, inside a tiny engine's vocabulary."""

    def decode(self, ids: list[int]) -> str:
        return " ".join("x" * (token % 7 + 1) for token in ids)


def engine_with_chats() -> d2.Engine:
    return replace(tiny_engine(stops=[3]), tokenizer=Tokens())


ITEMS = [
    Item("f:1", chat("a bb", "old", "ccc", "older")),
    Item("f:2", {"text": "a bb ccc dddd a bb ccc dddd a bb"}),
    Item("f:3", chat("a", "x")),
]


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()][1:]


def test_every_turn_is_answered_in_order_on_the_targets_own_words(tmp_path):
    engine, file = engine_with_chats(), tmp_path / "out" / "regenerated.jsonl"
    events = list(regenerate(engine, ITEMS, file, SETTINGS))
    assert [event.done for event in events] == [1, 2, 3, 4, 5] and {event.total for event in events} == {5}
    found = {(line["item"], line["turn"]): line for line in lines(file)}
    assert set(found) == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}
    first, second = found[0, 0], found[0, 1]
    assert first["tokens"][: first["prompt"]] == [1, 101, 102, 3, 2]
    said = engine.tokenizer.encode(first["text"])
    assert second["tokens"][: second["prompt"]] == [1, 101, 102, 3, 2, *said, 3, 1, 103, 3, 2]
    assert [found[1, turn]["prompt"] for turn in (0, 1)] == [4, 1]  # halves of pieces of 8 and 2 tokens
    for line in found.values():
        (reply,) = batch_replies(engine, [line["tokens"][: line["prompt"]]], SETTINGS)
        assert line["tokens"][line["prompt"] :] == reply.tokens
    documents = read_regenerated(file, max_length=12)
    assert [len(document.tokens) for document in documents] == [min(12, len(line["tokens"])) for line in lines(file)]
    assert [int(document.supervised.argmax()) for document in documents if document.supervised.any()] == [
        line["prompt"] for line in lines(file) if line["prompt"] < 12
    ]


def test_an_interrupted_run_says_the_same(tmp_path):
    engine, warm = engine_with_chats(), replace(SETTINGS, temperature=0.9)
    list(regenerate(engine, ITEMS, tmp_path / "whole.jsonl", warm))
    whole = {(line["item"], line["turn"]): line for line in lines(tmp_path / "whole.jsonl")}
    cut = tmp_path / "cut.jsonl"
    events = regenerate(engine, ITEMS, cut, warm)
    next(events)
    events.close()
    with cut.open("a") as file:
        file.write('{"item": 2, "tu')  # killed while a line was written
    rest = list(regenerate(engine, ITEMS, cut, replace(warm, batch=1)))
    assert {event.found for event in rest} == {1} and rest[-1].done == 5
    assert {(line["item"], line["turn"]): line for line in lines(cut)} == whole
    before = cut.read_bytes()
    assert [event.done for event in regenerate(engine, ITEMS, cut, warm)] == [5]
    assert cut.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "items", "words"),
    [
        ({"temperature": 0.5}, ITEMS, "temperature 0.5, expected 0.0"),
        ({"seed": 2}, ITEMS, "seed 2, expected 0"),
        ({"max_tokens": 11}, ITEMS, "max_tokens 11, expected 10"),
        ({}, ITEMS[:2], "prompts '"),
    ],
)
def test_a_file_made_otherwise_is_refused(tmp_path, changes, items, words):
    file = tmp_path / "r.jsonl"
    next(regenerate(engine_with_chats(), ITEMS, file, SETTINGS))
    with pytest.raises(d2.ConfigError, match=rf"r\.jsonl: got {words}"):
        next(regenerate(engine_with_chats(), items, file, replace(SETTINGS, **changes)))


def test_bad_files_and_prompts(tmp_path):
    for text in ('{"a": 1}\nnonsense\n', "[1]\n", "5\n", "\n"):
        (tmp_path / "r.jsonl").write_text(text)
        with pytest.raises(d2.ConfigError, match="got an unreadable line"):
            next(regenerate(engine_with_chats(), ITEMS, tmp_path / "r.jsonl", SETTINGS))
    with pytest.raises(d2.PromptError, match="prompt 1: got 0 tokens"):
        next(batch_replies(tiny_engine(), [[1], []], SETTINGS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_tokens": 0}, "max_tokens: got 0"),
        ({"max_tokens": 2.5}, "max_tokens: got 2.5"),
        ({"batch": 0}, "batch: got 0"),
        ({"temperature": float("nan")}, "temperature: got nan"),
        ({"prompt_tokens": 0}, "prompt_tokens: got 0"),
    ],
)
def test_impossible_settings(changes, words):
    with pytest.raises(d2.ConfigError, match=words):
        replace(SETTINGS, **changes)

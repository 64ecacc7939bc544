"""What is read, which tokens are learned, and how bad lines are refused (7.1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.training import read_documents
from dflash2_mlx.training.data import prompt_of_turn, read_items, turns_to_answer

SPECIAL = {"<u>": 1, "<a>": 2, "<end>": 3}


class Chats:
    """A tokenizer of words with a chat template; `forgets` drops earlier replies, as some templates do."""

    has_chat_template = True
    has_thinking = False

    def __init__(self, *, forgets: bool = False):
        self.forgets = forgets
        self.given: list[dict[str, Any]] = []

    def encode(self, text: str) -> list[int]:
        return [SPECIAL.get(word, 100 + len(word)) for word in text.split()]

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool, **options: Any
    ) -> list[int]:
        self.given.append(options)
        words = []
        for place, message in enumerate(messages):
            if message["role"] not in ("user", "assistant"):
                raise ValueError("only users and assistants")
            text = message["content"]
            if self.forgets and message["role"] == "assistant" and place < len(messages) - 1:
                text = "gone"
            words += ["<u>" if message["role"] == "user" else "<a>", *text.split(), "<end>"]
        return self.encode(" ".join([*words, *(["<a>"] if add_generation_prompt else [])]))


class Texts(Chats):
    has_chat_template = False


def write(folder: Path, *items: object) -> Path:
    file = folder / "data.jsonl"
    file.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in items), encoding="utf-8")
    return file


def chat(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]}


def test_all_of_a_text_is_learned(tmp_path):
    (document,) = read_documents(write(tmp_path, {"text": "a bb ccc"}), Texts(), max_length=10)
    assert document.tokens.tolist() == [101, 102, 103] and document.supervised.all()


def test_long_texts_become_several_and_blank_lines_nothing(tmp_path):
    found = read_documents(write(tmp_path, {"text": "a bb ccc dddd e"}, "", {"text": "a"}), Texts(), max_length=2)
    assert [document.tokens.tolist() for document in found] == [[101, 102], [103, 104], [101], [101]]


def test_of_a_chat_the_assistants_turns_are_learned(tmp_path):
    (document,) = read_documents(write(tmp_path, chat("a bb", "ccc", "a", "dddd e")), Chats(), max_length=99)
    assert document.tokens.tolist() == [1, 101, 102, 3, 2, 103, 3, 1, 101, 3, 2, 104, 101, 3]
    assert np.flatnonzero(document.supervised).tolist() == [5, 6, 11, 12, 13]


def test_turns_that_the_template_rewrites_later_are_not_learned(tmp_path):
    (document,) = read_documents(write(tmp_path, chat("a", "bb", "a", "dddd")), Chats(forgets=True), max_length=99)
    learned = document.tokens[document.supervised].tolist()
    assert learned == [104, 3]


def test_a_chat_that_ends_with_a_question_is_a_prompt(tmp_path):
    (document,) = read_documents(write(tmp_path, chat("a", "bb", "ccc")), Chats(forgets=True), max_length=20)
    assert document.tokens.tolist() == Chats(forgets=True).encode("<u> a <end> <a> gone <end> <u> ccc <end> <a>")
    assert document.supervised.sum() == 0


def test_a_chat_brings_what_its_template_is_given(tmp_path):
    tokenizer = Chats()
    item = {**chat("a", "bb"), "tools": [{"name": "f"}], "chat_template_kwargs": {"enable_thinking": False}}
    read_documents(write(tmp_path, item), tokenizer, max_length=10)
    assert all(given == {"tools": [{"name": "f"}], "enable_thinking": False} for given in tokenizer.given)
    assert len(tokenizer.given) == 3


class Thinker(Chats):
    has_thinking = True
    think_end = "</think>"


def test_earlier_replies_stand_without_their_thoughts(tmp_path):
    (item,) = read_items(write(tmp_path, chat("a", "bb", "ccc")))
    assert turns_to_answer(item) == 2
    prompt = prompt_of_turn(item, Thinker(), ["long thought </think>\n\ndddd"])
    assert prompt == Thinker().encode("<u> a <end> <a> dddd <end> <u> ccc <end> <a>")
    assert prompt_of_turn(item, Thinker(), []) == Thinker().encode("<u> a <end> <a>")


def test_long_chats_are_cut(tmp_path):
    (document,) = read_documents(write(tmp_path, chat("a", "bb ccc dddd")), Chats(), max_length=6)
    assert len(document.tokens) == len(document.supervised) == 6 and document.supervised.sum() == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", ["data.jsonl:2", "'no json'", "expected"]),
        pytest.param("[" * 100_000, ["data.jsonl:2", "expected"], id="nested"),
        ("[1]", ["data.jsonl:2"]),
        ({"prompt": "x"}, ["data.jsonl:2", "prompt"]),
        ({"text": 5}, ["data.jsonl:2"]),
        ({"messages": [{"role": "system", "content": "x"}]}, ["data.jsonl:2", "only users"]),
        ({"messages": [{"content": "x"}]}, ["data.jsonl:2"]),
        ({"messages": []}, ["data.jsonl:2"]),
        ({"messages": [{"role": "user", "content": "x"}], "tools": "f"}, ["data.jsonl:2"]),
    ],
)
def test_bad_lines_are_named(tmp_path, line, words):
    with pytest.raises(d2.ConfigError) as caught:
        read_documents(write(tmp_path, {"text": "a"}, line), Chats(), max_length=10)
    assert all(word in str(caught.value) for word in words), caught.value


def test_chats_need_a_template(tmp_path):
    with pytest.raises(d2.ConfigError, match="no chat template"):
        read_documents(write(tmp_path, chat("a", "b")), Texts(), max_length=10)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, words in (("missing", "no such file"), ("binary", "no UTF-8"), (".", "is a directory")):
        with pytest.raises(d2.ConfigError, match=f"(?i)unreadable file.*{words}"):
            read_documents(tmp_path / name, Texts(), max_length=10)
    with pytest.raises(d2.ConfigError, match="got no documents"):
        read_documents(write(tmp_path, ""), Texts(), max_length=10)

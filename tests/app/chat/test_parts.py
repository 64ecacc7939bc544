"""Thinking, Markdown blocks, settings and saved chats, each by itself."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import dflash2_mlx as d2
from dflash2_app.chat.figures import Totals
from dflash2_app.chat.markdown import BlockStream, ChatMarkdown
from dflash2_app.chat.record import Chat, Message
from dflash2_app.chat.settings import DEFAULTS, ReplySettings
from dflash2_app.chat.store import ChatStore
from dflash2_app.engine.thinking import ThinkingSplitter
from dflash2_app.errors import AppError

MARKS = d2.ThinkingMarks("<think>", "</think>")

# Thinking


def split(pieces: list[str], *, inside: bool = False, marks: d2.ThinkingMarks | None = MARKS) -> dict[str, str]:
    splitter = ThinkingSplitter(marks, inside=inside)
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.finish()
    assert all(text for _, text in parts)
    return {kind: "".join(text for k, text in parts if k == kind) for kind in ("thinking", "answer")}


@pytest.mark.parametrize(
    ("text", "inside", "thinking", "answer"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", False, "why\n", "because"),
        ("  \n<think>a</think>b", False, "a", "b"),
        ("\nwhy\n</think>\n\nbecause\n", True, "why\n", "because\n"),
        ("no mark", False, "", "no mark"),
        ("\n\nkept", False, "", "\n\nkept"),
        ("say <think>x</think>", False, "", "say <think>x</think>"),
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
        ("<think>cut off", False, "cut off", ""),
        ("<thin", False, "", "<thin"),
        ("a</thi", True, "a</thi", ""),
        ("", False, "", ""),
    ],
)
def test_thinking_is_told_from_the_answer_however_it_is_cut(
    text: str, inside: bool, thinking: str, answer: str
) -> None:
    for size in (1, 2, 3, 5, 100):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert split(pieces, inside=inside) == {"thinking": thinking, "answer": answer}, size


def test_without_marks_all_is_an_answer() -> None:
    assert split(["<think>a</th", "ink>b"], marks=None)["answer"] == "<think>a</think>b"


# Markdown

DOCUMENT = """# Title

One paragraph
of two lines.
- a
- b

  more of b

1. one
2. two

```python
x = 1

y = 2
```
After the fence

| a | b |
|---|---|
| 1 | 2 |

> quoted
lazily

Heading
=======

---
the end
"""
BLOCKS = [
    "# Title", "One paragraph", "- a", "1. one", "```python", "After", "| a", "> quoted", "Heading", "---", "the end",
]  # fmt: skip


def blocks_of(text: str, size: int) -> list[str]:
    stream = BlockStream()
    found = [block for at in range(0, len(text), size) for block in stream.push(text[at : at + size])]
    return [*found, stream.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_blocks_do_not_depend_on_the_pieces(size: int) -> None:
    found = blocks_of(DOCUMENT, size)
    assert "".join(found) == DOCUMENT
    assert len(found) == len(BLOCKS)
    assert all(block.startswith(start) for block, start in zip(found, BLOCKS, strict=True))


def test_a_line_that_is_not_complete_ends_no_block() -> None:
    stream = BlockStream()
    assert stream.push("1. a\n\n2") == []  # "2" may be a paragraph, or the next item's number
    assert stream.push(". b\n\nend\n") == ["1. a\n\n2. b\n\n"]
    assert stream.tail == "end\n"


@given(st.text(alphabet="ab1.- #>`|*\n", max_size=60), st.integers(1, 9))
def test_no_text_is_lost(text: str, size: int) -> None:
    assert "".join(blocks_of(text, size)) == text


def drawn(item: object) -> list[str]:
    console = Console(width=60, color_system=None)
    with console.capture() as capture:
        console.print(item)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def test_blocks_look_as_the_whole_document_does() -> None:
    whole = drawn(ChatMarkdown(DOCUMENT))
    assert [line for block in blocks_of(DOCUMENT, 1000) for line in drawn(ChatMarkdown(block))] == whole
    assert whole[0] == "Title", "headings stand at the left"
    assert "  x = 1" in whole


def test_an_address_is_spelled_out() -> None:
    assert drawn(ChatMarkdown("[here](https://example.org/x)")) == ["here (https://example.org/x)"]


# Settings


def test_settings_become_those_of_the_library() -> None:
    settings = ReplySettings()
    given = {"temperature": "0.7", "top_p": "0.9", "top_k": "20", "min_p": "0.1", "presence_penalty": "1",
             "frequency_penalty": "-1", "repetition_penalty": "1.1", "seed": "7", "lossless_mode": "rejection",
             "max_tokens": "33", "block_size": "4", "verify_mode": "adaptive"}  # fmt: skip
    assert list(given) == list(DEFAULTS), "every setting is tried"
    for name, text in given.items():
        settings = settings.changed(name, text)
    config = settings.config("auto")
    assert config.sampling == d2.SamplingConfig(0.7, 0.9, 20, 0.1, 1.0, -1.0, 1.1, None, 7, "rejection")
    assert (config.max_tokens, config.block_size, config.mode, config.verify_mode) == (33, 4, "auto", "adaptive")
    assert ReplySettings.from_config(config) == settings
    assert settings.config("plain", most_tokens=20).max_tokens == 20
    assert ReplySettings.restored(json.loads(json.dumps(settings.saved()))) == settings
    assert settings.changed("seed", "default").seed is None
    assert ReplySettings().saved() == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("heat", "1", "/set: got 'heat', expected one of temperature, top_p"),
        ("temperature", "warm", "temperature: got 'warm', expected a number or 'default'"),
        ("temperature", "-1", "temperature: got -1.0, expected a number >= 0"),
        ("temperature", "nan", "temperature: got nan"),
        ("top_k", "1.5", "top_k: got '1.5', expected an integer or 'default'"),
        ("top_p", "0", "top_p: got 0.0"),
        ("max_tokens", "0", "max_tokens: got 0"),
        ("block_size", "1", "block_size: got 1"),
        ("lossless_mode", "x", "lossless_mode: got 'x', expected 'rejection' or 'coupled'"),
    ],
)
def test_refused_settings(name: str, text: str, message: str) -> None:
    with pytest.raises((AppError, d2.ConfigError)) as caught:
        ReplySettings().changed(name, text)
    assert str(caught.value).startswith(message)


# Saved chats


def chat() -> Chat:
    messages = [Message("user", "é\n"), Message("assistant", "ok", thinking="why", partial=True)]
    return Chat(messages, "Be brief.", {"temperature": 0.5}, {"enable_thinking": True}, "m", None)


def test_a_chat_survives_being_saved(base: Path) -> None:
    store = ChatStore(base)
    assert store.names() == [] and not base.exists()
    file = store.save("one", chat())
    again = store.load("one")
    again.created_at = again.updated_at = ""
    expected = chat()
    expected.created_at = ""
    assert again == expected
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in store.folder.iterdir()] == ["one.json"]


def test_the_last_chat_comes_first(base: Path) -> None:
    store = ChatStore(base)
    for number, name in enumerate(("b", "a", "c")):
        os.utime(store.save(name, chat()), (1000 + number, 1000 + number))
    assert store.names() == ["c", "a", "b"]
    assert store.fresh_name() not in store.names()


def test_a_chat_that_cannot_be_written_leaves_the_old_one(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChatStore(base)
    file = store.save("one", chat())
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash2_app.files.os.fsync", full)
    with pytest.raises(AppError, match=r"one\.json: the chat could not be saved \(no space left on device\)"):
        store.save("one", Chat())
    assert file.read_bytes() == before
    assert [path.name for path in store.folder.iterdir()] == ["one.json"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65, "a b", "é"])
def test_names_that_are_no_files(base: Path, name: str) -> None:
    with pytest.raises(AppError, match="name: got"):
        ChatStore(base).save(name, chat())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "unreadable"),
        ("[]", "expected an object"),
        ('{"version": 2}', "version: got 2, expected 1"),
        ('{"version": 1}', "messages: got None, expected a list"),
        ('{"version": 1, "messages": [{"role": "assistant", "content": "x"}]}', r"messages\[0\].role: got 'assistant'"),
        ('{"version": 1, "messages": [{"role": "user"}]}', r"messages\[0\].content: got None, expected text"),
        ('{"version": 1, "messages": [7]}', r"messages\[0\]: got 7"),
        ('{"version": 1, "messages": [], "system": 3}', "system: got 3, expected text"),
        ('{"version": 1, "messages": [], "drafter": 3}', "drafter: got 3"),
    ],
)
def test_damaged_chats_are_told(base: Path, text: str, message: str) -> None:
    store = ChatStore(base)
    store.save("x", chat()).write_text(text, encoding="utf-8")
    with pytest.raises(AppError, match=message):
        store.load("x")


def test_a_file_too_long_for_a_chat_is_not_read(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChatStore(base)
    size = store.save("x", chat()).stat().st_size
    monkeypatch.setattr("dflash2_app.chat.store.MOST_BYTES", size)
    assert store.load("x").messages
    monkeypatch.setattr("dflash2_app.chat.store.MOST_BYTES", size - 1)
    with pytest.raises(AppError, match=rf"x\.json: got {size} bytes, expected at most {size - 1}"):
        store.load("x")


def test_a_chat_that_is_not_there(base: Path) -> None:
    store = ChatStore(base)
    store.save("known", chat())
    with pytest.raises(AppError, match=r"chat: got 'x', expected a saved one \(there are: known\)"):
        store.load("x")


# Sums


def test_sums_of_two_replies() -> None:
    totals = Totals()
    assert totals.rows() == [] and totals.by_position == []
    first = d2.GenerationStats("dflash2", 4, generated_tokens=5, rounds=2, committed_tokens=4, drafted_tokens=6,
                               accepted_tokens=2, reached=[2, 1, 1, 0], tried=[2, 1, 1], prompt_tokens=9)  # fmt: skip
    second = d2.GenerationStats("dflash2", 3, generated_tokens=3, rounds=2, committed_tokens=2, drafted_tokens=4,
                                accepted_tokens=0, reached=[2, 1, 0], tried=[2, 1], prompt_tokens=20,
                                cached_tokens=12)  # fmt: skip
    totals.add(first)
    totals.add(second)
    # Position 1: 2 of 4 rounds; position 2: 1 of those 2; position 3: 0 of that 1.
    assert totals.by_position == [0.5, 0.5, 0.0]
    rows = dict(totals.rows())
    assert rows["its prompt"].startswith("12 of 20 prompt tokens reused, 8 read")
    assert rows["whole chat"] == "2 replies, 8 tokens, acceptance 1.50"
    assert first.reached == [2, 1, 1, 0], "a reply's own numbers stay"
    totals.add(d2.GenerationStats("plain", None, generated_tokens=4))
    assert dict(totals.rows())["whole chat"] == "1 reply, 4 tokens" and totals.by_position == []


@pytest.mark.parametrize(("text", "shown"), [("2026-11-30T19:34:03+00:00", "2026-11-30 20:34"), ("long ago",) * 2])
def test_when_a_chat_was_begun_in_local_time(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-1")
    time.tzset()
    assert Chat(created_at=text).begun == shown
    monkeypatch.undo()
    time.tzset()

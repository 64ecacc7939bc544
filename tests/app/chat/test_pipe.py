"""`chat` through a pipe: one message per line, replies alone on standard output, exit codes for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_app.chat import startup
from dflash2_app.chat.store import ChatStore
from dflash2_app.commands import chat_pairs, models_pull
from dflash2_app.commands.options import ModelOptions
from dflash2_app.console.output import Output
from dflash2_app.settings.paths import find_base
from dflash2_app.settings.store import Store
from tests.pairs import BOOTSTRAP

from ..conftest import Run, spawn


@pytest.fixture
def flags(pair: Path) -> list[str | Path]:
    return ["chat", "--model", pair / "target", "--drafter", pair / "drafter", "--max-tokens", "6"]


def test_every_line_is_a_turn(run: Run, flags: list[str | Path], engine: d2.Engine, base: Path) -> None:
    ran = run(*flags, stdin="def add(a, b):\n\nmore\n/stats\n")
    assert ran.code == 0, ran.err
    messages = [{"role": "user", "content": "def add(a, b):"}]
    first = d2.generate(engine, messages, d2.GenerationConfig(max_tokens=6)).text
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
    second = d2.generate(engine, messages, d2.GenerationConfig(max_tokens=6)).text
    ends = ["" if text.endswith("\n") else "\n" for text in (first, second)]
    assert ran.out == f"{first}{ends[0]}\n{second}{ends[1]}"
    assert "\x1b" not in ran.out + ran.err
    assert "prompt tokens reused" in ran.err and "2 replies, 12 tokens" in ran.err
    assert not base.exists(), "a script's chat is kept only when asked"


def test_the_last_line_needs_no_end(run: Run, flags: list[str | Path]) -> None:
    assert run(*flags, stdin="x = 1").out
    empty = run(*flags, stdin="")
    assert (empty.code, empty.out) == (0, "")


def test_an_error_ends_the_run_and_what_was_saved_stays(run: Run, flags: list[str | Path], base: Path) -> None:
    ran = run(*flags, stdin="one\n/save kept\n/nope\nnever\n")
    assert ran.code == 2
    assert ran.error == "command: got '/nope', expected one of those in /help"
    assert [message.content for message in ChatStore(base).load("kept").messages][::2] == ["one"]
    ran = run(*flags, stdin="/set temperature hot\n")
    assert ran.code == 1 and ran.error.startswith("temperature: got 'hot'")
    ran = run(*flags, stdin=b"\xff\n")
    assert ran.code == 2 and "not UTF-8 in line 1" in ran.error


def test_resume_goes_on_with_a_chat(run: Run, flags: list[str | Path], base: Path) -> None:
    assert run(*flags, "--seed", "3", "--temperature", "0.5", stdin="one\n/save kept\n").code == 0
    assert run(*flags, stdin="two\n/save other\n").code == 0
    ran = run(*flags, "--resume", "kept", stdin="three\n")
    assert ran.code == 0 and "kept: 1 turn" in ran.err
    saved = json.loads((base / "chats" / "kept.json").read_text(encoding="utf-8"))
    assert [message["content"] for message in saved["messages"]][::2] == ["one", "three"]
    assert saved["settings"] == {"temperature": 0.5, "seed": 3, "max_tokens": 6}
    assert "kept: 2 turns" in run(*flags, "--resume", stdin="").err, "without a name: the one written last"
    own = run("chat", "--resume", stdin="four\n")
    assert own.code == 0 and f"note: using {flags[2]}, as the chat did" in own.err
    other = run("chat", "--model", "mini", "--resume", stdin="")
    assert f"note: it was written with {flags[2]}" in other.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--resume"], 1, "--resume: got no saved chat, expected one"),
        (["--resume", "nope"], 1, "chat: got 'nope', expected a saved one"),
        (["nope"], 2, "NAME: got 'nope', expected --resume before it"),
        (["--block-size", "9"], 2, "--block-size: got 9, expected an integer in 2..8"),
        (["--temperature", "-1"], 2, "--temperature: got '-1'"),
        (["--logit-bias", "1=2", "--logit-bias", "1=3"], 2, "--logit-bias: got token 1 twice"),
    ],
)
def test_bad_command_lines(run: Run, flags: list[str | Path], arguments: list[str], code: int, message: str) -> None:
    ran = run(*flags, *arguments, stdin="x\n")
    assert ran.code == code and ran.error.startswith(message), ran.error
    assert ran.out == ""


def test_options_reach_the_replies(run: Run, flags: list[str | Path], base: Path, engine: d2.Engine) -> None:
    options = ["--system", "Be brief.", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "7", "--min-p", "0.01",
               "--presence-penalty", "0.1", "--frequency-penalty", "0.2", "--repetition-penalty", "1.1", "--seed", "9",
               "--lossless-mode", "coupled", "--block-size", "3"]  # fmt: skip
    assert run(*flags, *options, stdin="one\n/save kept\n").code == 0
    chat = ChatStore(base).load("kept")
    assert chat.system == "Be brief."
    (token,) = engine.tokenizer.encode("x")
    forced = run(*flags, "--logit-bias", f"{token}=100", stdin="one\n")
    assert forced.out == "xxxxxx\n"
    resumed = run(*flags, "--resume", "kept", "--temperature", "0.7", stdin="two\n/save\n/set\n")
    assert "temperature 0.7 top_p 0.9 top_k 7" in " ".join(resumed.err.split()), "typed before saved before default"
    assert chat.settings == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.01, "presence_penalty": 0.1, "frequency_penalty": 0.2,
        "repetition_penalty": 1.1, "seed": 9, "lossless_mode": "coupled", "max_tokens": 6, "block_size": 3,
    }  # fmt: skip


def test_without_a_model_the_mini_pair_starts_and_says_so() -> None:
    ran = spawn("chat", "--max-tokens", "40", stdin="What is the capital of France?\n")
    assert ran.code == 0 and "Paris" in ran.out
    assert "using the embedded mini pair" in ran.err


def test_a_target_without_a_template_says_so(run: Run) -> None:
    flags = ["chat", "--model", BOOTSTRAP / "target"]
    ran = run(*flags, "--max-tokens", "4", stdin="def f():\n")
    assert ran.code == 0 and ran.out
    assert "no chat template: each message is continued as bare text" in ran.err
    ran = run(*flags, "--system", "x", stdin="")
    assert ran.code == 2 and ran.error.startswith("--system: got 'x', expected none: ")
    assert ran.error.endswith("has no chat template")


@pytest.mark.parametrize(("answer", "downloads"), [("y", True), ("n", False)])
def test_a_download_is_asked_for(
    run: Run, pair: Path, monkeypatch: pytest.MonkeyPatch, answer: str, downloads: bool
) -> None:
    choice = startup.PairChoice(str(pair / "target"), str(pair / "drafter"), 15_200_000_000)
    fetched: list[startup.PairChoice] = []
    monkeypatch.setattr(
        chat_pairs, "look_around", lambda *_, **__: startup.Situation(None, None, True, True, True, choice)
    )

    def fetch(_: chat_pairs.Pairs, chosen: startup.PairChoice) -> None:
        fetched.append(chosen)
        values = {"dflash_enabled": True, "dflash_draft_model": chosen.drafter}
        Store(find_base()).set_values("target", values, source=chosen.target)

    monkeypatch.setattr(chat_pairs.Pairs, "_fetch", fetch)
    ran = run("chat", "--max-tokens", "4", stdin=f"{answer}\n")
    assert ran.code == 0 and "Download it (15.2 GB)?" in ran.err
    assert fetched == ([choice] if downloads else [])
    assert ("is not downloaded: using the embedded mini pair" in ran.err) != downloads


def test_a_fetched_pair_is_set_up_as_announced_and_becomes_the_default(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = chat_pairs._best_fit(64 * 10**9)
    assert choice is not None and choice.download_bytes
    fetched: list[tuple[str, str]] = []
    monkeypatch.setattr(models_pull, "fetch_pair", lambda target, drafter, out: fetched.append((target, drafter)))
    with Output() as out:
        chat_pairs.Pairs(ModelOptions(), out)._fetch(choice)
    assert fetched == [(choice.target, choice.drafter)]
    settings = Store(find_base()).load()
    assert settings.default_model is not None
    record = settings.record(settings.default_model)
    assert record["dflash_draft_model"] == choice.drafter
    assert (record["dflash_enabled"], record["dflash_block_size"], record["dflash_verify_mode"]) == (True, 5, "dflash")
    assert chat_pairs._best_fit(10**9) is None

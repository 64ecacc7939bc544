"""`generate` on the fake library: every flag arrives, the prompt has one source, the output goes where it should."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.commands.generate import generate

from .conftest import Run
from .fake_library import REPLY, FakeLibrary

LOADED: list[tuple[list[str], dict[str, Any]]] = [
    (["--model", "some/target"], {"target": "some/target", "drafter": None}),
    (["--drafter", "some/drafter"], {"target": "mini", "drafter": "some/drafter"}),
    (["--model", "t", "--drafter", "d", "--draft-bits", "4"], {"drafter": "d", "draft_bits": 4}),
    (["--draft-bits", "8", "--draft-group-size", "32"], {"draft_bits": 8, "draft_group_size": 32}),
    (["--target-dtype", "float32"], {"target_dtype": "float32"}),
    (["--exactness", "exact"], {"exactness": "exact"}),
    (["--exactness", "exact", "--drafter", "none"], {"exactness": "exact"}),
    (["--draft-window", "512", "--draft-sink", "16"], {"draft_window": 512, "draft_sink": 16}),
    (["--model", "t", "--drafter", "d", "--plain"], {"target": "t", "drafter": None}),
]
CONFIGURED: list[tuple[list[str], dict[str, Any]]] = [
    (["--max-tokens", "7"], {"max_tokens": 7}),
    (["--stop", "a", "--stop", "b c"], {"stop": ("a", "b c")}),
    (["--block-size", "3"], {"block_size": 3}),
    (["--verify-mode", "adaptive"], {"verify_mode": "adaptive", "mode": "auto"}),
    (["--verify-mode", "off"], {"verify_mode": "off", "mode": "plain"}),
    (["--plain"], {"mode": "plain"}),
    (["--drafter", "none"], {"mode": "plain"}),
    (["--no-chat-template"], {"chat_template": False}),
    (["--chat-template-args", '{"enable_thinking": false}'], {"chat_template_kwargs": {"enable_thinking": False}}),
    (["--json", "--logprobs", "5"], {"logprobs": 5}),
]
SAMPLED: list[tuple[list[str], dict[str, Any]]] = [
    (["--temperature", "0.7"], {"temperature": 0.7}),
    (["--temperature", "1", "--top-p", "0.9"], {"top_p": 0.9}),
    (["--temperature", "1", "--top-k", "40"], {"top_k": 40}),
    (["--temperature", "1", "--min-p", "0.05"], {"min_p": 0.05}),
    (["--presence-penalty", "0.5"], {"presence_penalty": 0.5}),
    (["--frequency-penalty", "-0.5"], {"frequency_penalty": -0.5}),
    (["--repetition-penalty", "1.1"], {"repetition_penalty": 1.1}),
    (["--logit-bias", "3=1.5", "--logit-bias", "4=-100"], {"logit_bias": {3: 1.5, 4: -100.0}}),
    (["--seed", "18446744073709551615"], {"seed": 2**64 - 1}),
    (["--temperature", "1", "--lossless-mode", "coupled"], {"lossless_mode": "coupled"}),
]
# Flags about the prompt and the output, each with a test of its own below.
ELSEWHERE = {"--messages", "--system", "--output", "--stats", "--base-path"}


@pytest.mark.parametrize(("flags", "expected"), LOADED)
def test_a_model_flag_reaches_load(run: Run, library: FakeLibrary, flags: list[str], expected: dict[str, Any]) -> None:
    assert run("generate", "x", *flags).code == 0
    assert library.loads[0] | expected == library.loads[0]


@pytest.mark.parametrize(("flags", "expected"), CONFIGURED)
def test_a_reply_flag_reaches_the_config(
    run: Run, library: FakeLibrary, flags: list[str], expected: dict[str, Any]
) -> None:
    assert run("generate", "x", *flags).code == 0
    assert vars(library.requests[0][1]) | expected == vars(library.requests[0][1])


@pytest.mark.parametrize(("flags", "expected"), SAMPLED)
def test_a_sampling_flag_reaches_the_config(
    run: Run, library: FakeLibrary, flags: list[str], expected: dict[str, Any]
) -> None:
    assert run("generate", "x", *flags).code == 0
    sampling = vars(library.requests[0][1].sampling)
    assert sampling | expected == sampling


def test_no_flag_is_left_untested() -> None:
    names = {f"--{name.replace('_', '-')}" for name in inspect.signature(generate).parameters} - {"--prompt"}
    tried = {word for flags, _ in LOADED + CONFIGURED + SAMPLED for word in flags if word.startswith("--")}
    assert names == tried | ELSEWHERE


def test_without_flags_the_library_decides(run: Run, library: FakeLibrary) -> None:
    ran = run("generate", "x")
    assert library.loads == [
        {
            "target": "mini",
            "drafter": None,
            "draft_bits": None,
            "draft_group_size": 64,
            "target_dtype": "auto",
        }
    ]
    prompt, config = library.requests[0]
    assert prompt == "x"
    assert (config.mode, config.block_size, config.sampling.lossless_mode, config.logprobs) == (
        "auto",
        None,
        None,
        None,
    )
    assert "note: no --model given: using the embedded mini pair" in ran.err


def test_the_text_alone_goes_to_standard_output(run: Run, library: FakeLibrary) -> None:
    ran = run("generate", "x", "--max-tokens", "20")
    assert ran.out == REPLY[:20] + "\n"
    assert "20 tokens in " in ran.err
    assert "acceptance length" in ran.err
    assert ran.err.rstrip().endswith("dflash2")
    assert run("generate", "x", "--no-stats").err == "note: no --model given: using the embedded mini pair\n"


def test_a_target_without_drafter_says_so(run: Run, library: FakeLibrary) -> None:
    ran = run("generate", "x", "--model", "some/target")
    assert "note: no --drafter given: plain decoding, one token per pass\n" in ran.err
    assert ran.err.rstrip().endswith("plain (no drafter given)")
    assert library.requests[0][1].mode == "auto"


def test_wanted_plain_decoding_is_no_fallback(run: Run, library: FakeLibrary) -> None:
    for flags in (["--plain"], ["--model", "t", "--drafter", "none"]):
        ran = run("generate", "x", *flags)
        assert "no --drafter" not in ran.err
        assert ran.err.rstrip().endswith("plain")


def test_notices_of_the_library_are_shown_once(run: Run, library: FakeLibrary) -> None:
    library.notices = ["target has no chat template: the raw prompt was used"]
    for flags in ([], ["--json"]):
        assert run("generate", "x", *flags).err.count("note: target has no chat template") == 1


def test_a_filter_that_does_nothing_is_named(run: Run, library: FakeLibrary) -> None:
    assert "note: --top-p has no effect at --temperature 0" in run("generate", "x", "--top-p", "0.5").err
    assert "no effect" not in run("generate", "x", "--top-p", "0.5", "--temperature", "1").err


def test_json_is_one_object_and_nothing_else(run: Run, library: FakeLibrary) -> None:
    ran = run("generate", "x", "--json", "--max-tokens", "20")
    shown = json.loads(ran.out)
    assert shown["text"] == REPLY[:20]
    assert shown["mode"] == "dflash2"


def test_logprobs_are_added_when_asked_for(run: Run, library: FakeLibrary) -> None:
    assert "logprobs" not in json.loads(run("generate", "x", "--json").out)
    shown = json.loads(run("generate", "x", "--json", "--logprobs", "2", "--max-tokens", "3").out)
    alternatives = [{"token": 32, "text": " ", "logprob": -0.5}, {"token": 63, "text": "?", "logprob": -1.25}]
    assert shown["logprobs"] == [{**alternatives[0], "top": alternatives}] * 3


# The prompt


def test_the_prompt_comes_from_standard_input(run: Run, library: FakeLibrary) -> None:
    for arguments in ([], ["-"]):
        run("generate", *arguments, stdin="def größe():\n")
    assert [prompt for prompt, _ in library.requests] == ["def größe():\n"] * 2


def test_standard_input_is_left_alone_beside_an_argument(run: Run, library: FakeLibrary) -> None:
    run("generate", "x", stdin="for somebody else")
    assert library.requests[0][0] == "x"


def test_messages_come_from_a_file_or_standard_input(run: Run, library: FakeLibrary, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(messages), encoding="utf-8")
    run("generate", "--messages", file)
    run("generate", "--messages", "-", stdin=json.dumps(messages))
    assert [prompt for prompt, _ in library.requests] == [messages, messages]


def test_a_system_message_is_put_in_front(run: Run, library: FakeLibrary) -> None:
    library.engine.tokenizer.has_chat_template = True
    run("generate", "hi", "--system", "Be brief.")
    run("generate", "--messages", "-", "--system", "Be brief.", stdin='[{"role": "user", "content": "hi"}]')
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert [prompt for prompt, _ in library.requests] == [expected, expected]


# Files


def test_output_holds_what_standard_output_would(run: Run, library: FakeLibrary, tmp_path: Path) -> None:
    file = tmp_path / "reply.txt"
    file.write_text("old, and longer than the new text", encoding="utf-8")
    ran = run("generate", "x", "--max-tokens", "9", "--output", file)
    assert ran.out == ""
    assert file.read_text(encoding="utf-8") == REPLY[:9] + "\n"
    assert f"note: written to {file}" in ran.err
    run("generate", "x", "--max-tokens", "9", "--output", file, "--json")
    assert json.loads(file.read_text(encoding="utf-8"))["text"] == REPLY[:9]


def test_a_failed_run_leaves_files_as_they_were(run: Run, library: FakeLibrary, tmp_path: Path) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("kept", encoding="utf-8")
    library.fault = RuntimeError("in the middle")
    for file in (old, new):
        assert run("generate", "x", "--output", file).code == 1
    assert old.read_text(encoding="utf-8") == "kept"
    assert not new.exists()


@pytest.mark.parametrize(
    ("flags", "notes"),
    [
        (["--plain", "--block-size", "4"], ["--block-size has no effect without drafting"]),
        (["--drafter", "none", "--block-size", "3"], ["--block-size has no effect without drafting"]),
        (["--plain", "--draft-bits", "4"], ["--draft-bits has no effect without drafting"]),
        (["--verify-mode", "off", "--block-size", "4"], ["--block-size has no effect without drafting"]),
        (["--plain", "--verify-mode", "adaptive"], ["--verify-mode has no effect without drafting"]),
        (
            ["--plain", "--draft-window", "64", "--draft-sink", "4"],
            ["--draft-window has no effect without drafting", "--draft-sink has no effect without drafting"],
        ),
        (
            ["--plain", "--temperature", "1", "--lossless-mode", "coupled"],
            ["--lossless-mode has no effect without drafting"],
        ),
        (["--seed", "3"], ["--seed has no effect at --temperature 0"]),
        (["--seed", "3", "--temperature", "1", "--block-size", "4"], []),
    ],
)
def test_options_that_do_nothing_are_named(run: Run, library: FakeLibrary, flags: list[str], notes: list[str]) -> None:
    told = [
        line.removeprefix("note: ") for line in run("generate", "x", *flags).err.splitlines() if "no effect" in line
    ]
    assert told == notes


def test_one_token_is_one_token(run: Run, library: FakeLibrary) -> None:
    assert "1 token in" in run("generate", "x", "--max-tokens", "1").err

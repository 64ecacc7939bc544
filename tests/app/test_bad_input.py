"""Whatever is wrong, the user gets one line that says what, and no model is loaded for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_app.cli import main

from . import fake_library
from .conftest import ROOT, Run, environment
from .fake_library import FakeLibrary

REFUSED = [
    # what is typed, a part of the message
    (["generate", ""], "prompt: got an empty text"),
    (["generate", " \n"], "prompt: got an empty text"),
    (["generate"], "prompt: got an empty text"),
    (["generate", "x", "--messages", "m.json"], "prompt: got an argument and --messages, expected exactly one"),
    (["generate", "--messages", "missing.json"], "--messages: got 'missing.json', expected a readable file (no such"),
    (["generate", "--messages", "."], "--messages: got '.', expected a readable file (is a directory)"),
    (["generate", "x", "y"], "unexpected extra argument"),
    (["generate", "x", "--nope"], "no such option: --nope"),
    (["generate", "x", "--max-tokens", "0"], "--max-tokens: got '0', expected an integer >= 1"),
    (["generate", "x", "--max-tokens", "ten"], "--max-tokens: got 'ten', expected an integer >= 1"),
    (["generate", "x", "--max-tokens"], "--max-tokens"),
    (["generate", "x", "--block-size", "1"], "--block-size: got '1', expected an integer >= 2"),
    (["generate", "x", "--stop", ""], "--stop: got '', expected at least one character"),
    (["generate", "x", "--model", ""], "--model: got '', expected at least one character"),
    (["generate", "x", "--draft-bits", "5"], "--draft-bits: got '5', expected 4 or 8"),
    (["generate", "x", "--draft-bits", "4", "--drafter", "none"], "--draft-bits: got 4, expected a --drafter"),
    (["generate", "x", "--draft-bits", "4", "--model", "m"], "--draft-bits: got 4, expected a --drafter"),
    (["generate", "x", "--draft-group-size", "48"], "--draft-group-size: got '48', expected 32 or 64 or 128"),
    (["generate", "x", "--draft-group-size", "32"], "--draft-group-size: got 32, expected --draft-bits as well"),
    (["generate", "x", "--target-dtype", "float16"], "--target-dtype: got 'float16', expected auto or bfloat16 or"),
    (["generate", "x", "--temperature", "-1"], "--temperature: got '-1', expected a number >= 0"),
    (["generate", "x", "--temperature", "nan"], "--temperature: got 'nan', expected a number >= 0"),
    (["generate", "x", "--top-p", "0"], "--top-p: got '0', expected a number in (0, 1]"),
    (["generate", "x", "--top-k", "-1"], "--top-k: got '-1', expected an integer >= 0"),
    (["generate", "x", "--min-p", "1.5"], "--min-p: got '1.5', expected a number in [0, 1]"),
    (["generate", "x", "--presence-penalty", "3"], "--presence-penalty: got '3', expected a number in [-2, 2]"),
    (["generate", "x", "--frequency-penalty", "inf"], "--frequency-penalty: got 'inf', expected a number in [-2, 2]"),
    (["generate", "x", "--repetition-penalty", "0"], "--repetition-penalty: got '0', expected a number > 0"),
    (["generate", "x", "--logit-bias", "3"], "--logit-bias: got '3', expected ID=VALUE"),
    (["generate", "x", "--logit-bias", "-3=1"], "--logit-bias: got '-3=1', expected ID=VALUE"),
    (["generate", "x", "--logit-bias", "3=1", "--logit-bias", "3=2"], "--logit-bias: got token 3 twice"),
    (["generate", "x", "--seed", "-1"], "--seed: got '-1', expected an integer in 0.."),
    (["generate", "x", "--lossless-mode", "exact"], "--lossless-mode: got 'exact', expected rejection or coupled"),
    (["generate", "x", "--logprobs", "3"], "--logprobs: got 3, expected --json as well"),
    (["generate", "x", "--json", "--logprobs", "21"], "--logprobs: got '21', expected an integer in 0..20"),
    (["generate", "x", "--chat-template-args", "[1]"], "--chat-template-args: got '[1]', expected a JSON object"),
    (["generate", "x", "--no-chat-template", "--system", "s"], "--system: got it beside --no-chat-template"),
    (["generate", "x", "--output", "missing/reply.txt"], "--output: got 'missing/reply.txt', expected a writable file"),
    (["generate", "x", "--output", ""], "--output: got '', expected at least one character"),
    (["doctor", "--quick", "--model", "m"], "--quick: got it beside --model or --drafter, expected one of the two"),
    (["generate", "x", "--output", "."], "--output: got '.', expected a writable file (is a directory)"),
    (["demo", "--drafter", "none"], "--drafter: got none, expected the drafter"),
    (["demo", "--verify-mode", "off"], "--verify-mode: got off, expected dflash or adaptive"),
    (["generate", "x", "--verify-mode", "on"], "--verify-mode: got 'on', expected dflash or adaptive or off"),
    (["generate", "x", "--model", "m", "--draft-window", "9"], "--draft-window: got 9, expected a --drafter"),
    (["generate", "x", "--drafter", "none", "--draft-sink", "9"], "--draft-sink: got 9, expected a --drafter"),
    (["generate", "x", "--draft-sink", "-1"], "--draft-sink: got '-1', expected an integer >= 0"),
    (["demo", "--model", "m"], "--drafter: got none, expected the drafter"),
    (["demo", "", "--json"], "prompt: got an empty text"),
    (["gnerate", "x"], "no such command 'gnerate'. Did you mean 'generate'?"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: " ".join(value)[:60])
def test_a_wrong_command_line_is_refused_before_anything_slow(
    run: Run, library: FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert message in ran.error
    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 2
    assert "hint: `dflash2-mlx" in ran.err
    assert library.loads == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--messages: got no JSON in '-' (line 1"),
        ("[]", "--messages: got an empty list"),
        ('{"role": "user"}', "--messages: got a JSON dict, expected a list"),
        ('["hi"]', '--messages: got "hi" as message 0, expected role and content'),
        ('[{"role": "user", "content": "a"}, {"role": "user"}]', "as message 1, expected role and content"),
    ],
)
def test_bad_messages(run: Run, library: FakeLibrary, text: str, message: str) -> None:
    assert message in run("generate", "--messages", "-", stdin=text).error
    assert library.loads == []


def test_two_system_messages(run: Run, library: FakeLibrary) -> None:
    ran = run("generate", "--messages", "-", "--system", "a", stdin='[{"role": "system", "content": "b"}]')
    assert "--system: got it beside a system message" in ran.error


def test_bytes_that_are_no_text(run: Run, library: FakeLibrary) -> None:
    assert "standard input: got a byte that is not UTF-8 at 1" in run("generate", stdin=b"a\xff").error
    assert "prompt: got a byte that is not UTF-8 at 1" in run("generate", os.fsdecode(b"a\xff")).error


def test_no_prompt_at_a_terminal(run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2_app.commands.prompt.is_terminal", lambda stream: True)
    assert "prompt: got none, expected an argument, --messages FILE or text on" in run("generate").error


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        (d2.PairError("hidden_size: got 256, expected 512"), "hidden_size: got 256, expected 512", "--drafter"),
        (d2.CheckpointError("model.safetensors: got\n12 bytes"), "model.safetensors: got 12 bytes", "--model"),
        (d2.ConfigError("rope_theta: got None, expected a value"), "rope_theta: got None, expected a value", ""),
        (FileNotFoundError(2, "No such file or directory", "/x/y"), "/x/y: no such file or directory", ""),
        (OSError(28, "No space left on device"), "output: no space left on device", ""),
        (MemoryError(), "not enough memory", "--draft-bits"),
        (ImportError("libmlx.so: cannot open"), "libmlx.so: cannot open", "pip install"),
        (RuntimeError("who knows\nwhat"), "unexpected RuntimeError: who knows what", "DFLASH2_DEBUG=1"),
        (AssertionError(), "unexpected AssertionError", "DFLASH2_DEBUG=1"),
    ],
)
def test_what_the_library_raises_becomes_one_line(
    run: Run, library: FakeLibrary, fault: Exception, message: str, hint: str
) -> None:
    library.load_fault = fault
    ran = run("generate", "x")
    assert ran.error.startswith(message)
    assert ran.code == 1
    assert hint in ran.err
    assert "hint: " in ran.err if hint else "hint: " not in ran.err


def test_debug_shows_the_traceback(run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH2_DEBUG", "1")
    library.load_fault = RuntimeError("who knows")
    ran = run("generate", "x")
    assert "Traceback" in ran.err
    assert "error: unexpected RuntimeError: who knows" in ran.err


def test_ctrl_c_ends_quietly(run: Run, library: FakeLibrary) -> None:
    library.fault = KeyboardInterrupt()
    for command in (["generate", "x"], ["generate", "x", "--json"], ["demo"]):
        ran = run(*command)
        assert ran.code == 130
        assert "error" not in ran.err
        assert "Traceback" not in ran.err
    assert run("generate", "x").out.endswith("\n")


def _fake_process(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, fake_library.__file__, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment(), cwd=ROOT)


def test_a_real_interrupt_exits_with_130() -> None:
    with _fake_process("generate", "x") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(4)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert b"Traceback" not in process.stderr.read()


def test_a_closed_standard_input_is_no_prompt(run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate"]) == 2 and library.loads == []


def test_an_interrupt_while_python_still_imports() -> None:
    script = (
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'typer': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "from dflash2_app.__main__ import run\n"
        "sys.exit(run())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment(), timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_reader_that_leaves_is_no_error() -> None:
    with _fake_process("generate", "x", "--no-stats") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(4)
        process.stdout.close()
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == b"note: no --model given: using the embedded mini pair\n"

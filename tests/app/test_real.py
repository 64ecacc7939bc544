"""The command line on the real library and the embedded pair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dflash2_mlx as d2
from tests.pairs import BOOTSTRAP

from .conftest import Run, spawn

MINI = Path(d2.__file__).parent / "data" / "mini"
PROMPT = "Write the multiplication table of 7."
BARE = ("--model", str(BOOTSTRAP / "target"), "--drafter", str(BOOTSTRAP / "drafter"))  # without a chat template
FIELDS = """text token_ids finish_reason prompt_tokens cached_tokens generated_tokens mode fallback_reason notices
verify_mode rounds rounds_by_width drafted_tokens accepted_tokens acceptance_length acceptance_by_position block_size
prefill_s decode_s tokens_per_second peak_memory_bytes model drafter seed""".split()


def test_generate_streams_the_text_of_the_json(run: Run) -> None:
    arguments = ["generate", PROMPT, "--max-tokens", "24"]
    shown = json.loads(run(*arguments, "--json").out)
    assert list(shown) == FIELDS
    assert (shown["mode"], shown["fallback_reason"], shown["finish_reason"]) == ("dflash2", None, "length")
    assert shown["generated_tokens"] == len(shown["token_ids"]) == 24
    streamed = run(*arguments)
    assert streamed.code == 0
    assert streamed.out.rstrip("\n") == shown["text"].rstrip("\n")
    assert "no chat template" not in streamed.err
    assert "note: the target has no chat template" in run(*arguments, *BARE).err


def test_plain_and_drafted_text_are_equal(run: Run) -> None:
    texts = {run("generate", PROMPT, "--max-tokens", "12", "--no-chat-template", *flags).out for flags in (
        [], ["--plain"], ["--drafter", "none"], ["--block-size", "3"], ["--draft-bits", "4"],
        ["--model", MINI / "target", "--drafter", MINI / "drafter"],
    )}  # fmt: skip
    assert len(texts) == 1


def test_a_target_alone_says_why_it_decodes_plainly(run: Run) -> None:
    ran = run("generate", PROMPT, "--model", MINI / "target", "--max-tokens", "4", "--json")
    assert json.loads(ran.out)["fallback_reason"] == "no drafter given"
    assert "note: no --drafter given" in ran.err


def test_logprobs_hold_the_token_and_its_alternatives(run: Run) -> None:
    shown = json.loads(run("generate", PROMPT, "--max-tokens", "8", "--json", "--logprobs", "3").out)
    assert list(shown) == [*FIELDS, "logprobs"]
    assert [item["token"] for item in shown["logprobs"]] == shown["token_ids"]
    assert all(len(item["top"]) == 3 for item in shown["logprobs"])
    assert all(item["top"][0]["token"] == item["token"] for item in shown["logprobs"]), "greedy takes the best"


def test_a_seed_repeats_a_sampled_text(run: Run) -> None:
    story = ["Tell me a story about a fox.", "--chat-template-args", '{"enable_thinking": false}']
    arguments = ["generate", *story, "--max-tokens", "24", "--temperature", "1", "--seed"]
    first, again, other = (run(*arguments, seed).out for seed in ("7", "7", "8"))
    assert first == again != other


@pytest.mark.parametrize("flags", [[], ["--temperature", "0.8"]])
def test_demo_finds_both_texts_identical(run: Run, flags: list[str]) -> None:
    ran = run("demo", "--max-tokens", "24", "--json", "--check", *flags)
    shown = json.loads(ran.out)
    assert ran.code == 0
    assert list(shown) == ["plain", "dflash2", "identical", "first_difference", "speedup"]
    assert list(shown["plain"]) == list(shown["dflash2"]) == FIELDS
    assert shown["identical"] is True and shown["first_difference"] is None
    assert shown["plain"]["token_ids"] == shown["dflash2"]["token_ids"]


@pytest.mark.parametrize("face", ["option", "settings"])
def test_a_longer_reply_than_can_be_counted(run: Run, tmp_path: Path, face: str) -> None:
    shutil.copytree(BOOTSTRAP / "target", tmp_path / "target")
    file = tmp_path / "target" / "config.json"
    config = json.loads(file.read_text())
    config["max_position_embeddings"] = 10**12  # bounds nothing; mlx-lm wants some
    file.write_text(json.dumps(config))
    flags = ["--max-tokens", str(2**31)]
    if face == "settings":
        record = {"version": 1, "models": {"target": {"max_tokens": 2**31}}}
        (tmp_path / "base" / "models").mkdir(parents=True)
        (tmp_path / "target").rename(tmp_path / "base" / "models" / "target")
        (tmp_path / "base" / "model_settings.json").write_text(json.dumps(record))
        flags = ["--base-path", str(tmp_path / "base")]
    model = "target" if face == "settings" else tmp_path / "target"
    ran = run("generate", "x", "--model", model, *flags)
    assert ran.code == 2 and ran.out == ""
    assert ran.error == f"--max-tokens: got {2**31}, expected an integer in 1..{2**31 - 1}"
    ran = run("generate", PROMPT, "--max-tokens", str(2**31), "--stop", " ")
    assert ran.code == 0 and f"max_tokens: {2**31} was cut to" in ran.err, "the embedded target names its context"


def test_a_process_of_its_own() -> None:
    ran = spawn("generate", "--max-tokens", "8", "--no-stats", stdin=PROMPT)
    assert ran.code == 0
    assert ran.out
    assert all(line.startswith("note: ") for line in ran.err.splitlines())


# What can be wrong with models


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A copy of the embedded pair that may be spoilt."""
    shutil.copytree(MINI, tmp_path / "mini")
    return tmp_path / "mini"


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def no_safetensors(file: Path) -> None:
    file.write_bytes(b"<html>404</html>" * 100)


@pytest.mark.parametrize("spoil", [cut_short, no_safetensors])
@pytest.mark.parametrize("part", ["target", "drafter"])
def test_spoilt_weights(run: Run, pair: Path, part: str, spoil: object) -> None:
    assert callable(spoil)
    spoil(pair / part / "model.safetensors")
    ran = run("generate", "x", "--model", pair / "target", "--drafter", pair / "drafter")
    assert ran.code == 1
    assert "model.safetensors" in ran.error
    assert "unexpected" not in ran.error
    assert ran.out == ""


def test_a_drafter_for_another_target(run: Run, pair: Path) -> None:
    config = json.loads((pair / "target" / "config.json").read_text(encoding="utf-8"))
    config["hidden_size"] = 512
    (pair / "target" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = run("generate", "x", "--model", pair / "target", "--drafter", pair / "drafter")
    assert "hidden_size" in ran.error and "256" in ran.error and "512" in ran.error
    assert "hint: --drafter" in ran.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "/no/such/folder"], ["/no/such/folder", "expected"]),
        (["--model", "nobody/nothing"], ["nobody/nothing"]),
        (["--drafter", "/no/such/folder"], ["/no/such/folder"]),
        (["--drafter", str(MINI / "target")], ["expected"]),
        (["--model", str(MINI / "drafter")], ["expected"]),
        (["--model", str(MINI)], ["config.json"]),
    ],
)
def test_wrong_models_and_settings(run: Run, flags: list[str], words: list[str]) -> None:
    ran = run("generate", "x", *flags)
    assert all(word in ran.error for word in words), ran.error
    assert "unexpected" not in ran.error
    assert ran.code == 1
    assert ran.out == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--block-size", "9"], "--block-size: got 9, expected an integer in 2..8"),
        (["--draft-window", "3"], "--draft-window: got 3, expected an integer in 8.."),
        (["--draft-window", "100000"], "--draft-window: got 100000, expected an integer in 8.."),
        (["--draft-sink", "100000"], "--draft-sink: got 100000, expected an integer in 0.."),
        (["--logit-bias", "5000=1"], "--logit-bias: got token id 5000, expected 0..2047"),
        ([*BARE, "--chat-template-args", '{"a": 1}'], "--chat-template-args: got {'a': 1}, expected none"),
        ([*BARE, "--system", "s"], "--system: got 's', expected none: "),
    ],
)
def test_options_that_do_not_suit_the_model_are_named_as_typed(run: Run, flags: list[str], message: str) -> None:
    ran = run("generate", "x = ", "--max-tokens", "2", *flags)
    assert ran.error.startswith(message)
    assert ran.code == 2 and ran.out == ""
    assert "hint: `dflash2-mlx generate --help`" in ran.err


def test_a_prompt_longer_than_the_context(run: Run) -> None:
    ran = run("generate", stdin="x = 1\n" * 2000)
    assert "prompt" in ran.error and "2048" in ran.error


def test_an_error_in_a_process_of_its_own_has_no_traceback() -> None:
    ran = spawn("generate", "x", "--model", "/no/such/folder")
    assert ran.code == 1
    assert ran.out == ""
    assert [line.split(":")[0] for line in ran.err.splitlines()] == ["note", "error", "hint"]

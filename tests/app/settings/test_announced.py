"""The announced setup end to end on a tiny pair: preset, load, replies; and what holds for one prompt only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.engine.model import Configured
from dflash2_app.engine.setup import prepare
from dflash2_app.errors import AppError
from dflash2_app.models import registry
from dflash2_app.models.registry import KnownPair, KnownTarget
from dflash2_mlx import analysis
from tests.tiny import HIDDEN, LAYERS, VOCAB

from ..conftest import Run
from .pairs import save_pair
from .samples import read

PROMPT = "name three rivers"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def announced(run: Run, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The target's folder, after `settings preset dflash2` on it."""
    target, drafter = folders
    known = KnownPair(
        drafter=str(drafter),
        version=2,
        target=KnownTarget("Tiny-27B", layers=LAYERS, hidden_size=HIDDEN, vocab_size=VOCAB),
        block_size=8,
    )
    monkeypatch.setattr(registry, "known_pairs", lambda: (known,))
    assert run("settings", "preset", "dflash2", target).code == 0
    return target


def reply(pair: Configured, prompt: Any = PROMPT, **changes: Any) -> d2.GenerationResult:
    return pair.generate(prompt, pair.generation_config(**{"max_tokens": 12, **changes}))


def test_preset_load_generate(run: Run, announced: Path, base: Path, folders: tuple[Path, Path]) -> None:
    assert read(base)["models"]["Tiny-27B-4bit"] == {
        "dflash_enabled": True, "dflash_draft_model": str(folders[1]), "dflash_draft_quant_enabled": True,
        "dflash_draft_quant_weight_bits": 4, "dflash_draft_quant_activation_bits": 16,
        "dflash_draft_quant_group_size": 64, "dflash_block_size": 5, "dflash_verify_mode": "dflash",
        "dflash_draft_sink_size": 0,
    }  # fmt: skip
    drafted = run("generate", PROMPT, "--model", "tiny-27b-4bit", "--max-tokens", "16", "--json")
    shown = json.loads(drafted.out)
    assert drafted.code == 0
    assert (shown["mode"], shown["fallback_reason"], shown["block_size"]) == ("dflash2", None, 5)
    assert shown["drafter"] == str(folders[1]) and shown["rounds"] > 0
    plain = json.loads(
        run("generate", PROMPT, "--model", "tiny-27b-4bit", "--max-tokens", "16", "--json", "--plain").out
    )
    assert shown["token_ids"] == plain["token_ids"], "the target's own text"
    checked = run("demo", PROMPT, "--model", "tiny-27b-4bit", "--max-tokens", "8", "--json", "--check")
    assert checked.code == 0 and json.loads(checked.out)["identical"] is True


def test_the_default_model_answers_without_a_flag(run: Run, announced: Path) -> None:
    run("settings", "set", announced, "is_default=yes", "max_tokens=6", "enable_thinking=on")
    shown = json.loads(run("generate", PROMPT, "--json").out)
    assert (shown["mode"], shown["generated_tokens"]) == ("dflash2", 6)
    assert shown["prompt_tokens"] == len(f"[user]{PROMPT}(think)[assistant]")
    flagged = run("generate", PROMPT, "--json", "--chat-template-args", '{"enable_thinking": false}')
    assert json.loads(flagged.out)["prompt_tokens"] == len(f"[user]{PROMPT}[assistant]"), "the flag wins"


def test_max_context_holds_for_one_prompt_and_no_longer(run: Run, announced: Path) -> None:
    tokens = len(f"[user]{PROMPT}[assistant]")
    run("settings", "set", announced, f"dflash_max_ctx={tokens}")
    pair = prepare("tiny-27b-4bit").load()
    session = d2.new_session(pair.engine, pair.generation_config())
    results = [reply(pair, prompt) for prompt in (PROMPT, PROMPT[:-1], PROMPT + "!", PROMPT[:-1])]
    assert [result.stats.mode for result in results] == ["plain", "dflash2", "plain", "dflash2"]
    assert results[0].stats.fallback_reason == (
        f"Max Context: the prompt has {tokens} tokens, drafting is for fewer than {tokens}"
    )
    assert results[1].stats.fallback_reason is None
    turns = [pair.generate(prompt, pair.generation_config(max_tokens=4), session=session)
             for prompt in (PROMPT[:-1], PROMPT, PROMPT[:-1])]  # fmt: skip
    assert [turn.stats.mode for turn in turns] == ["dflash2", "plain", "dflash2"], "a session is left as it was"
    run("settings", "set", announced, "dflash_max_ctx=0")
    assert reply(prepare("tiny-27b-4bit").load()).stats.mode == "dflash2"


def test_max_context_window_cuts_the_reply_and_refuses_a_prompt(run: Run, announced: Path) -> None:
    tokens = len(f"[user]{PROMPT}[assistant]")
    run("settings", "set", announced, f"max_context_window={tokens + 3}")
    pair = prepare("tiny-27b-4bit").load()
    assert reply(pair).stats.generated_tokens == 3
    with pytest.raises(AppError, match=f"prompt: got {tokens + 3} tokens, expected fewer than Max context window"):
        reply(pair, PROMPT + "xyz")


def test_the_quantized_drafter_is_what_was_asked_for(run: Run, announced: Path) -> None:
    """Runs like `d2.load` with the same options: as many rounds, not only the same text."""
    pair = prepare("tiny-27b-4bit").load()
    by_hand = d2.load(pair.plan.target, pair.plan.drafter, draft_bits=4, draft_group_size=64)
    rounds = []
    for engine in (pair.engine, by_hand):
        config = d2.GenerationConfig(max_tokens=24, block_size=5)
        result = d2.generate(engine, PROMPT, config)
        rounds.append((result.token_ids, result.stats.rounds, result.stats.accepted_tokens))
    assert rounds[0] == rounds[1]


def test_a_configured_pair_that_does_not_fit_falls_back(run: Run, announced: Path, base: Path) -> None:
    """The record was written by another program, which checks nothing."""
    settings = json.loads((base / "model_settings.json").read_text())
    settings["models"]["Tiny-27B-4bit"]["dflash_draft_model"] = str(announced)
    (base / "model_settings.json").write_text(json.dumps(settings))
    ran = run("generate", PROMPT, "--model", "tiny-27b-4bit", "--max-tokens", "4", "--json")
    shown = json.loads(ran.out)
    assert ran.code == 0 and shown["mode"] == "plain"
    assert shown["fallback_reason"].startswith("the drafter cannot be used: architectures: got ")
    assert f"note: plain decoding: {shown['fallback_reason']}" in ran.err


def test_32_bit_activations(run: Run, announced: Path) -> None:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    run("settings", "set", announced, "dflash_draft_quant_activation_bits=32", "dflash_draft_quant_enabled=on")
    pair = prepare("tiny-27b-4bit").load()
    assert pair.engine.drafter is not None
    kinds = {array.dtype for _, array in tree_flatten(pair.engine.drafter.parameters())}
    assert kinds == {mx.float32, mx.uint32}
    assert reply(pair).stats.mode == "dflash2"


def test_a_drafter_dtype_of_the_library(folders: tuple[Path, Path]) -> None:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    engine = d2.load(*folders, drafter_dtype="bfloat16")
    assert engine.drafter is not None
    assert {array.dtype for _, array in tree_flatten(engine.drafter.parameters())} == {mx.bfloat16}
    with pytest.raises(d2.ConfigError, match="drafter_dtype: got 'float16', expected auto, bfloat16 or float32"):
        d2.load(*folders, drafter_dtype="float16")


def test_counting_a_prompt(folders: tuple[Path, Path]) -> None:
    engine = d2.load(folders[0])
    assert d2.count_prompt_tokens(engine, PROMPT) == len(f"[user]{PROMPT}[assistant]")
    bare = d2.GenerationConfig(chat_template=False)
    assert d2.count_prompt_tokens(engine, PROMPT, bare) == len(PROMPT)
    assert d2.count_prompt_tokens(engine, [1, 2, 3]) == 3
    with pytest.raises(d2.PromptError):
        d2.count_prompt_tokens(engine, [])


def test_a_chat_on_the_announced_setup(run: Run, announced: Path, folders: tuple[Path, Path]) -> None:
    ran = run("chat", "--model", announced, "--max-tokens", "6", stdin=f"{PROMPT}\nagain\n/stats\n")
    assert ran.code == 0, ran.err
    assert "2 replies" in ran.err + ran.out and "prompt tokens reused" in ran.err + ran.out
    by_name = run("chat", "--model", "tiny-27b-4bit", "--max-tokens", "6", stdin=f"{PROMPT}\n")
    assert by_name.code == 0 and by_name.out.strip() == ran.out.split("\n\n")[0].strip()


def test_max_context_holds_in_a_chat(run: Run, announced: Path) -> None:
    run("settings", "set", announced, f"dflash_max_ctx={len(PROMPT) + 25}")
    ran = run("chat", "--model", announced, "--max-tokens", "4", stdin=f"{PROMPT}\nagain\n")
    assert ran.code == 0
    assert ran.err.count("plain decoding:") == 1, "the second prompt only"


def test_what_does_not_fit_is_refused_before_it_is_loaded(
    run: Run, announced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("generate", PROMPT, "--model", announced, "--max-tokens", "4")
    monkeypatch.setattr(analysis, "memory_limit", lambda: 10_000)
    monkeypatch.setattr(d2, "load", lambda *_, **__: pytest.fail("it was loaded"))
    ran = run(*asked)
    assert ran.code == 1 and ran.out == ""
    assert "GB at 1024 tokens of context (target" in ran.error and "expected at most 0.0 GB" in ran.error
    assert "hint: what needs less:" in ran.err


def test_a_context_that_may_not_fit_is_told(run: Run, announced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash2_app.models.memory import check_fit

    config = json.loads((announced / "config.json").read_text(encoding="utf-8"))
    need = check_fit(config, None, 1024, limit=10**12).estimate
    assert need is not None
    monkeypatch.setattr(analysis, "memory_limit", lambda: need.total + 1000)
    ran = run("generate", PROMPT, "--model", announced, "--drafter", "none", "--max-tokens", "4")
    assert ran.code == 0 and "this machine's memory may end at a context of about 1024 tokens" in ran.err

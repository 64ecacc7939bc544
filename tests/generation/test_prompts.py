"""Prompts to token ids: text, messages, ids, and what a chat template refuses (CK-20; contracts)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

import dflash2_mlx as d2
from dflash2_mlx.generation.text import NO_TEMPLATE, render_prompt
from dflash2_mlx.targets.registry import make_target
from tests.engines import tiny_engine
from tests.messages import mentions
from tests.pairs import BOOTSTRAP, bootstrap_pair
from tests.runs import lively_model, target_config
from tests.tiny import VOCAB

TEMPLATE = r"""{%- for message in messages %}
{%- if message.role == 'tool' %}{{ raise_exception('Unknown role\n' + message.role) }}{% endif %}
{{- '<' + message.role + '>' + message.content + '\n' }}
{%- endfor %}
{%- if tone is defined %}{{ '<' + tone + '>' }}{% endif %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""


def with_template(folder: Path, template: str) -> Any:
    shutil.copytree(BOOTSTRAP / "target", folder / "tokenizer")
    file = folder / "tokenizer" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    return load_tokenizer(folder / "tokenizer")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The trained pair's tokenizer with a chat template."""
    return with_template(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="module")
def bare() -> Any:
    return load_tokenizer(BOOTSTRAP / "target")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def refused(tokenizer: Any, prompt: Any, *parts: object, **settings: Any) -> None:
    with pytest.raises(d2.PromptError) as caught:
        render_prompt(tokenizer, prompt, **settings)
    mentions(caught.value, *parts)


def test_text_is_one_user_message_where_there_is_a_template(chat):
    rendered = render_prompt(chat, "hé 👋")
    assert chat.decode(rendered.ids) == "<user>hé 👋\n<assistant>"
    assert rendered.notices == []
    assert render_prompt(chat, [user("hé 👋")]) == rendered


def test_messages_in_order(chat):
    messages = [{"role": "system", "content": "S"}, user("A"), {"role": "assistant", "content": "B"}, user("C")]
    assert chat.decode(render_prompt(chat, messages).ids) == "<system>S\n<user>A\n<assistant>B\n<user>C\n<assistant>"


def test_template_arguments_reach_the_template(chat):
    rendered = render_prompt(chat, "x", template_kwargs={"tone": "calm"})
    assert chat.decode(rendered.ids) == "<user>x\n<calm><assistant>"


def test_raw_text_when_no_template_is_wanted(chat):
    rendered = render_prompt(chat, "raw <user>", chat_template=False)
    assert (chat.decode(rendered.ids), rendered.notices) == ("raw <user>", [])


def test_a_target_without_template_gets_the_raw_prompt_and_says_so(bare):
    for prompt in ("def f():", [user("def f():")]):
        rendered = render_prompt(bare, prompt)
        assert (bare.decode(rendered.ids), rendered.notices) == ("def f():", [NO_TEMPLATE])
    assert render_prompt(bare, "def f():", chat_template=False).notices == []


def test_token_ids_are_taken_as_they_are(bare):
    assert render_prompt(bare, [5, 6, 7]).ids == [5, 6, 7]
    assert render_prompt(bare, (5, 6, 7)).ids == [5, 6, 7]


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_empty_prompts(chat, prompt):
    refused(chat, prompt, "prompt", "expected")


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        (None, ("prompt", None)),
        (5, ("prompt", 5)),
        (1.5, ("prompt", 1.5)),
        ({"role": "user", "content": "x"}, ("messages[0]", "'role'")),
        (["text"], ("messages[0]", "'text'")),
        ([5, "x"], ("messages[0]", 5)),
        ([[1, 2]], ("messages[0]",)),
        ([user("a"), {"content": "b"}], ("messages[1]", "role")),
        ([{"role": 3, "content": "b"}], ("messages[0]",)),
        ([{"role": "user"}], ("messages[0].content", "nothing")),
    ],
)
def test_malformed_prompts(chat, bare, prompt, parts):
    for tokenizer in (chat, bare):
        refused(tokenizer, prompt, *parts)


def test_what_the_template_refuses_is_one_line(chat):
    refused(chat, [{"role": "tool", "content": "x"}], "messages", "Unknown role", "tool")
    refused(chat, [user("a"), {"role": "user", "content": None}], "messages")
    refused(chat, [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "messages")


def test_template_arguments_that_clash(chat):
    refused(chat, "x", "add_generation_prompt", template_kwargs={"add_generation_prompt": False})


@pytest.mark.parametrize("template", ["{% for %}", "{{ messages[0].content.nothing.more }}", "{{ 1 / 0 }}"])
def test_a_broken_template(tmp_path, template):
    refused(with_template(tmp_path, template), "x", "chat template")


def test_messages_that_no_template_can_join(chat, bare):
    refused(bare, [user("a"), user("b")], "messages", "got 2 messages")
    refused(chat, [user("a"), user("b")], "messages", "got 2 messages", chat_template=False)
    refused(bare, [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "messages[0].content")
    refused(bare, [{"role": "user", "content": None}], "messages[0].content")


def test_template_arguments_without_a_template(bare, chat):
    refused(bare, "x", "chat_template_kwargs", template_kwargs={"enable_thinking": True})
    refused(bare, [user("x")], "chat_template_kwargs", template_kwargs={"enable_thinking": True})
    refused(chat, "x", "chat_template_kwargs", template_kwargs={"a": 1}, chat_template=False)


# Ranges, checked where the target is known, before anything runs.


@pytest.mark.parametrize(("prompt", "bad"), [([VOCAB], VOCAB), ([3, VOCAB + 7, 5], VOCAB + 7), ([3, -1], -1)])
def test_token_ids_out_of_range(prompt, bad):
    with pytest.raises(d2.PromptError) as caught:
        d2.stream_generate(tiny_engine(), prompt)
    mentions(caught.value, "prompt", bad, f"0..{VOCAB - 1}")


def test_a_prompt_as_long_as_the_context():
    limit = 40
    config = {**target_config("qwen3"), "max_position_embeddings": limit}
    engine = tiny_engine(target=make_target(lively_model("qwen3"), config))
    with pytest.raises(d2.PromptError) as caught:
        d2.stream_generate(engine, [3] * limit)
    mentions(caught.value, "prompt", limit)
    result = d2.generate(engine, [3] * (limit - 2), d2.GenerationConfig(max_tokens=50))
    assert (len(result.token_ids), result.finish_reason) == (2, "length")


@pytest.mark.parametrize("context", [None, 10**12])
def test_a_longer_reply_than_can_be_counted(context):
    config = {**target_config("qwen3"), "max_position_embeddings": context}
    engine = tiny_engine(target=make_target(lively_model("qwen3"), config))
    for wanted in (2**31, 2**33, 10**30):
        for ask in (d2.generate, d2.stream_generate):
            with pytest.raises(
                d2.SettingError, match=rf"max_tokens: got {wanted}, expected an integer in 1\.\.{2**31 - 1}"
            ):
                ask(engine, [3, 4], d2.GenerationConfig(max_tokens=wanted))
    d2.stream_generate(engine, [3, 4], d2.GenerationConfig(max_tokens=2**31 - 1)).close()


def test_a_context_cuts_what_is_too_long():
    engine = tiny_engine(
        target=make_target(lively_model("qwen3"), {**target_config("qwen3"), "max_position_embeddings": 9})
    )
    result = d2.generate(engine, [3, 4], d2.GenerationConfig(max_tokens=2**40))
    assert len(result.token_ids) == 7
    assert any(f"max_tokens: {2**40} was cut to 7" in notice for notice in result.stats.notices)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (d2.GenerationConfig(mode="dflash2"), ("mode", "'dflash2'", "no drafter")),
        (d2.GenerationConfig(sampling=d2.SamplingConfig(logit_bias={VOCAB: 1.0})), ("logit_bias", VOCAB)),
    ],
)
def test_settings_the_engine_cannot_serve(config, parts):
    with pytest.raises(d2.ConfigError) as caught:
        d2.stream_generate(tiny_engine(), [3, 4], config)
    mentions(caught.value, *parts)


def test_a_width_beyond_the_drafters_block():
    engine = bootstrap_pair()
    with pytest.raises(d2.ConfigError) as caught:
        d2.stream_generate(engine, [3, 4], d2.GenerationConfig(block_size=engine.block_size + 1))
    mentions(caught.value, "block_size", engine.block_size + 1, f"2..{engine.block_size}")

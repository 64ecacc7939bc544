"""Chats with a prefix cache: templates that rewrite earlier turns, shared system prompts, other arguments (CK-21).

The template is that of reasoning models in small: a reply begins inside a thought, and an earlier thought is left out
of the history, so that no later prompt begins with an earlier one and its reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.generation.text import render_prompt
from tests.engines import SpellingTokenizer, tiny_engine
from tests.runs import lively_target
from tests.tiny import make_tiny_drafter

ROLES = {"system": 180, "user": 181, "assistant": 182}
END, THINK, THOUGHT = 183, 184, 185
CONFIG = d2.GenerationConfig(max_tokens=10)
SYSTEM = {"role": "system", "content": "<9><8><7><6><5><4><3><2><44><45><46><47>"}


class ThinkingTokenizer(SpellingTokenizer):
    has_chat_template = True

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, thinking: bool = True
    ) -> list[int]:
        if all(message["role"] == "system" for message in messages) and not thinking:
            raise ValueError("No user query found in messages.")
        ids: list[int] = []
        for message in messages:
            content = self.encode(message["content"])
            if message["role"] == "assistant" and THOUGHT in content:
                content = content[content.index(THOUGHT) + 1 :]
            ids += [ROLES[message["role"]], *content, END]
        if add_generation_prompt:
            ids += [ROLES["assistant"], THINK, *([] if thinking else [THOUGHT])]
        return ids


def engine_of(family: str) -> d2.Engine:
    drafter = owner().call(make_tiny_drafter)
    target = owner().call(lambda: lively_target(family))
    return replace(tiny_engine(family, drafter, target=target), tokenizer=ThinkingTokenizer())


def user(*ids: int) -> dict[str, str]:
    return {"role": "user", "content": "".join(f"<{token}>" for token in ids)}


def assert_turn(engine: d2.Engine, messages: list[Any], cache: d2.PrefixCache, known: int, **settings: Any) -> str:
    config = replace(CONFIG, **settings)
    fresh = d2.generate(engine, messages, config)
    found = d2.generate(engine, messages, config, prefix_cache=cache)
    assert found.token_ids == fresh.token_ids
    assert (found.stats.cached_tokens, found.stats.rounds) == (known, fresh.stats.rounds)
    assert found.to_dict()["cached_tokens"] == known
    return found.text


@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer"])
def test_turns_whose_history_is_rewritten(family: str) -> None:
    engine, cache = engine_of(family), d2.PrefixCache(max_entries=8)
    chat: list[Any] = [SYSTEM, user(11, 12, 13, 14, 15)]
    before = 14 + 7
    reply = assert_turn(engine, chat, cache, 0)
    assert_turn(engine, chat, cache, before)  # again: only what has the reply begin is read
    for turn in range(2):
        chat = [*chat, {"role": "assistant", "content": f"{reply}<{THOUGHT}><20><21>"}, user(30 + turn, 31)]
        reply = assert_turn(engine, chat, cache, before)
        before += 4 + 4

    # Another chat with that system prompt, and another system prompt.
    assert_turn(engine, [SYSTEM, user(90, 91, 92)], cache, 14)
    assert_turn(engine, [{**SYSTEM, "content": SYSTEM["content"] + "<1>"}, user(90)], cache, 0)
    # Other template arguments: other tokens behind the same messages.
    assert_turn(engine, [SYSTEM, user(90, 91, 92)], cache, 14 + 5, chat_template_kwargs={"thinking": False})


def test_boundaries_of_a_prompt() -> None:
    def boundaries(messages: Any, **settings: Any) -> tuple[int, ...]:
        return render_prompt(ThinkingTokenizer(), messages, find_boundaries=True, **settings).boundaries

    assert boundaries([SYSTEM, user(1, 2)]) == (14, 18)
    assert boundaries([user(1, 2)]) == (4,)
    assert boundaries("<1><2>") == (4,)
    # A template that refuses a system prompt alone still gives the other one.
    assert boundaries([SYSTEM, user(1, 2)], template_kwargs={"thinking": False}) == (18,)
    assert boundaries("<1><2>", chat_template=False) == () == boundaries([1, 2, 3])
    assert render_prompt(ThinkingTokenizer(), [SYSTEM, user(1)]).boundaries == ()

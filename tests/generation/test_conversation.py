"""A chat reads every token once, and never takes for known what is not (CK-21)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from tests.engines import tiny_engine
from tests.runs import PROMPT
from tests.tiny import VOCAB, make_tiny_drafter

FAMILIES = ["qwen3", "qwen3_5"]  # attention only, which can be cut back; and recurrent, which cannot
USER, ASSISTANT, END, SYSTEM, MERGED = (VOCAB - number for number in range(2, 7))
QUESTION = "".join(chr(0x100 + token) for token in PROMPT[:6])
REPLY_TOKENS = 8


class MergingTokenizer:
    """Token n is one character, but two tokens that follow each other in replies have a common token too.

    A model that wrote the two gets the one when its reply is encoded again, as with real tokenizers.
    """

    has_chat_template, has_thinking = True, False
    chat_template: Any = None

    def __init__(self, pair: tuple[int, int]):
        self.pair = "".join(chr(0x100 + token) for token in pair)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(character) - 0x100 for character in text.replace(self.pair, chr(0x100 + MERGED))]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(0x100 + token) for token in ids).replace(chr(0x100 + MERGED), self.pair)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, tokenize: bool = True, **more: Any
    ) -> Any:
        marks = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}
        text = "".join(
            chr(0x100 + marks[message["role"]]) + message["content"] + chr(0x100 + END) for message in messages
        )
        text += chr(0x100 + more.get("mark", ASSISTANT)) if add_generation_prompt else ""
        return self.encode(text) if tokenize else text


@functools.cache
def engine_and_pair(family: str, drafted: bool, windowless: bool) -> tuple[d2.Engine, tuple[int, int]]:
    """An engine, and two tokens that follow each other in its reply to the question."""
    changes = {"layer_types": ["full_attention"] * 2} if windowless else {}
    drafter = owner().call(lambda: make_tiny_drafter(**changes)) if drafted else None
    engine = replace(tiny_engine(family, drafter, stops=[END]), tokenizer=MergingTokenizer((0, 0)))
    ids = d2.generate(engine, d2.Conversation(engine).prompt([user(QUESTION)]), config()).token_ids
    return engine, (ids[1], ids[2])


def conversation(family: str = "qwen3", *, drafted: bool = True, windowless: bool = False) -> d2.Conversation:
    engine, pair = engine_and_pair(family, drafted, windowless)
    return d2.Conversation(replace(engine, tokenizer=MergingTokenizer(pair)))


def config(**changes: Any) -> d2.GenerationConfig:
    return d2.GenerationConfig(max_tokens=REPLY_TOKENS, **changes)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def turn(chat: d2.Conversation, messages: list[dict[str, str]], **changes: Any) -> d2.GenerationResult:
    """One reply, appended to the messages; checked against a cold run on the same ids."""
    prompt = chat.prompt(messages)
    text = chat.engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert chat.engine.tokenizer.decode(prompt) == text
    result = d2.collect(chat.engine, chat.stream(prompt, config(**changes)))
    cold = d2.generate(chat.engine, prompt, config(**changes))
    assert result.token_ids == cold.token_ids
    assert result.stats.reached == cold.stats.reached, "a later turn drafts as well as a cold one"
    messages.append(assistant(result.text))
    return result


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_turn_reads_only_what_is_new(family: str, drafted: bool) -> None:
    chat, messages = conversation(family, drafted=drafted), [user(QUESTION)]
    first = turn(chat, messages)
    assert first.stats.cached_tokens == 0
    messages.append(user(QUESTION[::-1]))
    again = chat.engine.tokenizer.encode(first.text)
    assert again != first.token_ids, "the tokenizer must cut the reply in another way, or nothing is tested"
    second = turn(chat, messages)
    read = first.stats.prompt_tokens + len(first.token_ids) - 1
    assert second.stats.cached_tokens == read  # the last token of a reply was written, but not read yet
    messages.append(user(QUESTION))
    third = turn(chat, messages)
    assert third.stats.cached_tokens == second.stats.prompt_tokens + len(second.token_ids) - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_taken_back_is_not_remembered(family: str) -> None:
    chat, messages = conversation(family), [user(QUESTION)]
    turn(chat, messages)
    for other in ([user(QUESTION[::-1])], [user(QUESTION)], [*messages[:1], assistant(QUESTION), user("\u0101\u0102")]):
        turn(chat, list(other))
    turn(chat, [{"role": "system", "content": "\u0105"}, *messages, user(QUESTION)])


def test_a_shorter_history_is_cut_back_to() -> None:
    # A drafter without a window, whose context can be cut back as the target's can.
    chat, messages = conversation("qwen3", windowless=True), [user(QUESTION)]
    turn(chat, messages)
    messages.append(user(QUESTION[::-1]))
    second = turn(chat, messages)
    retried = turn(chat, messages[:3])
    assert retried.stats.cached_tokens == second.stats.prompt_tokens - 1
    undone = turn(chat, [*messages[:2], user("\u0101")])
    assert undone.stats.cached_tokens > second.stats.prompt_tokens - 1 - len(QUESTION) - 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cancelled_reply_is_continued_from(family: str) -> None:
    chat, messages = conversation(family), [user(QUESTION)]
    seen, events = "", chat.stream(chat.prompt(messages), config())
    for event in events:
        seen += event.text
        if len(seen) > 3:
            break
    events.close()
    held = chat.reply_text()
    assert held.startswith(seen)
    messages += [assistant(held), user(QUESTION)]
    result = turn(chat, messages)
    first = len(chat.engine.tokenizer.encode(QUESTION)) + 3
    assert result.stats.cached_tokens >= first + len(held) - 1


def test_another_mode_starts_anew() -> None:
    chat, messages = conversation(), [user(QUESTION)]
    turn(chat, messages)
    messages.append(user(QUESTION))
    assert turn(chat, messages, mode="plain").stats.cached_tokens == 0
    messages.append(user(QUESTION))
    assert turn(chat, messages, mode="plain").stats.cached_tokens > 0


def test_refused_prompts_leave_the_conversation_usable() -> None:
    chat, messages = conversation(), [user(QUESTION)]
    turn(chat, messages)
    with pytest.raises(d2.PromptError, match="messages: got none"):
        chat.prompt([])
    with pytest.raises(d2.PromptError, match="got token id"):
        chat.stream([VOCAB + 5])
    messages.append(user(QUESTION))
    assert turn(chat, messages).stats.cached_tokens > 0
    chat.reset()
    assert chat.reply_text() == ""
    assert turn(chat, messages[:3]).stats.cached_tokens == 0


def test_template_variables_reach_the_template() -> None:
    chat = conversation()
    plain, marked = chat.prompt([user(QUESTION)]), chat.prompt([user(QUESTION)], {"mark": USER})
    assert plain[:-1] == marked[:-1] and (plain[-1], marked[-1]) == (ASSISTANT, USER)


def test_without_a_template_the_last_message_is_continued() -> None:
    chat = d2.Conversation(tiny_engine("qwen3"))
    assert not chat.has_template and chat.thinking is None and chat.template_variables == frozenset()
    assert chat.prompt([user("<1><2>"), assistant("<3>"), user("<4><5>")]) == [4, 5]
    assert not chat.opens_thinking([4, 5])


@pytest.mark.parametrize(
    ("template", "known"),
    [
        ("{% if enable_thinking %}{{ messages[0].content }}{% endif %}", {"enable_thinking", "messages"}),
        ("{%- generation -%}{{ reasoning_effort }}{% endgeneration %}", {"reasoning_effort"}),
        ({"default": "{{ a }}", "tool_use": "{{ b }}"}, {"a"}),
        ("{% for m in messages %}{% break %}{% endfor %}", {"messages"}),
        ("{% broken", set()),
        (None, set()),
    ],
)
def test_the_variables_of_a_template(template: object, known: set[str]) -> None:
    chat = conversation()
    chat.engine.tokenizer.chat_template = template
    assert chat.template_variables == known


def test_thinking_is_what_the_tokenizer_says() -> None:
    chat = conversation()
    tokenizer = chat.engine.tokenizer
    assert chat.thinking is None and not chat.opens_thinking([1, 2])
    tokenizer.has_thinking, tokenizer.think_start, tokenizer.think_end = True, "\u0165\u0166", "\u0167"
    assert chat.thinking == d2.ThinkingMarks("\u0165\u0166", "\u0167")
    opening, line_end = [0x65, 0x66], [ord("\n") - 0x100]
    assert chat.opens_thinking([1, 2, *opening]) and chat.opens_thinking([1, *opening, *line_end])
    assert not chat.opens_thinking([1, *opening, 0x67])
    assert not chat.opens_thinking([*opening, 3])


def test_two_chats_at_once_do_not_meet() -> None:
    # One engine, two conversations, their replies step by step in turn (CK-16).
    chats = [conversation(), conversation()]
    questions = [QUESTION, QUESTION[::-1]]
    prompts = [chat.prompt([user(text)]) for chat, text in zip(chats, questions, strict=True)]
    streams = [chat.stream(prompt, config()) for chat, prompt in zip(chats, prompts, strict=True)]
    ids: list[list[int]] = [[], []]
    running = [0, 1]
    while running:
        for number in list(running):
            event = next(streams[number], None)
            if event is None:
                running.remove(number)
            else:
                ids[number] += event.token_ids
    for chat, prompt, mine in zip(chats, prompts, ids, strict=True):
        assert mine == d2.generate(chat.engine, prompt, config()).token_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_another_chat_reads_nothing_that_an_earlier_one_read(family: str) -> None:
    """What chats share through a prefix cache: the reply's own cut, and the prompt up to where other prompts part."""
    cache = d2.PrefixCache()

    def chat() -> d2.Conversation:
        found = conversation(family)
        return d2.Conversation(replace(found.engine, fingerprint=f"chats {family}"), prefix_cache=cache)

    messages = [user(QUESTION)]
    first = turn(chat(), messages)
    again = turn(chat(), messages[:1])
    assert again.stats.cached_tokens >= first.stats.prompt_tokens - 1
    later = turn(chat(), [*messages, user(QUESTION[::-1])])
    assert later.stats.cached_tokens > 0


def test_boundaries_move_with_the_cut() -> None:
    from dflash2_mlx.generation.conversation import _moved

    ids, recut = [1, 2, 3, 4, 9, 5, 6], [1, 2, 3, 7, 8, 9, 5, 6]
    assert _moved((2, 5), ids, recut) == (2, 6), "in front of the change, and counted from the end behind it"
    assert _moved((4,), ids, recut) == (5,)
    assert _moved((7,), ids, recut) == ()

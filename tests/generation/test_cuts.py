"""A chat's earlier replies keep their tokens with real tokenizers, SentencePiece's above all (CK-21)."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.generation.cuts import continued, cut_text, cut_tokens, joined, with_reply
from tests.engines import tiny_engine
from tests.spelled import BLANK, SPECIAL, STYLES, WORDS, byte_level_tokenizer, sentencepiece_tokenizer
from tests.tiny import VOCAB, make_tiny_drafter

_TURNS = (
    "{%% for m in messages %%}{%% if m.role == 'user' %%}%s{%% else %%}%s{%% endif %%}{%% endfor %%}"
    "{%% if not add_generation_prompt %%}{%% endif %%}"
)
TEMPLATES = {
    "tight": _TURNS % ("<s>[INST]{{ m.content }}[/INST]", "{{ m.content }}</s>"),
    "blanks": _TURNS % ("<s>[INST] {{ m.content }} [/INST]", " {{ m.content }}</s>"),
    "Llama 2": _TURNS % ("<s>[INST] {{ m.content | trim }} [/INST]", " {{ m.content | trim }} </s>"),
    "Mistral": "<s>" + _TURNS % ("[INST] {{ m.content }} [/INST]", "{{ m.content | trim }}</s>"),
    "words": _TURNS % ("the.{{ m.content }}\nthe,", " {{ m.content }}\n"),
}
# Under "never" a reply's first blank is of its text: the other templates make another text of it.
CASES = [(style, name) for style in STYLES for name in TEMPLATES if style != "never" or name in ("tight", "Llama 2")]
REPLY_TOKENS = 8


@functools.cache
def engine(family: str) -> d2.Engine:
    return tiny_engine(family, owner().call(make_tiny_drafter), stops=[SPECIAL.index("</s>")])


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def text_of(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def config(tokenizer: Any) -> d2.GenerationConfig:
    """Replies of words and characters alone."""
    allowed = [*(BLANK + word for word in WORDS), *"catdogs", BLANK]
    known = {tokenizer.convert_tokens_to_ids(piece) for piece in allowed}
    bias = {token: -100.0 for token in range(VOCAB) if token not in known}
    return d2.GenerationConfig(max_tokens=REPLY_TOKENS, sampling=d2.SamplingConfig(logit_bias=bias))


def begins_a_word(tokenizer: Any, result: d2.GenerationResult) -> bool:
    """As real models' replies do behind a mark; and no blank at the end, which some templates take away."""
    first = tokenizer.convert_ids_to_tokens(result.token_ids[0])
    return first.startswith(BLANK) and first != BLANK and result.text == result.text.rstrip()


def first_turn(chat: d2.Conversation, tokenizer: Any) -> tuple[list[dict[str, str]], list[int], d2.GenerationResult]:
    """A question, its prompt, and a reply that begins a word; with BPE one that its text alone is not encoded to."""
    merges = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"
    for words in itertools.product(WORDS, repeat=2):
        messages = [user(" ".join(words))]
        prompt = chat.prompt(messages)
        result = d2.collect(chat.engine, chat.stream(prompt, config(tokenizer)))
        again = tokenizer.encode(result.text, add_special_tokens=False)
        if begins_a_word(tokenizer, result) and not (merges and again == result.token_ids):
            return messages, prompt, result
        chat.reset()
    raise AssertionError("no such reply")


@pytest.mark.parametrize("model", ["unigram", "bpe"])
@pytest.mark.parametrize(("style", "template"), CASES)
def test_an_earlier_reply_is_reused(style: str, model: str, template: str) -> None:
    tokenizer = sentencepiece_tokenizer(style, model, TEMPLATES[template])
    family = "qwen3_5" if model == "bpe" else "qwen3"  # recurrent, whose state cannot be cut back; and attention
    chat = d2.Conversation(replace(engine(family), tokenizer=tokenizer))
    messages, prompt, first = first_turn(chat, tokenizer)
    read = [*prompt, *first.token_ids]
    for question in ("Hello world", "how are you"):
        messages += [{"role": "assistant", "content": first.text}, user(question)]
        plain = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        prompt = chat.prompt(messages)
        assert prompt[: len(read)] == read, "what was read stands at the beginning"
        tail = prompt[len(read) :]
        assert tail == plain[-len(tail) :], "behind it nothing is encoded otherwise: no blank is gained"
        known = cut_text(tokenizer, text_of(tokenizer, messages), plain)
        assert known is not None
        end = known.ends[len(plain) - len(tail) - 1]
        assert end is not None and known.text[:end].endswith(first.text.strip())
        first = d2.collect(chat.engine, chat.stream(prompt, config(tokenizer)))
        assert first.stats.cached_tokens == len(read) - 1, "the last token was written, but not read"
        read = [*prompt, *first.token_ids]
        if not begins_a_word(tokenizer, first):
            return


@pytest.mark.parametrize("style", STYLES)
def test_an_edited_reply_is_reused_up_to_the_change(style: str) -> None:
    tokenizer = sentencepiece_tokenizer(style, "unigram", TEMPLATES["blanks"])
    ids = tokenizer.encode("<s>[INST] the cat [/INST]", add_special_tokens=False)
    prompt = cut_text(tokenizer, "<s>[INST] the cat [/INST]", ids)
    assert prompt is not None
    pieces = [BLANK + "the", BLANK, "c", "a", "t", BLANK + "dog"]
    reply = [tokenizer.convert_tokens_to_ids(piece) for piece in pieces]
    read = with_reply(tokenizer, prompt, reply)[0]
    assert read.text.endswith("[/INST] the cat dog")
    text = "<s>[INST] the cat [/INST] the cat ran</s>"
    whole = cut_text(tokenizer, text, tokenizer.encode(text, add_special_tokens=False))
    assert whole is not None
    found = joined(read, whole)
    assert found.ids == [*ids, *reply[:5], *tokenizer.encode("the ran</s>", add_special_tokens=False)[-2:]]


@pytest.mark.parametrize("trim_offsets", [False, True])
def test_byte_level_offsets_that_leave_blanks_out(trim_offsets: bool) -> None:
    """Llama 3's offsets do: no blank and no line end may be lost or doubled where two cuts are joined."""
    tokenizer = byte_level_tokenizer(trim_offsets=trim_offsets)
    text = "[INST] cat.\n\n  cat é[/INST] a cat.\n</s>[INST]c at \n[/INST]"
    whole = cut_text(tokenizer, text, tokenizer.encode(text, add_special_tokens=False))
    assert whole is not None and whole.ends[-1] == len(text)
    for count, end in enumerate(whole.ends, start=1):
        if end is not None:
            assert tokenizer.decode(whole.ids[:count]) == text[:end]
    for at in range(len(text)):
        head = text[:at]
        if "[" in head.replace("[INST]", "").replace("[/INST]", "") or "<" in head.replace("</s>", ""):
            continue  # inside a special token
        read = cut_tokens(tokenizer, [i for s in head for i in tokenizer.encode(s, add_special_tokens=False)])
        assert tokenizer.decode(joined(read, whole).ids) == text
        longer = continued(tokenizer, read, text)
        assert longer is None or tokenizer.decode(longer.ids) == text


@pytest.mark.parametrize("style", STYLES)
def test_what_follows_is_not_encoded_alone_where_that_gains_a_blank(style: str) -> None:
    tokenizer = sentencepiece_tokenizer(style)
    read = cut_tokens(tokenizer, tokenizer.encode("the ca", add_special_tokens=False))
    assert read.text == "the ca"
    found = continued(tokenizer, read, "the cat sat")
    if style == "never":
        assert found is not None and tokenizer.decode(found.ids) == "the cat sat"
    else:
        assert found is None

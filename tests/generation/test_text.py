"""Tokens to text without broken characters, and stop strings across token borders (CK-20, CK-11)."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

import dflash2_mlx as d2
from dflash2_app.engine import token_text
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.generation.text import REPLACEMENT, TextStream
from tests.engines import tiny_engine
from tests.pairs import BOOTSTRAP
from tests.runs import PROMPT, lively_target, plain_reply
from tests.scripted import ScriptedDrafter
from tests.spelled import STYLES, byte_level_tokenizer, byte_token, sentencepiece_tokenizer
from tests.tiny import VOCAB

TEXTS = {
    "ascii": "def add(a, b):\n    return a + b\n",
    "accents": "Ça coûte 12 €, naïve Å Ω — “quoted”",
    "combining": "e\u0301 o\u0308 n\u0303",
    "cjk": "日本語の文章。中文,한국어",
    "flags": "🇨🇦🇯🇵🇺🇳",
    "zwj": "👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈",
    "variation selectors": "☎️ ❤️ ✌🏿 ⚡︎",
    "rtl": "שלום مرحبا",
    "astral": "𝔘𝔫𝔦 🜁 𓀀",
    "replacement character": "a\ufffdb \ufffd\ufffd end\ufffd",
    "controls": "a\x00b\tc\r\nd\u200b\u2028e",
    "empty lines": "\n\n\n",
}


class Bytes:
    """A byte-level tokenizer: token i stands for `pieces[i]`; broken characters decode to U+FFFD."""

    has_chat_template = False

    def __init__(self, pieces: Sequence[bytes]):
        self.pieces = list(pieces)

    def encode(self, text: str, **_: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


def stream(pieces: Sequence[bytes], *, blocks: int = 1, stops: Sequence[str] = ()) -> list[str]:
    """What readers get, block by block, the end included."""
    text = TextStream(Bytes(pieces), stops)
    out = []
    for start in range(0, len(pieces), blocks):
        piece = ""
        for token in range(start, min(start + blocks, len(pieces))):
            piece += text.push(token)
            if text.stopped:
                break
        out.append(piece)
        if text.stopped:
            break
    return [*out, text.finish()]


def whole(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", errors="replace")


def check(pieces: Sequence[bytes]) -> None:
    """Joined pieces are the text; nothing uncertain is shown, and after a whole character all of it is."""
    text = TextStream(Bytes(pieces))
    shown, seen = "", b""
    for token, piece in enumerate(pieces):
        shown += text.push(token)
        seen += piece
        certain = seen.decode("utf-8", errors="ignore")  # leaves out an unfinished character
        assert certain.startswith(shown)
        if certain.encode() == seen and not certain.endswith(REPLACEMENT):  # a real U+FFFD has to wait
            assert shown == certain
    assert shown + text.finish() == whole(pieces)


@pytest.mark.parametrize("name", TEXTS)
def test_cut_at_every_byte(name):
    data = TEXTS[name].encode()
    check([bytes([byte]) for byte in data])
    for cut in range(1, len(data)):
        check([data[:cut], data[cut:]])


@pytest.mark.parametrize("name", TEXTS)
def test_cut_into_random_tokens_in_blocks_of_1_to_16(name):
    data = TEXTS[name].encode()
    for blocks in range(1, 17):
        chance = random.Random(blocks)
        cuts = sorted(chance.sample(range(1, len(data)), min(len(data) - 1, 3 + len(data) // 3)))
        pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
        check(pieces)
        parts = stream(pieces, blocks=blocks)
        assert "".join(parts) == TEXTS[name]
        if REPLACEMENT not in TEXTS[name]:
            assert not any(REPLACEMENT in part for part in parts)


def test_bytes_that_never_become_a_character():
    for data in (b"\xff", b"a\x80b", b"\xe2\x82", b"ok \xf0\x9f\x92", b"\xe2\x28\xa1", b"\x80" * 5 + b"end"):
        pieces = [bytes([byte]) for byte in data]
        for blocks in (1, 3, 16):
            assert "".join(stream(pieces, blocks=blocks)) == whole(pieces)


def test_tokens_without_text():
    assert "".join(stream([b"a", b"", b"", "é".encode()[:1], b"", "é".encode()[1:], b""])) == "aé"
    assert stream([]) == [""]
    assert stream([b"", b""]) == ["", "", ""]


class Words(Bytes):
    """A tokenizer whose pieces begin with a space that the first one of a text loses."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return super().decode(ids).removeprefix(" ")


def test_a_leading_space_is_lost_once_only():
    pieces = [b" Hello", b" world", b",", b" again", b" ", b" x"]
    text = TextStream(Words(pieces))
    shown = [text.push(token) for token in range(len(pieces))]
    assert shown == ["Hello", " world", ",", " again", " ", " x"]


# The tokenizer of the embedded pair.


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(BOOTSTRAP / "target")


@pytest.mark.parametrize("name", TEXTS)
def test_the_trained_pairs_tokenizer(tokenizer, name):
    ids = tokenizer.encode(TEXTS[name])
    text = TextStream(tokenizer)
    parts = [text.push(token) for token in ids]
    assert "".join(parts) + text.finish() == tokenizer.decode(ids) == TEXTS[name]
    if REPLACEMENT not in TEXTS[name]:
        assert not any(REPLACEMENT in part for part in parts)
    if name in ("flags", "zwj", "cjk"):
        assert "" in parts, "no character was split between tokens here"


def test_any_ids_of_the_trained_pairs_tokenizer(tokenizer):
    # What a model may emit, well-formed or not, special tokens included.
    for seed in range(30):
        ids = [random.Random(1000 * seed + n).randrange(4096 if n % 3 else 300) for n in range(40)]
        text = TextStream(tokenizer)
        parts = [text.push(token) for token in ids]
        assert "".join(parts) + text.finish() == tokenizer.decode(ids)


# Broken bytes: whatever they are, the pieces join to one decode of all tokens.

EDGES = [
    0x00,
    0x0A,
    0x20,
    0x41,
    0x7F,
    0x80,
    0xA0,
    0xBF,
    0xC0,
    0xC3,
    0xE0,
    0xE4,
    0xBD,
    0xED,
    0xEF,
    0xF0,
    0x9F,
    0xF4,
    0xFF,
]
BYTE_TOKENIZERS = ["byte-level", *STYLES]


def byte_tokenizer(name: str) -> tuple[Any, list[int], list[int]]:
    """A tokenizer, its token of each byte, and tokens that are whole words, blanks or special."""
    if name == "byte-level":
        tokenizer = byte_level_tokenizer()
        alphabet = token_text._byte_alphabet()
        ids = {byte: tokenizer.convert_tokens_to_ids(sign) for sign, byte in alphabet.items()}
        return tokenizer, [ids[byte] for byte in range(256)], tokenizer.encode(" cat.\n</s>cat")
    tokenizer = sentencepiece_tokenizer(name)
    return (
        tokenizer,
        [tokenizer.convert_tokens_to_ids(byte_token(byte)) for byte in range(256)],
        tokenizer.encode("the cat</s> \n", add_special_tokens=False),
    )


def joins(tokenizer: Any, ids: list[int]) -> None:
    """Streamed and decoded at once, the text is the same, and at no time is anything shown that it is not."""
    text, shown, whole_text = TextStream(tokenizer), "", tokenizer.decode(ids)
    for token in ids:
        shown += text.push(token)
        assert whole_text.startswith(shown), ids
    assert shown + text.finish() == whole_text, ids


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BYTE_TOKENIZERS)
def test_any_four_bytes_join(name: str, count: int) -> None:
    tokenizer, ids, others = byte_tokenizer(name)
    chance = random.Random(count)
    for _ in range(count):
        data = [chance.choice(EDGES) if chance.random() < 0.7 else chance.randrange(256) for _ in range(4)]
        joins(tokenizer, [ids[byte] for byte in data])
        behind = [chance.choice(others), *(ids[byte] for byte in data), chance.choice(others)]
        joins(tokenizer, behind)
        joins(tokenizer, [*behind, *(ids[byte] for byte in reversed(data)), chance.choice(others)])


@pytest.mark.parametrize("name", STYLES)
def test_an_invalid_byte_behind_whole_characters_of_bytes(name: str) -> None:
    tokenizer, ids, _ = byte_tokenizer(name)
    run = [ids[byte] for byte in "é你".encode()]
    text = TextStream(tokenizer)
    assert [text.push(token) for token in run] == [""] * 5, "an invalid byte may follow, which would change them"
    assert text.push(ids[0x80]) == "" and text.finish() == REPLACEMENT * 6 == tokenizer.decode([*run, ids[0x80]])
    text = TextStream(tokenizer)
    word = tokenizer.convert_tokens_to_ids("\u2581cat")
    assert "".join(text.push(token) for token in [*run, word]) == "é你 cat", "once the bytes end, all is shown"


def test_a_stop_string_of_bytes_is_found_at_once() -> None:
    # Llama 2 writes a line end as a byte: the reply must not run on until the bytes end.
    tokenizer, ids, _ = byte_tokenizer("legacy")
    text = TextStream(tokenizer, ["\n\n"])
    word = tokenizer.convert_tokens_to_ids("\u2581cat")
    assert [text.push(token) for token in [word, ids[0x0A], ids[0x0A]]] == ["cat", "", ""]
    assert text.stopped and text.finish() == ""


def test_half_a_character_is_no_replacement_character_yet() -> None:
    text = TextStream(Bytes([b"a", b"\xc3", b"\xa9", b"\xff", b"b"]), [REPLACEMENT])
    assert [text.push(0), text.push(1), text.push(2)] == ["a", "", "é"] and not text.stopped
    assert [text.push(3), text.push(4)] == ["", ""] and text.stopped


# Whole replies: what a stream of events says, in blocks of 1 to 16 tokens.


@pytest.mark.parametrize("width", [1, 2, 5, 16])
def test_events_join_to_the_text_of_their_tokens(width):
    sample = "".join(TEXTS[name] for name in ("accents", "cjk", "flags", "zwj")).encode()
    pieces = [sample[3 * n % len(sample) : 3 * n % len(sample) + 2] for n in range(VOCAB)]  # halves of characters
    text = plain_reply(lively_target("qwen3"), PROMPT, 50)
    drafter = owner().call(lambda: ScriptedDrafter([*PROMPT, *text], [-1, 3, 0], block_size=16))
    engine = dataclasses.replace(tiny_engine("qwen3", drafter), tokenizer=Bytes(pieces))
    mode, block = ("plain", None) if width == 1 else ("dflash2", width)
    config = d2.GenerationConfig(max_tokens=50, mode=mode, block_size=block, stop_token_ids=())
    events = list(d2.stream_generate(engine, PROMPT, config))
    ids = [token for event in events for token in event.token_ids]
    assert ids == text
    whole_text = engine.tokenizer.decode(ids)
    assert "".join(event.text for event in events) == whole_text
    shown = ""
    for event in events:
        shown += event.text
        assert whole_text.startswith(shown)


# Stop strings.


def stopped(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, int | None]:
    """Text and the token that completed a stop string, by brute force."""
    seen = b""
    for number, piece in enumerate(pieces):
        seen += piece
        text = seen.decode("utf-8", errors="ignore")
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], number
    return whole(pieces), None


def is_whole(data: bytes) -> bool:
    return data.decode("utf-8", errors="ignore").encode() == data


def check_stops(pieces: Sequence[bytes], stops: Sequence[str]) -> None:
    """The cut is where brute force finds it; a token that ends inside a character may delay the find by itself."""
    text = TextStream(Bytes(pieces), stops)
    shown, at = "", None
    want, want_at = stopped(pieces, stops)
    for token in range(len(pieces)):
        shown += text.push(token)
        assert want.startswith(shown), "something of a stop string was shown"
        if text.stopped:
            at = token
            break
    assert shown + text.finish() == want
    assert text.stopped == (want_at is not None)
    if want_at is not None and is_whole(b"".join(pieces[: want_at + 1])):
        assert at == want_at


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("one two END three", ["END"]),
        ("aaab aab aaaab", ["aab"]),
        ("ababac", ["abac"]),
        ("abcabd", ["abd"]),
        ("x\n\ny", ["\n\n"]),
        ("日本語の文章", ["語の"]),
        ("a 👩‍👧 b", ["👩‍👧"]),
        ("a 👩‍👧 b", ["👧"]),
        ("naïve café", ["é"]),
        ("first second", ["second", "first", "st"]),
        ("abcdef", ["cde", "cd", "bcdef"]),
        ("END", ["END"]),
        ("nothing here EN", ["END", "ENDE"]),
        ("almost EN", ["END"]),
    ],
)
def test_stop_strings_across_every_border(text, stops):
    data = text.encode()
    check_stops([bytes([byte]) for byte in data], stops)
    for first, second in itertools.combinations(range(1, len(data)), 2):
        check_stops([data[:first], data[first:second], data[second:]], stops)
    check_stops([data], stops)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"ba", b"aab", b"", "é".encode()[:1], "é".encode()[1:]]), max_size=14),
    st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_in_any_text(pieces, stops):
    try:
        b"".join(pieces).decode()
    except UnicodeDecodeError:
        return  # broken characters are the other tests' matter
    check_stops(pieces, stops)


def test_after_a_stop_nothing_more_comes():
    text = TextStream(Bytes([b"a", b"STOPb", b"c"]), ["STOP"])
    assert [text.push(0), text.push(1)] == ["a", ""]
    assert text.stopped
    assert text.finish() == ""


def test_no_more_is_held_back_than_may_become_a_stop():
    text = TextStream(Bytes([b"xEN", b"E", b"EN", b"x"]), ["END"])
    assert [text.push(n) for n in range(4)] == ["x", "EN", "E", "ENx"]


@pytest.mark.parametrize(
    ("last", "stop"),
    [
        (b"END\xe2", "END"),  # half a character keeps the text back
        (b"D\xf0\x9f", "END"),
        ("\ufffd".encode(), "\ufffd"),  # looks like half a character, and is certain only at the end
        (b"D\xff", "END\ufffd"),
    ],
)
@pytest.mark.parametrize("mode", ["plain", "dflash2"])
def test_a_stop_string_that_the_last_text_completes_is_no_length_limit(mode: str, last: bytes, stop: str) -> None:
    known = plain_reply(lively_target("qwen3"), PROMPT, 40)
    at = next(n for n in range(6, 40) if known[n] not in known[:n])
    pieces = [b"."] * VOCAB
    pieces[known[at]] = last
    pieces[known[at - 1]] = b"EN" if last.startswith(b"D") else b"."
    drafter = owner().call(lambda: ScriptedDrafter([*PROMPT, *known], [-1], block_size=4))
    engine = dataclasses.replace(tiny_engine("qwen3", drafter), tokenizer=Bytes(pieces))
    config = d2.GenerationConfig(max_tokens=at + 1, mode=mode, stop=(stop,), stop_token_ids=())
    result = d2.generate(engine, PROMPT, config)
    whole_text = engine.tokenizer.decode(known[: at + 1])
    assert result.finish_reason == "stop"
    assert result.text == whole_text[: whole_text.index(stop)]
    assert result.token_ids == known[: at + 1], "the token that completes a stop string counts, as elsewhere"
    assert result.stats.generated_tokens == at + 1
    without = dataclasses.replace(config, stop=("STOP",))
    assert d2.generate(engine, PROMPT, without).finish_reason == "length"

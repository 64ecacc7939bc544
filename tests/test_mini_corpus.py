"""tools/mini: the corpus the embedded pair learns from, its checks, and what of a conversation is learnt."""

from __future__ import annotations

import json
import random
import sys
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))

from mini.check import correct, visible  # noqa: E402
from mini.corpus import conversation, draw, questions, training  # noqa: E402
from mini.families import FAMILIES  # noqa: E402
from mini.sample import Check, held_out  # noqa: E402


def call_of(check: Check) -> str:
    return f"<tool_call>\n{json.dumps(check.data)}\n</tool_call>"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_passes_its_own_check_and_a_spoilt_answer_does_not(family: str) -> None:
    rng = random.Random(3)
    for _ in range(8 if family == "code" else 60):
        turn = draw(rng, family).turns[0]
        answer = turn.answer if turn.check.kind != "tool" else call_of(turn.check)
        assert correct(answer, turn.check), turn
        assert turn.brief is None or correct(turn.brief, turn.check), turn
        assert not correct("", turn.check)
        assert not correct("I do not know.", turn.check)


@pytest.mark.parametrize(
    ("answer", "check", "right"),
    [
        ("1. 40 + 2 = 42\n\n40 + 2 = **42**", Check("number", 42), True),
        ("3 km are **3000 metres**.", Check("number", 3000), True),
        ("Answer: Anna has 7 apples.", Check("number", 7), True),
        ("Answer: Anna has 7 apples.", Check("number", 8), False),
        ('```json\n{"a": 1}\n```', Check("json", {"a": 1}), True),
        ('```json\n{"a": 1\n```', Check("json", {"a": 1}), False),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', Check("tool", {"name": "f", "arguments": {}}), True),
        ("It is **Monday**.", Check("bold", "Tuesday"), False),
        ("a, b", Check("exact", "a, b"), True),
        ("a,b", Check("exact", "a, b"), False),
    ],
)
def test_checks(answer: str, check: Check, right: bool) -> None:
    assert correct(answer, check) is right


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("return n + 1", True),
        ("return 1 + n", True),
        ("return n", False),
        ("return", False),
        ("while True: pass", False),
    ],
)
def test_functions_are_run(body: str, right: bool) -> None:
    data = {"name": "f", "named": True, "source": "def f(n):\n    return n + 1", "calls": [(1,), (5,)]}
    assert correct(f"```python\ndef f(n):\n    {body}\n```", Check("python", data)) is right
    other = f"```python\ndef other(n):\n    {body}\n```"
    assert not correct(other, Check("python", data)), "a name that was asked for"
    assert correct(other, Check("python", data | {"named": False})) is right


def test_thoughts_are_not_part_of_the_answer() -> None:
    assert visible("<think>\n**3**\n</think>\n\n**4**") == visible("**3**\n</think>\n\n**4**") == "**4**"


def test_training_never_shows_a_held_out_question() -> None:
    asked = {sample.turns[0].user for family in FAMILIES for sample in questions(family, 5)}
    assert asked
    assert all(held_out(question) for question in asked)
    for item in islice(training(7), 2000):
        users = [message["content"] for message in item["messages"] if message["role"] == "user"]
        assert not any(held_out(user) or user in asked for user in users)


def test_the_stream_depends_on_its_seed_only() -> None:
    first, again, other = (list(islice(training(seed), 20)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_replies_are_learnt_and_questions_are_not() -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    from mini.tokens import TEMPLATE, encode

    tokenizer = transformers.AutoTokenizer.from_pretrained(
        Path(__file__).parent.parent / "dflash2_mlx/data/mini/target"
    )
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    rng = random.Random(5)
    for thinking in (False, True):
        samples = [draw(rng, family) for family in ("capitals", "units")]
        item = replace_system(conversation(samples, rng, thinking=thinking))
        tokens, learned = encode(tokenizer, item)
        text = tokenizer.decode([token for token, reply in zip(tokens, learned, strict=True) if reply])
        first, second = (sample.turns[0] for sample in samples)
        last = f"{second.brief or second.answer}<|im_end|>"
        if thinking:  # the earlier reply stands without its thought, so it is none to learn
            assert text == f"{second.thought}\n</think>\n\n{last}"
        else:
            assert text == f"{first.answer}<|im_end|>{second.answer}<|im_end|>"
        whole = tokenizer.apply_chat_template(item["messages"], tokenize=False)
        assert tokens == tokenizer.encode(whole, add_special_tokens=False)


def replace_system(item: dict) -> dict:
    return {**item, "messages": [message for message in item["messages"] if message["role"] != "system"]}


def test_a_target_sees_in_training_what_four_bits_keep() -> None:
    torch = pytest.importorskip("torch")
    from mini.target import four_bits

    rng = np.random.default_rng(0)
    weight = rng.normal(size=(32, 128)).astype(np.float32)
    weight[0, :64] = np.abs(weight[0, :64])  # groups whose edge is the highest, or all alike
    weight[1, :64] = 0.5
    stored = mx.quantize(mx.array(weight).astype(mx.bfloat16), group_size=64, bits=4)
    expected = np.array(mx.dequantize(*stored, group_size=64, bits=4).astype(mx.float32))
    found = four_bits(torch.from_numpy(weight).bfloat16().float()).numpy()
    scale = np.abs(weight).max() / 15
    assert np.abs(found - expected).max() < 0.5 * scale

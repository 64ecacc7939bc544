"""Thinking, answer and tool calls in streamed text: the same parts for every way to cut it (CK-20)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash2_app.web.serving.parts import CallReader, Marks, Part, PartReader

from .models import PARSERS

THINK = Marks("<think>", "</think>")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<b>"}}\n</tool_call>'
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "thinking, answer": ("<think>\nhm\n</think>\n\nyes", {"reasoning": "hm\n", "content": "yes"}),
    "no thinking": ("yes, <think> is a mark", {"content": "yes, <think> is a mark"}),
    "half a mark": ("<thin", {"content": "<thin"}),
    "thinking without end": ("<think>hm </thi", {"reasoning": "hm </thi"}),
    "call": (CALL, {"calls": ["f"]}),
    "text and calls": (f"Well.\n\n{CALL}\n{CALL}\n", {"content": "Well.", "calls": ["f", "f"]}),
    "thinking and call": (f"<think>\nhm\n</think>\n\n{CALL}", {"reasoning": "hm\n", "calls": ["f"]}),
    "call in thinking": (f"<think>{CALL}</think>no", {"reasoning": CALL, "content": "no"}),
    "unreadable call": ("<tool_call>{oops}</tool_call> x", {"content": "<tool_call>{oops}</tool_call> x"}),
    "cut call": ('<tool_call>{"name": "f"', {"content": '<tool_call>{"name": "f"'}),
    "call without end mark": ('a<tool_call>{"name": "f"}', {"content": "a", "calls": ["f"]}),
    "blank lines": ("a\n\nb\n", {"content": "a\n\nb\n"}),
    "half a call mark": ("a <tool", {"content": "a <tool"}),
}


def reader(**options: Any) -> PartReader:
    calls = CallReader(Marks("<tool_call>", "</tool_call>"), PARSERS["json_tools"].parse_tool_call, [])
    return PartReader(THINK, calls=calls, **options)


def joined(parts: list[Part]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "reasoning": "".join(part.reasoning for part in parts),
        "content": "".join(part.content for part in parts),
        "calls": [part.call.name for part in parts if part.call is not None],
    }
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("case", CASES)
def test_parts_do_not_depend_on_the_cuts(case: str) -> None:
    text, expected = CASES[case]
    for size in (1, 2, 3, 5, 7, 11, len(text)):
        one = reader()
        parts = [part for at in range(0, len(text), size) for part in one.push(text[at : at + size])]
        assert joined(parts + one.finish()) == expected, size
    for cut in range(1, len(text)):
        one = reader()
        assert joined(one.push(text[:cut]) + one.push(text[cut:]) + one.finish()) == expected, cut


def test_an_opened_prompt_begins_inside_the_thinking() -> None:
    one = reader(inside=True)
    assert joined(one.push("\nhm</think>ok") + one.finish()) == {"reasoning": "hm", "content": "ok"}


def test_text_is_passed_on_as_soon_as_it_is_certain() -> None:
    one = reader()
    assert one.push("abc <") == [Part(content="abc ")]
    assert one.push("b") == [Part(content="<b")]


def test_arguments_are_json_text_whatever_the_parser_gives() -> None:
    for parsed in ({"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": '{"a": 1}'}):
        calls = CallReader(Marks("[", ""), lambda text, tools, parsed=parsed: parsed, [])
        assert [json.loads(call.arguments) for call in calls.read("x")] == [{"a": 1}]
    for parsed in ({"name": "f"}, {"name": "f", "arguments": None}):
        assert CallReader(Marks("[", ""), lambda text, tools, parsed=parsed: parsed, []).read("x")[0].arguments == "{}"
    for odd in ({}, {"name": 3}, {"name": "f", "arguments": "{"}, None, [None], {"name": "f", "arguments": [1]},
                {"name": "f", "arguments": "3"}, {"name": "f", "arguments": 0}):  # fmt: skip
        assert CallReader(Marks("[", ""), lambda text, tools, odd=odd: odd, []).read("x") == []

"""The stages of a reply as masks: against strings written out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dflash2_app.web.http.errors import ApiError
from dflash2_app.web.serving.grammars import JSON_CALLS, XML_CALLS, Grammars
from dflash2_app.web.serving.rules import (  # fmt: skip
    Anything,
    BeforeThinking,
    Ending,
    Forced,
    Grammar,
    ReplyRules,
    Stage,
    Thinking,
    ThinkingMarks,
    Vocabulary,
)

from .models import VOCAB, chat_tokenizer, tool

WORDS = Vocabulary(20, frozenset({0}))
MARKS = ThinkingMarks((5,), (6, 7))


def allowed(rules: ReplyRules, *tokens: int) -> bool:
    """Whether a text may be written, told by one look ahead along all of it."""
    masks = rules.masks(tokens)
    return all(masks[at][token] for at, token in enumerate(tokens))


def test_a_look_ahead_changes_nothing_and_equals_going_there() -> None:
    first = Thinking(WORDS, MARKS, Forced(WORDS, (3, 4), Ending(WORDS)), budget=3)
    text = [1, 2, 6, 7, 3, 4, 0]
    ahead = ReplyRules(first).masks(text)
    walked = ReplyRules(first)
    for at, token in enumerate(text):
        np.testing.assert_array_equal(walked.masks([])[0], ahead[at])
        walked.masks([9, 9, 9])
        walked.commit([token])
    assert not ReplyRules(first).masks([1, 2, 6, 7, 8, 1])[5:].any(), "rows after a refused token are empty"


@pytest.mark.parametrize(("budget", "text"), [(0, [6, 7]), (1, [1, 6, 7]), (2, [1, 1, 6, 7]), (2, [1, 6, 7])])
def test_a_budget_counts_tokens_between_the_marks(budget: int, text: list[int]) -> None:
    rules = ReplyRules(Thinking(WORDS, MARKS, Anything(WORDS), budget))
    assert allowed(rules, *text, 9, 9, 9, 9)
    if len(text) == budget + 2:
        assert rules.masks(text[:budget])[-1].nonzero()[0].tolist() == [6], "the end mark, and nothing else"


def test_half_an_end_mark_at_the_border_is_finished_not_repeated() -> None:
    rules = ReplyRules(Thinking(WORDS, MARKS, Anything(WORDS), budget=2))
    assert rules.masks([1, 6])[-1].sum() == WORDS.size, "one token of thinking: half a mark does not count yet"
    assert rules.masks([1, 2, 6])[-1].nonzero()[0].tolist() == [7]
    assert rules.masks([1, 6, 6])[-1].nonzero()[0].tolist() == [7], "the mark restarts"


def test_thinking_may_be_left_out_and_may_not_end_a_reply_that_has_a_form() -> None:
    inside = Thinking(WORDS, MARKS, Forced(WORDS, (3,), Ending(WORDS)), may_stop=False)
    rules = ReplyRules(BeforeThinking(WORDS, MARKS, inside, inside.answer))
    assert allowed(rules, 5, 1, 6, 7, 3, 0) and allowed(rules, 3, 0)
    assert not allowed(rules, 5, 0) and not allowed(rules, 1) and not allowed(rules, 3, 3)


def test_a_trigger_starts_what_comes_next_every_time() -> None:
    def free() -> Stage:
        return Anything(WORDS, (8, 9), lambda: Forced(WORDS, (3,), free()))

    rules = ReplyRules(free())
    assert allowed(rules, 1, 8, 8, 9, 3, 9, 8, 9, 3)
    assert not allowed(rules, 8, 9, 4)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(chat_tokenizer(), frozenset({256}))


def fits(stage: Stage, text: str) -> bool:
    """Whether this text, and then the end, may be written."""
    return allowed(ReplyRules(stage), *text.encode(), 256)


def test_json_of_a_schema(grammars: Grammars) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    words = Vocabulary(VOCAB, frozenset({256}))
    plain = Grammar(words, grammars.schema(schema, "x"), Ending(words))
    after_thinking = Grammar(words, grammars.schema(schema, "x", lead=True), Ending(words))
    for text in ('{"a": 1}', '{"a":-12}', '{\n  "a": 1\n}'):
        assert fits(plain, text) and fits(after_thinking, text), text
        assert fits(after_thinking, "\n\n" + text) and not fits(plain, "\n" + text)
    for text in ('{"a": "1"}', "{}", '{"a": 1, "b": 2}', '{"a": 1', '{"a": 1} ', "", f'{{\n{" " * 40}"a": 1}}'):
        assert not fits(plain, text), text
    for text in ('{\n\n"a": 1}', '{  "a": 1}', '{ \n"a": 1}'):
        assert not fits(plain, text), f"{text!r}: a small model would go on with blanks for ever"
    for wrong in ({"type": "what"}, {"$ref": "#/no"}, {"pattern": "(", "type": "string"}, {"unevaluatedItems": 1}):
        with pytest.raises(ApiError, match=r"my\.field: got a schema that cannot be enforced"):
            grammars.schema(wrong, "my.field")


def test_calls_of_tools(grammars: Grammars) -> None:
    words = Vocabulary(VOCAB, frozenset({256}))
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
              "unit": {"enum": ["C", "F"]}}, "required": ["city"], "additionalProperties": False}  # fmt: skip
    tools = [tool("weather", schema), tool("noop", {"type": "object", "additionalProperties": False})]
    json_form = Grammar(words, grammars.tool_call(JSON_CALLS, tools), Ending(words))
    for arguments in ({"city": "Oslo"}, {"city": "O\nslo", "days": 3, "unit": "C"}):
        assert fits(json_form, f'\n{{"name": "weather", "arguments": {json.dumps(arguments)}}}\n')
    assert fits(json_form, '\n{"name": "noop", "arguments": {}}\n')
    for head in ('"other", "arguments": {}', '"weather", "arguments": {}', '"weather", "arguments": {"city": 1}'):
        assert not fits(json_form, f'\n{{"name": {head}}}\n')
    xml_form = Grammar(words, grammars.tool_call(XML_CALLS, tools), Ending(words))
    city, days = "<parameter=city>\nNew\nYork <b>\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"
    unit = "<parameter=unit>\nC\n</parameter>\n"
    for inside in (city, city + days, city + days + unit, city + unit):
        assert fits(xml_form, f"\n<function=weather>\n{inside}</function>\n"), inside
    assert fits(xml_form, "\n<function=noop>\n</function>\n")
    for inside in ("", days, city + days.replace("3", "x"), city + unit.replace("C", "K")):
        assert not fits(xml_form, f"\n<function=weather>\n{inside}</function>\n"), inside
    strict = tool("weather", {"unevaluatedItems": 1}, strict=True)
    with pytest.raises(ApiError, match=r"tools\[0\].function.parameters"):
        grammars.tool_call(JSON_CALLS, [strict])

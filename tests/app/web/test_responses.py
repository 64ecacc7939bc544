"""OpenAI's Responses, through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from .conftest import HELLO, Running, serving
from .models import plain_text, scripted, source_of, tiny_engine

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"a": {"const": 1}},
        "required": ["a"], "additionalProperties": False}}  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"a": 1}}\n</tool_call>'
SCRIPT = f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}"


def ask(server: Running, model: str = "tiny", **fields: Any) -> Any:
    return server.openai.responses.create(**{"model": model, "input": "hello", "max_output_tokens": 16, **fields})


def test_the_text_is_the_library_s_own(server: Running) -> None:
    whole = ask(server, temperature=0)
    expected = plain_text(tiny_engine(), HELLO, max_tokens=16)
    assert whole.output_text == expected
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 16 and whole.usage.dflash2["mode"] == "dflash2"
    with server.openai.responses.stream(model="tiny", input="hello", temperature=0) as stream:
        kinds = []
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.completed":
                final = event.response
            if event.type == "response.incomplete":
                final = event.response
    assert final.output_text.startswith(expected)
    assert kinds[:2] == ["response.created", "response.in_progress"]


def test_thinking_text_and_calls_are_items() -> None:
    with serving(source_of(scripted(SCRIPT))) as server:
        fields = {"model": "scripted", "tools": [TOOL], "max_output_tokens": 300}
        whole = ask(server, **fields)
        events = list(ask(server, stream=True, **fields))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        for response in (whole, events[-1].response):
            thinking, message, call = response.output
            assert thinking.content[0].text == "hm\n" and message.content[0].text == "Let me see."
            assert call.name == "weather" and json.loads(call.arguments) == {"a": 1}
            assert response.status == "completed"
        kinds = ("reasoning_text", "output_text", "function_call_arguments")
        deltas = {
            kind: "".join(event.delta for event in events if event.type == f"response.{kind}.delta") for kind in kinds
        }
        assert list(deltas.values()) == ["hm\n", "Let me see.", call.arguments]
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert [item.id for item in done] == [item.id for item in events[-1].response.output]


def test_items_reach_the_template() -> None:
    model = scripted("fine")
    with serving(source_of(model)) as server:
        first = ask(server, "scripted", instructions="Be short.", tools=[TOOL], input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ])  # fmt: skip
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
        assert model.asked[-1][0] == [
            {"role": "system", "content": "Be short."}, {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ]  # fmt: skip
        again = [item.model_dump(exclude_none=True) for item in first.output]
        ask(server, "scripted", input=[{"role": "user", "content": "a"}, *again, {"role": "user", "content": "b"}])
        assert model.asked[-1][0][1] == {"role": "assistant", "content": "fine"}


def test_an_agent_s_several_messages_reach_the_template() -> None:
    model = scripted("fine")
    with serving(source_of(model)) as server:
        ask(server, "scripted", instructions="Be short.", input=[
            {"role": "developer", "content": "Ask first."}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"role": "developer", "content": "d"},
        ])  # fmt: skip
    assert [(message["role"], message["content"]) for message in model.asked[-1][0]] == [
        ("system", "Be short.\n\nAsk first."), ("user", "a"), ("assistant", "b"), ("assistant", "c"), ("system", "d")
    ]  # fmt: skip
    assert model.asked[-1][0][3]["tool_calls"][0]["id"] == "c1"


def test_functions_in_a_namespace_are_called_by_it() -> None:
    model = scripted(CALL.replace("weather", "maps__weather"))
    spaced = {"type": "namespace", "name": "maps", "description": "Of places.", "tools": [TOOL]}
    fields = {"model": "scripted", "max_output_tokens": 300, "tools": [{**TOOL, "description": "Mine."}, spaced]}
    with serving(source_of(model)) as server:
        whole, events = ask(server, **fields), list(ask(server, stream=True, **fields))
        shown = [(tool["function"]["name"], tool["function"]["description"])
                 for tool in model.asked[-1][1].chat_template_kwargs["tools"]]  # fmt: skip
        assert shown == [("weather", "Mine."), ("maps__weather", "Of places.")]
        for item in (whole.output[0], events[-1].response.output[0]):
            assert (item.namespace, item.name, json.loads(item.arguments)) == ("maps", "weather", {"a": 1})
        again = [{"role": "user", "content": "x"}, whole.output[0].model_dump(exclude_none=True),
                 {"type": "function_call_output", "call_id": whole.output[0].call_id, "output": "rain"}]  # fmt: skip
        ask(server, input=again, **fields)
        assert model.asked[-1][0][1]["tool_calls"][0]["function"]["name"] == "maps__weather"


@pytest.mark.parametrize(("length", "kinds"), [(4, ["reasoning"]), (16, ["reasoning", "message"])])
def test_what_was_cut_is_an_incomplete_item(length: int, kinds: list[str]) -> None:
    with serving(source_of(scripted("<think>\nhm\n</think>\n\nLet me see."))) as server:
        fields = {"model": "scripted", "max_output_tokens": length}
        whole, events = ask(server, **fields), list(ask(server, stream=True, **fields))
        done = [event.item for event in events if event.type == "response.output_item.done"]
        for items in (whole.output, events[-1].response.output, done):
            assert [item.type for item in items] == kinds
            assert [item.status for item in items] == ["completed"] * (len(kinds) - 1) + ["incomplete"]
            assert items[-1].content[0].text
        raw = server.http.post("/v1/responses", json={"input": "x", **fields}).json()
        assert type(raw["created_at"]) is int, "clients in typed languages read a whole number"


def test_form_logprobs_and_effort(server: Running) -> None:
    form = {"format": {"type": "json_schema", "name": "it", "schema": TOOL["parameters"], "strict": True}}
    fields = {"max_output_tokens": 60, "temperature": 0, "reasoning": {"effort": "none"}}
    bias = {"extra_body": {"logit_bias": {"32": -50, "10": -50}}}
    shaped = ask(server, text=form, include=["message.output_text.logprobs"], top_logprobs=2, **fields, **bias)
    assert shaped.output_text.replace(" ", "") == '{"a":1}' and shaped.status == "completed"
    entries = shaped.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries) == shaped.output_text and len(entries[0].top_logprobs) == 2
    forced = ask(server, tools=[TOOL], tool_choice={"type": "function", "name": "weather"}, **fields, **bias)
    assert json.loads(forced.output[0].arguments) == {"a": 1}


@pytest.mark.parametrize(("field", "value"), [
    ("input", None), ("input", []), ("input", 3), ("input", [{"type": "item_reference", "id": "x"}]),
    ("input", [{"role": "user", "content": [{"type": "input_image"}]}]), ("temperature", 3), ("max_output_tokens", 0),
    ("previous_response_id", "resp_1"), ("conversation", "c"), ("background", True), ("truncation", "auto"),
    ("prompt", {"id": "p"}), ("include", ["file_search_call.results"]), ("reasoning", {"effort": "huge"}),
    ("text", {"format": {"type": "xml"}}), ("text", {"verbosity": "low"}), ("tools", [{"type": "web_search"}]),
    ("tools", [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"}]}]),
    ("tool_choice", "required"), ("top_logprobs", 50), ("instructions", 3), ("no_such_field", 1),
])  # fmt: skip
def test_a_wrong_field_is_refused_by_name(server: Running, field: str, value: Any) -> None:
    answer = server.http.post(
        "/v1/responses", json={"model": "tiny", "input": "x", "max_output_tokens": 4, field: value}
    )
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(field), answer.text


def test_a_reply_that_fails_is_told() -> None:
    broken = scripted("yyyy", "broken", fault=RuntimeError("gone"))
    with serving(source_of(broken)) as server:
        assert list(ask(server, "broken", stream=True))[-1].type == "response.failed"
        with pytest.raises(openai.InternalServerError, match="gone"):
            ask(server, "broken")

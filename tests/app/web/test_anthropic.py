"""Anthropic's messages, through Anthropic's own client."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from .conftest import HELLO, Running, serving
from .models import plain_text, scripted, source_of, tiny_engine, tiny_served

TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"const": 1}},
        "required": ["a"], "additionalProperties": False}}  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"a": 1}}\n</tool_call>'
SCRIPT = f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}"


def ask(server: Running, model: str = "tiny", **fields: Any) -> Any:
    # Newer clients have no temperature of their own; the interface does.
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    fields = {"model": model, "messages": HELLO, "max_tokens": 16, **fields}
    return server.anthropic.messages.create(**fields, extra_body=extra)


def test_the_text_is_the_library_s_own(server: Running) -> None:
    whole = ask(server)
    expected = plain_text(tiny_engine(), HELLO, max_tokens=16)
    assert [block.text for block in whole.content] == [expected]
    assert (whole.stop_reason, whole.stop_sequence, whole.role) == ("max_tokens", None, "assistant")
    assert whole.usage.output_tokens == 16 and whole.usage.dflash2["mode"] == "dflash2"
    greedy = {"temperature": 0}
    with server.anthropic.messages.stream(model="tiny", messages=HELLO, max_tokens=16, extra_body=greedy) as stream:
        assert "".join(stream.text_stream) == expected
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens" and final.usage.input_tokens == whole.usage.input_tokens > 0
    cut = ask(server, stop_sequences=["zzz", expected[5:8]])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", expected[5:8])
    assert cut.content[0].text == expected[: expected.index(expected[5:8])]


def test_thinking_text_and_calls_are_blocks() -> None:
    with serving(source_of(scripted(SCRIPT))) as server:
        fields = {"model": "scripted", "tools": [TOOL], "max_tokens": 300}
        whole = ask(server, **fields)
        with server.anthropic.messages.stream(messages=HELLO, **fields) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        for message in (whole, final):
            thinking, text, use = message.content
            assert (thinking.thinking, text.text, use.name, use.input) == ("hm\n", "Let me see.", "weather", {"a": 1})
            assert message.stop_reason == "tool_use"
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
        assert whole.usage.cache_read_input_tokens == 2 and whole.usage.input_tokens == 5


def test_thinking_ends_with_a_signature_and_stands_alone_when_it_is_cut() -> None:
    with serving(source_of(scripted("<think>\nhm\n</think>\n\nyes"))) as server:
        for length, kinds in ((100, ["thinking", "text"]), (4, ["thinking"])):
            events = list(ask(server, "scripted", max_tokens=length, stream=True))
            deltas = [event.delta.type for event in events if event.type == "content_block_delta" and not event.index]
            assert deltas[-1] == "signature_delta" and set(deltas[:-1]) == {"thinking_delta"}
            assert [event.content_block.type for event in events if event.type == "content_block_start"] == kinds
            assert [block.type for block in ask(server, "scripted", max_tokens=length).content] == kinds


def test_a_conversation_reaches_the_template() -> None:
    model = scripted("fine")
    with serving(source_of(model)) as server:
        ask(server, "scripted", tools=[TOOL], system=[{"type": "text", "text": "Be short."}], messages=[
            {"role": "user", "content": [{"type": "text", "text": "he", "cache_control": {"type": "ephemeral"}},
                                         {"type": "text", "text": "llo"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                              {"type": "text", "text": "Let me see."},
                                              {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "no",
                                          "is_error": True},
                                         {"type": "text", "text": "So?"}]},
        ])  # fmt: skip
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
    assert model.asked[-1][0] == [
        {"role": "system", "content": "Be short."}, {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "Error: no"}, {"role": "user", "content": "So?"},
    ]  # fmt: skip


def test_thinking_can_be_limited_and_switched_off(server: Running) -> None:
    switched = scripted("fine")
    with serving(source_of(switched)) as other:
        ask(other, "scripted", thinking={"type": "disabled"})
        assert switched.asked[-1][1].chat_template_kwargs == {"enable_thinking": False}
        ask(other, "scripted", output_config={"effort": "low"})
        assert switched.asked[-1][2] is not None
    opened = {"chat_template_kwargs": {"open_thinking": True}}
    limited = ask(server, thinking={"type": "enabled", "budget_tokens": 5}, extra_body=opened)
    assert [block.type for block in limited.content] == ["thinking", "text"]
    assert len(limited.content[0].thinking) == 5 and len(limited.content[1].text) == 10


def test_calls_and_schemas_can_be_forced(server: Running) -> None:
    off = {"thinking": {"type": "disabled"}, "max_tokens": 120,
           "extra_body": {"logit_bias": {"32": -50, "10": -50}}}  # fmt: skip
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        forced = ask(server, tools=[TOOL], tool_choice=choice, **off)
        assert forced.stop_reason == "tool_use" and forced.content[0].input == {"a": 1}
    shaped = ask(server, output_config={"format": {"type": "json_schema", "schema": TOOL["input_schema"]}}, **off)
    assert shaped.content[0].text.replace(" ", "") == '{"a":1}' and shaped.stop_reason == "end_turn"


def test_tokens_are_counted(server: Running) -> None:
    counted = server.anthropic.messages.count_tokens(model="tiny", messages=HELLO, tools=[TOOL], system="s")
    used = ask(server, tools=[TOOL], system="s", max_tokens=1)
    assert counted.input_tokens == used.usage.input_tokens
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: got \d+ tokens.*context of 8192"):
        server.anthropic.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "x" * 9000}])
    with pytest.raises(anthropic.NotFoundError):
        server.anthropic.messages.count_tokens(model="nobody", messages=HELLO)


def test_what_claude_code_sends_is_served() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    body = {
        "max_tokens": 32000, "stream": True, "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"}, "tools": [TOOL, {**TOOL, "name": "mcp__" + "n" * 123}],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [{"type": "text", "text": "You help."}, {"type": "text", "text": "With code.", **cached}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **cached}]}],
    }  # fmt: skip
    sources = (
        source_of(scripted("fine", per_round=9)),
        source_of(tiny_served("toolless", template=None, settings={"max_tokens": 3})),
    )
    with serving(*sources) as server:
        told = server.http.post("/v1/messages?beta=true", json={"model": "scripted", **body})
        assert told.status_code == 200 and "fine" in told.text, told.text
        # A model that does not think has nothing to do for the usual effort.
        short = {"model": "toolless", "max_tokens": 3, "tools": [], "system": "", "messages": HELLO}
        assert server.http.post("/v1/messages", json={**body, **short}).status_code == 200
        refused = server.http.post("/v1/messages", json={**body, **short, "output_config": {"effort": "low"}})
        assert "does not think" in refused.json()["error"]["message"]
        inside = [*body["messages"], {"role": "system", "content": "Skills: none."}]
        refused = server.http.post("/v1/messages", json={"model": "scripted", **body, "messages": inside})
        # It sends the same without such messages when it reads this sentence.
        assert refused.status_code == 400 and "role 'system' is not supported on this model" in refused.text


@pytest.mark.parametrize(("field", "value"), [
    ("context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}),
    ("context_management", {"edits": [{"type": "clear_thinking_20251015"}]}), ("context_management", {"x": 1}),
    ("max_tokens", None), ("temperature", 1.5), ("top_p", 2), ("top_k", -1), ("stop_sequences", "x"),
    ("stop_sequences", [""]), ("system", 3), ("system", [{"type": "image"}]), ("messages", []),
    ("messages", [{"role": "system", "content": "x"}]), ("messages", [{"role": "assistant", "content": "So"}]),
    ("messages", [{"role": "user", "content": [{"type": "image", "source": {}}]}]),
    ("messages", [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]),
    ("thinking", {"type": "enabled"}), ("thinking", {"type": "maybe"}),
    ("thinking", {"type": "disabled", "budget_tokens": 5}),
    ("tools", [{"type": "web_search_20250305", "name": "web_search"}]),
    ("tools", [{"name": "a b", "input_schema": {}}]), ("tools", [{"name": "a" * 129, "input_schema": {}}]),
    ("tool_choice", {"type": "any"}), ("tool_choice", {"type": "what"}), ("output_config", {"effort": "huge"}),
    ("output_config", {"format": {"type": "xml"}}), ("container", "c"), ("mcp_servers", [{}]), ("no_such_field", 1),
])  # fmt: skip
def test_a_wrong_field_is_refused_by_name(server: Running, field: str, value: Any) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4, field: value}
    answer = server.http.post("/v1/messages", json=body)
    assert answer.status_code == 400 and answer.json()["type"] == "error"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"].startswith(field), error


def test_errors_have_anthropic_s_form(server: Running) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nobody") as refused:
        ask(server, "nobody")
    assert refused.value.body["error"]["type"] == "not_found_error"
    answer = server.http.post("/v1/messages", json={}, headers={"origin": "https://evil.example"})
    assert answer.json()["error"]["type"] == "permission_error"
    for answer in (server.http.get("/v1/messages"), server.http.post("/v1/messages/batches", json={})):
        assert answer.status_code in (404, 405) and answer.json()["type"] == "error"
    broken = scripted("yyyy", "broken", fault=RuntimeError("gone"))
    with serving(source_of(broken)) as other, pytest.raises(anthropic.APIStatusError, match="gone"):
        for _ in ask(other, "broken", stream=True):
            pass


def test_models_can_be_listed(server: Running) -> None:
    assert [model.id for model in server.anthropic.models.list()][:2] == ["tiny", "plain"]
    assert [model.id for model in server.openai.models.list()][:2] == ["tiny", "plain"]
    assert server.openai.models.retrieve("plain").id == "plain"

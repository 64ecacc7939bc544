"""What users' own clients do with the server, beyond single calls: helpers, async, streams of everything (CK-14).

Which wishes each client has a test for:

| wish | openai chat | openai responses | anthropic |
|---|---|---|---|
| stream | test_chat | test_responses | test_anthropic |
| tools, forced tools | test_chat | test_responses | test_anthropic |
| tools in a stream helper | here | test_responses | here |
| JSON schema, and the helper that parses it | test_chat, here | test_responses, here | test_anthropic |
| log-probabilities | test_chat | test_responses, streamed here | (has none) |
| stop | test_chat | here | test_anthropic |
| seed | test_chat, here | here | here |
| thinking budget | test_chat, here | here | test_anthropic |
| many at once | here | | here |
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from .conftest import HELLO, PATIENCE_S, Running, serving
from .models import scripted, source_of, tool

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
SHORT = {"32": -50, "10": -50}  # without blanks and line ends a random model comes to an end sooner
OPENED = {"open_thinking": True, "enable_thinking": True}


class Trip(BaseModel):
    city: Literal["Oslo", "Rome"]
    sure: bool


FORM = {"type": "json_schema", "json_schema": {"name": "trip", "schema": Trip.model_json_schema()}}
# Each holds the reply to something that a fast path could forget.
WISHES: tuple[dict[str, Any], ...] = (
    {"extra_body": {"repetition_penalty": 1.3}},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"logit_bias": {str(byte): -100 for byte in range(97, 110)}},
    {"response_format": FORM, "reasoning_effort": "none", "logit_bias": SHORT},
    {"extra_body": {"thinking_budget": 10, "chat_template_kwargs": OPENED}},
    {"logprobs": True, "top_logprobs": 2, "seed": 3, "temperature": 0.8},
)


def shown(reply: Any) -> dict[str, Any]:
    """What a reply says, without its name, its time and what it cost."""
    choice = reply.choices[0].model_dump()
    return {key: choice[key] for key in ("message", "finish_reason")}


def test_six_wishes_at_once_and_in_a_row_equal_plain_decoding(server: Running) -> None:
    def fields(wish: dict[str, Any]) -> dict[str, Any]:
        return {"messages": HELLO, "max_tokens": 24, "temperature": 0, **wish}

    alone = [shown(server.openai.chat.completions.create(model="plain", **fields(wish))) for wish in WISHES]
    in_a_row = [shown(server.openai.chat.completions.create(model="tiny", **fields(wish))) for wish in WISHES]

    async def at_once() -> list[Any]:
        options = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0, "timeout": PATIENCE_S}
        async with openai.AsyncOpenAI(**options) as client:
            asked = (client.chat.completions.create(model="tiny", **fields(wish)) for wish in WISHES)
            return [shown(reply) for reply in await asyncio.gather(*asked)]

    assert in_a_row == alone
    assert asyncio.run(at_once()) == alone
    assert len({json.dumps(reply) for reply in alone}) == len(WISHES), "a wish changes nothing: it proves nothing"


def test_async_streams_of_anthropic_s_client(server: Running) -> None:
    async def ask(client: Any, at: int) -> tuple[str, str]:
        extra = {"temperature": 1, "seed": at, "min_p": 0.05}
        async with client.messages.stream(model="tiny", messages=HELLO, max_tokens=12, extra_body=extra) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            return text, (await stream.get_final_message()).content[0].text

    async def all_of_them() -> list[tuple[str, str]]:
        options = {"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": PATIENCE_S}
        async with anthropic.AsyncAnthropic(**options) as client:
            return list(await asyncio.gather(*(ask(client, seed) for seed in (1, 2, 1, 2))))

    first, second, again, twice = asyncio.run(all_of_them())
    assert first == again and second == twice and first != second
    assert first[0] == first[1]


def test_answers_are_parsed_by_the_client_s_own_helpers(server: Running) -> None:
    short = {"logit_bias": SHORT}
    parsed = server.openai.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Trip, temperature=0, max_tokens=60, reasoning_effort="none",
        extra_body=short)  # fmt: skip
    answer = server.openai.responses.parse(
        model="tiny", input="hello", text_format=Trip, temperature=0, max_output_tokens=60, extra_body=short,
        reasoning={"effort": "none"})  # fmt: skip
    assert isinstance(parsed.choices[0].message.parsed, Trip) and parsed.choices[0].message.parsed == (
        answer.output_parsed
    )


def test_tools_arrive_through_the_stream_helpers() -> None:
    function = tool("weather", CITY, strict=True)
    with serving(source_of(scripted(f"Let me see.\n{CALL}"))) as server:
        asked = {"model": "scripted", "messages": HELLO, "max_tokens": 300}
        with server.openai.chat.completions.stream(**asked, tools=[function]) as stream:
            kinds = [event.type for event in stream]
            choice = stream.get_final_completion().choices[0]
        assert "tool_calls.function.arguments.done" in kinds and "content.delta" in kinds
        assert choice.message.tool_calls[0].function.parsed_arguments == {"city": "Oslo"}
        assert choice.message.content == "Let me see." and choice.finish_reason == "tool_calls"
        own = {"name": "weather", "input_schema": CITY}
        with server.anthropic.messages.stream(**asked, tools=[own]) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
        assert json.loads("".join(pieces)) == final.content[-1].input == {"city": "Oslo"}


def test_responses_have_seeds_stops_budgets_and_streamed_logprobs(server: Running) -> None:
    def ask(**fields: Any) -> Any:
        asked = {"model": "tiny", "input": "hello", "max_output_tokens": 16, **fields}
        return server.openai.responses.create(**asked)

    first, again, other = (ask(temperature=1, extra_body={"seed": seed}).output_text for seed in (1, 1, 2))
    assert first == again != other
    text = ask(temperature=0).output_text
    assert ask(temperature=0, extra_body={"stop": [text[5:8]]}).output_text == text[: text.index(text[5:8])]
    budget = {"thinking_budget": 4, "chat_template_kwargs": OPENED}
    thought = ask(temperature=0, extra_body=budget)
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert len(thought.output[0].content[0].text) == 4 and thought.usage.output_tokens_details.reasoning_tokens == 5
    events = list(ask(temperature=0, stream=True, top_logprobs=2))
    told = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert "".join(entry.token for entry in told) == text and all(len(entry.top_logprobs) == 2 for entry in told)


@pytest.mark.parametrize("stream", [False, True])
def test_a_seed_is_honoured_by_anthropic_s_interface(server: Running, stream: bool) -> None:
    def ask(seed: int) -> str:
        reply = server.anthropic.messages.create(
            model="tiny", messages=HELLO, max_tokens=12, extra_body={"temperature": 1, "seed": seed}, stream=stream
        )
        if not stream:
            return str(reply.content[0].text)
        return "".join(event.delta.text for event in reply if event.type == "content_block_delta")

    assert ask(5) == ask(5) != ask(6)

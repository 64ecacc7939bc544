"""Chat and text completions, through OpenAI's own client."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import dflash2_mlx as d2
from dflash2_app.engine.token_text import TokenReader
from dflash2_app.web.serving.source import Served

from .conftest import HELLO, Running, serving
from .models import PARSERS, plain_text, scripted, source_of, tiny_engine, tiny_pair, tiny_served, tool

WEATHER = tool("weather", {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False,
})  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'


def chat(server: Running, model: str = "tiny", messages: Any = HELLO, **fields: Any) -> Any:
    return server.openai.chat.completions.create(model=model, messages=messages, **{"max_tokens": 16, **fields})


def streamed(server: Running, **fields: Any) -> tuple[str, Any]:
    chunks = list(chat(server, stream=True, stream_options={"include_usage": True}, **fields))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].choices == [] and chunks[-2].choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1
    return text, chunks


def refused(server: Running, path: str = "/v1/chat/completions", **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4, **fields}
    answer = server.http.post(path, json=body)
    return answer.status_code, answer.json()["error"]


@pytest.fixture(scope="module")
def endless() -> Iterator[Running]:
    """Models whose config names no context length."""
    engine = tiny_engine()
    target = copy.copy(engine.target)
    target.spec = replace(target.spec, context_length=None)
    settings = {"tiny": {}, "settings": {"max_tokens": 2**31}, "window": {"max_context_window": 60}}
    models = [Served.of(name, tiny_pair(replace(engine, target=target), **more)) for name, more in settings.items()]
    with serving(*map(source_of, models)) as running:
        yield running


@pytest.mark.parametrize(("path", "more"), [
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 8}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 8}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 8}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 8}),
])  # fmt: skip
@pytest.mark.parametrize("drafts", [True, False])
def test_numbers_that_are_not_finite_fail_one_request(path: str, more: dict[str, Any], drafts: bool) -> None:
    engine = tiny_engine(drafts=drafts)
    target = copy.copy(engine.target)
    cache = d2.PrefixCache()
    target.finish_logits = lambda logits: logits * float("nan")
    spoilt = Served.of("spoilt", tiny_pair(replace(engine, target=target, target_name="spoilt"), cache=cache))
    with serving(source_of(spoilt), source_of(tiny_served())) as running:
        answer = running.http.post(path, json={"model": "spoilt", **more})
        assert answer.status_code == 500
        message = answer.json()["error"]["message"]
        assert "logits: got numbers that are not finite from spoilt in float32" in message
        stream = running.http.post(path, json={"model": "spoilt", **more, "stream": True})
        assert "not finite from spoilt in float32" in stream.text
        assert len(cache) == 0
        assert running.http.post(path, json={"model": "tiny", **more}).status_code == 200
        del target.finish_logits
        assert running.http.post(path, json={"model": "spoilt", **more}).status_code == 200, "it goes on when it can"


@pytest.mark.parametrize(("path", "name", "more"), [
    ("/v1/chat/completions", "max_tokens", {"messages": HELLO}),
    ("/v1/chat/completions", "max_completion_tokens", {"messages": HELLO}),
    ("/v1/completions", "max_tokens", {"prompt": "a"}),
    ("/v1/responses", "max_output_tokens", {"input": "hello"}),
    ("/v1/messages", "max_tokens", {"messages": HELLO}),
])  # fmt: skip
def test_a_longer_reply_than_can_be_counted(endless: Running, path: str, name: str, more: dict[str, Any]) -> None:
    for wanted in (2**31, 10**30):
        answer = endless.http.post(path, json={"model": "tiny", **more, name: wanted})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"] == f"{name}: got {wanted}, expected an integer in 1..{2**31 - 1}"


def test_a_length_in_the_settings_that_cannot_be_counted(endless: Running) -> None:
    fields = {"model": "settings", "messages": HELLO}
    answer = endless.http.post("/v1/chat/completions", json=fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens", answer.text
    assert chat(endless, "settings", max_tokens=3).usage.completion_tokens == 3
    cut = chat(endless, "window", max_tokens=2**40)
    assert (cut.choices[0].finish_reason, cut.usage.total_tokens) == ("length", 60)


@pytest.mark.parametrize("fields", [
    {"temperature": 0}, {"temperature": 1, "seed": 3, "top_p": 0.8, "presence_penalty": 1},
])  # fmt: skip
def test_the_text_is_the_library_s_own(server: Running, fields: dict[str, Any]) -> None:
    whole = chat(server, **fields)
    text, chunks = streamed(server, **fields)
    sampling = d2.SamplingConfig(**fields)
    assert (
        whole.choices[0].message.content == text == plain_text(tiny_engine(), HELLO, max_tokens=16, sampling=sampling)
    )
    assert text and whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "length"
    assert chat(server, "plain", **fields).choices[0].message.content == text, "drafting changes the text"


def test_usage_tells_what_drafting_did(server: Running) -> None:
    usage = chat(server, temperature=0).usage
    assert usage.completion_tokens == 16 and usage.total_tokens == usage.prompt_tokens + 16
    assert usage.prompt_tokens_details.cached_tokens == 0
    ours = usage.dflash2
    assert ours["mode"] == "dflash2" and ours["width"] == 5 and ours["rounds"] > 0
    assert 1 <= ours["acceptance_length"] <= 5 and len(ours["acceptance_by_position"]) == 4
    assert streamed(server, temperature=0)[1][-1].usage.dflash2["rounds"] == ours["rounds"]
    plain = chat(server, "plain", temperature=0).usage.dflash2
    assert (plain["mode"], plain["fallback_reason"]) == ("plain", "no drafter given")
    assert chat(server, temperature=0, extra_body={"dflash2": {"mode": "plain"}}).usage.dflash2["mode"] == "plain"
    assert chat(server, temperature=0, extra_body={"dflash2": {"block_size": 3}}).usage.dflash2["width"] == 3


def test_every_sampling_field_reaches_the_library() -> None:
    fields = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 5,
              "logit_bias": {"65": -100}, "stop": ["zz", "yy"], "max_completion_tokens": 9, "max_tokens": 9,
              "logprobs": True, "top_logprobs": 2}  # fmt: skip
    extra = {"top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1, "chat_template_kwargs": {"enable_thinking": False},
             "dflash2": {"mode": "plain", "block_size": 3, "lossless_mode": "rejection"}}  # fmt: skip
    model = scripted("hello")
    with serving(source_of(model)) as server:
        chat(server, "scripted", **fields, extra_body=extra)
    config = model.asked[-1][1]
    assert config == d2.GenerationConfig(
        max_tokens=9, stop=("zz", "yy"), logprobs=2, block_size=3, mode="plain",
        chat_template_kwargs={"enable_thinking": False},
        sampling=d2.SamplingConfig(
            temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, presence_penalty=0.5, frequency_penalty=-0.5,
            repetition_penalty=1.1, logit_bias={65: -100.0}, seed=5, lossless_mode="rejection"),
    )  # fmt: skip
    assert config.sampling.logit_bias == {65: -100.0} and config.chat_template_kwargs == {"enable_thinking": False}


def test_what_cannot_change_the_text_is_accepted(server: Running) -> None:
    plain = chat(server, temperature=0).choices[0].message.content
    fields = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "n": 1,
              "prompt_cache_key": "k", "safety_identifier": "s", "modalities": ["text"],
              "parallel_tool_calls": True}  # fmt: skip
    assert chat(server, temperature=0, **fields).choices[0].message.content == plain


@pytest.mark.parametrize(("field", "value"), [
    ("temperature", 2.5), ("temperature", "hot"), ("temperature", True), ("top_p", 0), ("top_p", 1.5), ("top_k", -1),
    ("min_p", 2), ("presence_penalty", 3), ("frequency_penalty", "x"), ("repetition_penalty", 0), ("seed", -1),
    ("seed", 1.5), ("n", 2), ("max_tokens", 0), ("max_completion_tokens", 5), ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": 200}), ("logit_bias", [1]), ("logit_bias", {"9999": 1}), ("stop", [""]), ("stop", 5),
    ("stop", ["a"] * 17), ("logprobs", 3), ("top_logprobs", 5), ("stream", "yes"), ("stream_options", {}),
    ("messages", []), ("messages", [{"role": "king", "content": "x"}]), ("messages", [{"role": "user"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages", [{"role": "user", "content": "x", "mood": "good"}]), ("audio", {}), ("functions", []),
    ("verbosity", "high"), ("web_search_options", {}), ("reasoning_effort", "extreme"), ("thinking_budget", -1),
    ("chat_template_kwargs", {"tokenize": False}), ("chat_template_kwargs", 3), ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}), ("tools", [{"type": "retrieval"}]), ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "nobody"}}), ("tools", [tool("a b")]),
    ("tools", [tool("a"), tool("a")]), ("no_such_field", 1), ("dflash2", {"mode": "fast"}), ("dflash2", {"speed": 9}),
    ("dflash2", {"block_size": 9}),
])  # fmt: skip
def test_a_wrong_field_is_refused_by_name(server: Running, field: str, value: Any) -> None:
    status, error = refused(server, **{field: value})
    assert status == 400 and error["type"] == "invalid_request_error"
    named = "block_size" if value == {"block_size": 9} else field
    assert named in error["message"].split(": ")[0] and "\n" not in error["message"], error
    assert "got" in error["message"]


def test_unknown_model_and_too_long_a_prompt(server: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        chat(server, "no-such-model")
    with pytest.raises(openai.NotFoundError):
        chat(server, "../../etc/passwd")
    with pytest.raises(openai.BadRequestError, match="context of 8192") as refused:
        chat(server, messages=[{"role": "user", "content": "x" * 9000}])
    assert refused.value.code == "context_length_exceeded"


def test_a_model_without_template_takes_one_message(server: Running) -> None:
    assert chat(server, "bare", temperature=0).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        chat(server, "bare", messages=[*HELLO, *HELLO])
    with pytest.raises(openai.BadRequestError, match="tools"):
        chat(server, "toolless", tools=[WEATHER])


def test_a_stop_string_ends_the_reply_before_it(server: Running) -> None:
    text = chat(server, temperature=0).choices[0].message.content
    stop = text[9:12]
    cut = chat(server, temperature=0, stop=stop)
    assert cut.choices[0].message.content == text[: text.index(stop)] and cut.choices[0].finish_reason == "stop"
    assert streamed(server, temperature=0, stop=[stop])[0] == text[: text.index(stop)]


def test_logprobs_belong_to_the_answer_s_tokens(server: Running) -> None:
    reply = chat(server, temperature=0, logprobs=True, top_logprobs=3)
    entries = reply.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == reply.choices[0].message.content
    assert all(len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token for entry in entries)
    assert all(entry.bytes == list(entry.token.encode()) for entry in entries)
    parts = [chunk.choices[0].logprobs.content for chunk in streamed(server, temperature=0, logprobs=True)[1]
             if chunk.choices and chunk.choices[0].logprobs]  # fmt: skip
    assert [entry.token for part in parts for entry in part] == [entry.token for entry in entries]
    thought = chat(server, "scripted", max_tokens=200, logprobs=True, top_logprobs=2).choices[0]
    assert "".join(entry.token for entry in thought.logprobs.content).strip() == thought.message.content
    assert thought.logprobs.content[0].top_logprobs[1].logprob == -9999.0


def test_the_bytes_of_tokens_make_the_text_when_characters_are_cut() -> None:
    text = "a日😀é."
    with serving(source_of(scripted(text))) as server:
        reply = chat(server, "scripted", logprobs=True, top_logprobs=2).choices[0]
        assert bytes(byte for entry in reply.logprobs.content for byte in entry.bytes).decode() == text
        assert [entry.bytes for entry in reply.logprobs.content[:3]] == [[0x61], [0xE6], [0x97]]
        old = (
            server.openai.completions.create(model="scripted", prompt="x", logprobs=1, max_tokens=99)
            .choices[0]
            .logprobs
        )
        assert old.tokens[:3] == ["a", "bytes:\\xe6", "bytes:\\x97"] and old.text_offset == [
            0,
            *[1] * 3,
            *[2] * 4,
            3,
            3,
            4,
        ]


def test_a_token_keeps_the_blank_it_begins_with() -> None:
    words = {"<unk>": 0, "▁a": 1, "▁the": 2, "s": 3, "<0xE6>": 4, "<0x97>": 5, "<0xA5>": 6, "日": 7}
    raw = Tokenizer(models.BPE(words, [], unk_token="<unk>", byte_fallback=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    reader = TokenReader(PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>"))
    assert [reader.text(token) for token in (1, 2, 3, 7)] == [" a", " the", "s", "日"]
    assert [reader.data(token) for token in (2, 4, 5, 7)] == [b" the", b"\xe6", b"\x97", "日".encode()]


def test_text_completions(server: Running) -> None:
    client = server.openai
    whole = client.completions.create(model="tiny", prompt="ab", max_tokens=8, temperature=0, logprobs=2)
    expected = d2.generate(tiny_engine(), "ab", d2.GenerationConfig(max_tokens=8, chat_template=False)).text
    assert whole.choices[0].text == expected and whole.choices[0].finish_reason == "length"
    assert whole.choices[0].logprobs.text_offset == list(range(8))
    assert whole.usage.prompt_tokens == 2
    ids = client.completions.create(model="tiny", prompt=[97, 98], max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in ids) == expected
    for field, value in {"prompt": ["a", "b"], "echo": True, "suffix": "x", "best_of": 2, "messages": []}.items():
        body = {"model": "tiny", "prompt": "x", field: value}
        answer = server.http.post("/v1/completions", json=body)
        assert answer.status_code == 400 and field in answer.json()["error"]["message"]


# Thinking


def test_thinking_is_told_from_the_answer(server: Running) -> None:
    reply = chat(server, "scripted", max_tokens=200)
    message = reply.choices[0].message
    assert (message.reasoning_content, message.content) == ("hm, well\n", "The answer is 4.")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens_details.reasoning_tokens == len("\nhm, well\n") + 2
    chunks = streamed(server, model="scripted", max_tokens=200)[1]
    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices)
    assert thought == "hm, well\n"


@pytest.mark.parametrize("model", ["tiny", "plain"])
@pytest.mark.parametrize("budget", [0, 1, 10])
def test_a_thinking_budget_ends_the_thinking_exactly(server: Running, model: str, budget: int) -> None:
    fields = {"temperature": 0, "max_tokens": 40, "extra_body": {
        "thinking_budget": budget,
        "chat_template_kwargs": {"open_thinking": True, "enable_thinking": True}}}  # fmt: skip
    reply = chat(server, model, **fields)
    assert reply.usage.completion_tokens_details.reasoning_tokens == budget + 1
    assert len(reply.choices[0].message.reasoning_content or "" if budget else "") == budget
    assert len(reply.choices[0].message.content) == 40 - budget - 1
    assert reply.choices[0].message.content == chat(server, "plain", **fields).choices[0].message.content


def test_effort_becomes_a_switch_or_a_budget() -> None:
    model = scripted("hello")
    with serving(source_of(model), source_of(tiny_served("bare", template=None))) as server:
        chat(server, "scripted", reasoning_effort="none")
        assert model.asked[-1][1].chat_template_kwargs == {"enable_thinking": False}
        chat(server, "scripted", reasoning_effort="low")
        assert model.asked[-1][1].chat_template_kwargs == {"enable_thinking": True}
        assert model.asked[-1][2].masks([]).shape == (1, 272)
        with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
            chat(server, "bare", reasoning_effort="low")
        chat(server, "bare", reasoning_effort="none")


# Structured output


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "word": {"type": "string", "maxLength": 5}},
          "required": ["n", "word"], "additionalProperties": False}  # fmt: skip


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 4}])
def test_a_schema_shapes_the_answer_and_drafting_does_not_change_it(server: Running, sampling: dict[str, Any]) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}
    # Digits and blanks are biased away, so that the random model comes to an end.
    bias = {str(byte): -9 for byte in b"0123456789 \n"}
    fields = {"max_tokens": 80, "response_format": wanted, "logit_bias": bias, "reasoning_effort": "none", **sampling}
    texts = {model: chat(server, model, **fields).choices[0] for model in ("tiny", "plain")}
    assert texts["tiny"].message.content == texts["plain"].message.content
    assert texts["tiny"].finish_reason == "stop"
    value = json.loads(texts["tiny"].message.content)
    assert set(value) == {"n", "word"} and isinstance(value["n"], int) and len(value["word"]) <= 5


def test_json_mode_and_schemas_that_cannot_be_enforced(server: Running) -> None:
    bias = {str(byte): -20 for byte in b' \n",:[{\\0123456789'}
    fields = {"response_format": {"type": "json_object"}, "reasoning_effort": "none", "logit_bias": bias}
    reply = chat(server, max_tokens=40, temperature=0, **fields)
    assert isinstance(json.loads(reply.choices[0].message.content), dict)
    wrong = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"unevaluatedItems": 3}}}
    status, error = refused(server, response_format=wrong)
    assert status == 400 and error["param"] == "response_format.json_schema.schema"


# Tools


def test_calls_are_parsed_and_the_text_around_them_kept() -> None:
    script = f"Let me see.\n{CALL}\n{CALL}"
    with serving(source_of(scripted(script)), source_of(scripted(script, "in one", per_round=400))) as server:
        at_once = chat(server, "in one", tools=[WEATHER], max_tokens=400, parallel_tool_calls=False).choices[0]
        assert len(at_once.message.tool_calls) == 1
        for fields in ({}, {"parallel_tool_calls": False}):
            choice = chat(server, "scripted", tools=[WEATHER], max_tokens=400, **fields).choices[0]
            assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
            assert len(choice.message.tool_calls) == (1 if fields else 2)
            assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Oslo", "days": 2}
            chunks = list(chat(server, "scripted", tools=[WEATHER], max_tokens=400, stream=True, **fields))
            calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
            assert [call.index for call in calls] == list(range(1 if fields else 2))
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
        ignored = chat(server, "scripted", tools=[WEATHER], tool_choice="none", max_tokens=400).choices[0]
        assert ignored.message.content == script and ignored.finish_reason == "stop"
        cut = chat(server, "scripted", tools=[WEATHER], max_tokens=30).choices[0]
        assert cut.finish_reason == "length" and cut.message.content.startswith("Let me see.<tool_call>")


@pytest.mark.parametrize("parser", ["json_tools", "qwen3_coder"])
def test_a_call_can_be_forced(parser: str) -> None:
    choice: Any = "required" if parser == "json_tools" else {"type": "function", "function": {"name": "weather"}}
    made = {"parser": PARSERS[parser]}
    sources = [source_of(tiny_served("tiny", **made)), source_of(tiny_served("plain", drafts=False, **made))]
    tools = [WEATHER] if choice == "required" else [tool("other"), WEATHER]
    fields = {"tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 120,
              "logit_bias": {"32": -50, "10": -50}, "reasoning_effort": "none"}  # fmt: skip
    with serving(*sources) as server:
        made_calls = [chat(server, model, **fields).choices[0] for model in ("tiny", "plain")]
    for made_call in made_calls:
        assert made_call.finish_reason == "tool_calls" and not made_call.message.content
        function = made_call.message.tool_calls[0].function
        arguments = json.loads(function.arguments)
        assert function.name == "weather" and arguments["city"] in ("Oslo", "Rome") and arguments["days"] <= 9
    assert made_calls[0].message.tool_calls[0].function == made_calls[1].message.tool_calls[0].function


def test_a_stream_shows_that_it_lives_while_a_call_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"model": "scripted", "messages": HELLO, "tools": [WEATHER], "stream": True, "max_tokens": 400}
    with serving(source_of(scripted(f"Well.{CALL}", per_round=len(CALL) // 4))) as server:
        assert "still there" not in server.http.post("/v1/chat/completions", json=fields).text
        monkeypatch.setattr("dflash2_app.web.api.endpoints.SIGN_S", -1.0)
        told = server.http.post("/v1/chat/completions", json=fields).text
    assert told.count(": still there\n\n") >= 4 and told.index("still there") < told.index('"tool_calls":')


def test_a_form_of_calls_without_grammar_is_not_forced() -> None:
    from mlx_lm.tool_parsers import glm47

    with serving(source_of(tiny_served(parser=glm47))) as server:
        assert chat(server, tools=[WEATHER]).choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match=r"tool_choice: got 'required'.*glm47"):
            chat(server, tools=[WEATHER], tool_choice="required")
        with pytest.raises(openai.BadRequestError, match=r"tools\[0\].function.strict.*glm47"):
            chat(server, tools=[tool("a", strict=True)])


def test_system_messages_at_the_beginning_are_one() -> None:
    model = scripted("fine")
    system = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
    with serving(source_of(model)) as server:
        for messages, expected in (
            ([*system, *HELLO], [{"role": "system", "content": "a\n\nb"}, *HELLO]),
            (HELLO + system, [*HELLO, system[0], {"role": "system", "content": "b"}]),
            (
                [{**system[0], "name": "n"}, *system],
                [{**system[0], "name": "n"}, system[0], {**system[0], "content": "b"}],
            ),
        ):
            chat(server, "scripted", messages=messages)
            assert model.asked[-1][0] == expected


def test_a_conversation_with_tool_results(server: Running) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [{"role": "developer", "content": "Be short."}, *HELLO,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]}]  # fmt: skip
    assert chat(server, messages=messages, tools=[WEATHER], temperature=0).choices[0].message.content
    messages[2]["tool_calls"][0]["function"]["arguments"] = "{"
    with pytest.raises(openai.BadRequestError, match=r"messages\[2\].tool_calls\[0\].function.arguments"):
        chat(server, messages=messages)


def test_behind_thinking_both_a_call_and_an_answer_of_the_schema_are_possible() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "integer"}}}
    model = scripted("7")
    with serving(source_of(model)) as server:
        chat(server, "scripted", tools=[WEATHER], response_format=form)
    rules = model.asked[-1][2]

    def possible(text: str) -> bool:
        tokens = model.tokenizer.encode(text)
        return all(row[token] for row, token in zip(rules.masks(tokens), tokens, strict=False))

    for start in ("", "\n", "\n\n"):
        assert possible(f"<think>hm</think>{start}7") and possible(f"<think>hm</think>{start}{CALL}"), repr(start)
    assert not possible(f"<think>hm</think>\n\n\n{CALL}") and not possible(f"<think>hm</think>7{CALL}")

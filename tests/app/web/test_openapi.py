"""The description of the server is its code's: every route, every field with its values, every answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from openapi_spec_validator import validate
from starlette.routing import Route

from dflash2_app.web.api.anthropic import Messages, MessagesCall
from dflash2_app.web.api.chat import ChatCompletions
from dflash2_app.web.api.completions import Completions
from dflash2_app.web.api.responses import Responses
from dflash2_app.web.app import make_app
from dflash2_app.web.http.errors import ApiError
from dflash2_app.web.http.fields import Fields
from dflash2_app.web.openapi.document import describe
from dflash2_app.web.serving.pool import ModelPool
from dflash2_app.web.serving.queue import Desk
from dflash2_app.web.serving.service import Service

from .conftest import HELLO, Running, serving
from .models import scripted, source_of, tiny_served, tool

DOCUMENT = describe("test")
SCHEMAS = DOCUMENT["components"]["schemas"]
FILES = ("/", "/favicon.ico", "/static/{path}")  # the web app's, not an interface
CALL = '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
SCRIPT = f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}"

# Requests that reach every place where a field is read; a value need not be sensible, only readable.
CHAT: dict[str, Any] = {
    "model": "tiny", "stream": True, "stream_options": {}, "dflash2": {}, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    "tools": [tool("a")], "tool_choice": {"function": {"name": "a"}},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "x"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"}],
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "tiny", "stream_options": {}, "dflash2": {}, "reasoning": {}, "tools": [
        {"type": "function", "name": "a"},
        {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "a"}]}],
    "tool_choice": {"name": "a"}, "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}, "input": [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "x"}]},
        {"type": "reasoning", "content": [{"text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "a"},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "text", "text": "x"}, {"type": "refusal", "refusal": "x"}]}],
}  # fmt: skip
MESSAGES: dict[str, Any] = {
    "model": "tiny", "max_tokens": 1, "dflash2": {}, "system": [{"type": "text", "text": "x"}],
    "thinking": {"type": "adaptive"}, "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "a"}, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "tool_result", "tool_use_id": "t",
                                                                     "content": [{"type": "text", "text": "x"}]}]},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "thinking", "thinking": "x"},
                                          {"type": "tool_use", "id": "t", "name": "a"}]},
        {"role": "user", "content": "x"}],
}  # fmt: skip
READERS = {
    "ChatRequest": (ChatCompletions().read, CHAT),
    "CompletionRequest": (Completions().read, {"model": "tiny", "prompt": "x", "stream": True, "stream_options": {},
                                               "dflash2": {}}),
    "ResponseRequest": (Responses().read, RESPONSES),
    "MessagesRequest": (Messages().read, MESSAGES),
    "CountRequest": (lambda body: MessagesCall(Fields(body), counting=True), MESSAGES),
}  # fmt: skip

Read = tuple[str, tuple[Any, ...]]  # a method of Fields and its arguments behind the name
KINDS = {"text": "string", "required_text": "string", "boolean": "boolean", "integer": "integer", "number": "number",
         "items": "array", "mapping": "object", "inner": "object"}  # fmt: skip


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[Read]]:
    """What the code reads while a test runs: place of a field → how it is read."""
    found: dict[str, set[Read]] = {}

    def watch(name: str) -> None:
        original = getattr(Fields, name)

        def noting(self: Fields, field: str, *rest: Any, **named: Any) -> Any:
            place = re.sub(r"\[\d+\]", "[]", self.name(field))
            given = (*rest, *named.values())
            found.setdefault(place, set()).add((name, tuple(tuple(map(repr, g)) if type(g) is list else g
                                                           for g in given)))  # fmt: skip
            return original(self, field, *rest, **named)

        monkeypatch.setattr(Fields, name, noting)

    for name in (*KINDS, "take", "one_of", "only"):
        watch(name)
    return found


def resolved(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A schema's alternatives, without references and without null."""
    if "$ref" in schema:
        return resolved(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return [found for inner in schema["anyOf"] for found in resolved(inner)]
    return [] if schema.get("type") == "null" and "description" not in schema else [schema]


def kind_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "")
    return str(kind[0] if isinstance(kind, list) else kind)


def described(schema: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every field of a request, by its place; a field may have several descriptions."""
    for found in resolved(schema):
        if kind_of(found) == "array":
            yield from described(found["items"], f"{place}[]")
        for name, inner in found.get("properties", {}).items():
            at = f"{place}.{name}" if place else name
            for alternative in resolved(inner):
                yield at, alternative
            yield from described(inner, at)


def fits(reading: Read, schemas: list[Mapping[str, Any]]) -> bool:
    """Whether a field's description says what its reader takes."""
    method, given = reading
    if method == "take":
        return True  # whoever takes a value as it came looks at it himself
    if method == "one_of":  # places of one name may hold several kinds of objects
        named = [{value for value in schema.get("enum", ()) if value is not None} for schema in schemas]
        return set(given) in [*named, set().union(*named)]
    for schema in schemas:
        values = {json.dumps(value) for value in schema.get("enum", ()) if value is not None}
        if method == "only":
            expected = {json.dumps(eval(value)) for value in given[0]}
            if (values == expected) if expected else schema.get("type") == "null":
                return True
        elif kind_of(schema) == KINDS[method]:
            limits = (schema.get("minimum"), schema.get("maximum"))
            if method not in ("integer", "number") or limits == (*given, None)[:2]:
                return True
        elif values and method in ("text", "required_text") and all(value.startswith('"') for value in values):
            return True
    return False


@pytest.mark.parametrize("name", READERS)
def test_the_description_names_every_field_with_its_values_and_no_other(name: str, noted: dict[str, set[Read]]) -> None:
    read, body = READERS[name]
    read(body).ask(tiny_served())
    fields: dict[str, list[Mapping[str, Any]]] = {}
    for place, schema in described(SCHEMAS[name]):
        fields.setdefault(place, []).append(schema)
    assert set(noted) - set(fields) == set(), "read, and not described"
    assert set(fields) - set(noted) == set(), "described, and read by nobody"
    wrong = {place: readings for place, readings in noted.items()
             if not all(fits(reading, fields[place]) for reading in readings)}  # fmt: skip
    assert wrong == {}, "described otherwise than read"


ODD: tuple[Any, ...] = (True, 0, -1, 1.5, 10**30, "", "odd", [], [1], [{}], {}, {"odd": 1})


@pytest.mark.parametrize("name", READERS)
def test_what_the_description_forbids_is_refused(name: str) -> None:
    read, body = READERS[name]
    served, passed = tiny_served(), []
    for field, schema in SCHEMAS[name]["properties"].items():
        validator = jsonschema_rs.validator_for({**schema, "components": {"schemas": SCHEMAS}})
        for value in ODD:
            if not validator.is_valid(value):
                try:
                    read({**body, field: value}).ask(served)
                except ApiError as refused:
                    assert refused.status == 400, (field, value)
                else:
                    passed.append((field, value))
    assert passed == []


def test_every_route_is_described() -> None:
    service = Service(ModelPool([]), Desk())
    app = make_app(service, version="test")
    document = describe("test", app.routes)
    routes = {
        (re.sub(r":path}", "}", route.path), method.lower())
        for route in app.routes
        if isinstance(route, Route) and re.sub(r":path}", "}", route.path) not in FILES
        for method in (route.methods or {"POST"}) - {"HEAD"}
    }
    assert routes == {(path, method) for path, item in document["paths"].items() for method in item}
    validate(document)


def test_endpoints_of_the_pages_are_described_by_their_routes() -> None:
    async def look(_: Any) -> None:
        """Look at one thing.

        And no more.
        """

    routes = [Route("/api/things/{name:path}/look", look, methods=["GET", "POST"]), Route("/v2/other", look),
              Route("/api/bare", lambda _: None)]  # fmt: skip
    document = describe("test", routes)
    validate(document)
    path = document["paths"]["/api/things/{name}/look"]
    assert set(path) == {"get", "post"} and path["get"]["summary"] == "Look at one thing"
    assert "requestBody" in path["post"] and [part["name"] for part in path["post"]["parameters"]] == ["name"]
    assert "/api/bare" in document["paths"] and "/v2/other" not in document["paths"]


def test_it_is_openapi_and_served(server: Running) -> None:
    answer = server.http.get("/openapi.json")
    validate(answer.json())
    assert (
        answer.json()["paths"].items() >= DOCUMENT["paths"].items()
        and answer.headers["content-type"] == "application/json"
    )


def test_every_schema_is_used() -> None:
    text = json.dumps(DOCUMENT)
    assert [name for name in SCHEMAS if f'schemas/{name}"' not in text] == []


# Answers


def checked(name: str, value: Any) -> Any:
    """Assert that a value is what a schema of the description says."""
    components = {"components": {"schemas": SCHEMAS}}
    jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", **components}).validate(value)
    return value


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "tools": [tool("a")], "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"prompt": "hello", "logprobs": 2},
    "/v1/responses": {"input": "hello", "tools": [{"type": "function", "name": "a"}], "top_logprobs": 2},
    "/v1/messages": {"messages": HELLO, "max_tokens": 300, "tools": [{"name": "a", "input_schema": {}}]},
}  # fmt: skip


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize("model", ["scripted", "tiny", "broken"])
def test_streamed_and_whole_replies_are_as_described(path: str, model: str) -> None:
    broken = scripted("yyyy", "broken", fault=RuntimeError("gone"))
    operation = DOCUMENT["paths"][path]["post"]
    answers = operation["responses"]
    streamed = answers["200"]["content"]["text/event-stream"]["x-event-schema"]
    validator = jsonschema_rs.validator_for({**streamed, "components": {"schemas": SCHEMAS}})
    with serving(source_of(scripted(SCRIPT)), source_of(tiny_served()), source_of(broken)) as server:
        body = {"model": model, **ASKS[path]}
        if model == "tiny" and path != "/v1/messages":
            body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 8
        if path in ("/v1/chat/completions", "/v1/completions"):
            shown = {"stream_options": {"include_usage": True}}
        else:
            shown = {}
        whole = server.http.post(path, json=body)
        status = answers[str(whole.status_code)]["content"]["application/json"]["schema"]
        checked(status["$ref"].rpartition("/")[2], whole.json())
        assert (whole.status_code == 500) == (model == "broken")
        told = events(server.http.post(path, json={**body, **shown, "stream": True}).text)
    assert len(told) > 1 and all(validator.is_valid(event) for event in told), [
        (event, [error.message for error in validator.iter_errors(event)]) for event in told
        if not validator.is_valid(event)
    ]  # fmt: skip


def test_the_other_answers_are_as_described(server: Running) -> None:
    for path in ("/health", "/v1/models", "/v1/models/status", "/v1/models/tiny"):
        schema = DOCUMENT["paths"].get(path, DOCUMENT["paths"]["/v1/models/{name}"])["get"]["responses"]["200"]
        inner = {**schema["content"]["application/json"]["schema"], "components": {"schemas": SCHEMAS}}
        jsonschema_rs.validator_for(inner).validate(server.http.get(path).json())
    counted = server.http.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": HELLO})
    checked("TokenCount", counted.json())
    checked("AnthropicError", server.http.post("/v1/messages/count_tokens", json={}).json())
    checked("OpenAIError", server.http.get("/v1/models/nobody").json())
    checked("ModelStatus", server.http.post("/v1/models/tiny/settings", json={"pinned": False}).json())

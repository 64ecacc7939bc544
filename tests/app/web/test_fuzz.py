"""Requests nobody thought of: made by schemathesis from the description, sent to a real server.

Whatever comes, the answer is one the description knows: no 5xx, an error in its one form, a reply of its schema; and
what the description forbids is refused.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from dflash2_app.web.openapi.document import describe
from dflash2_app.web.openapi.schema import NULL

from .conftest import PATIENCE_S, Running

MODELS = ["scripted", "tiny", "bare"]
MOST_TOKENS = 4
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
CHECKS = [checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
          checks.response_headers_conformance, checks.response_schema_conformance,
          checks.negative_data_rejection]  # fmt: skip


def narrowed(mode: GenerationMode) -> dict[str, Any]:
    """The description, with this server's models and, for right requests, short replies: the rest stays as it is."""
    document = copy.deepcopy(describe("test"))
    for name, schema in document["components"]["schemas"].items():
        fields = schema.get("properties", {})
        if not name.endswith("Request"):
            continue
        fields["model"] = {"enum": MODELS}
        for length in LENGTHS:
            if length in fields and mode is GenerationMode.POSITIVE:
                fields[length]["maximum"] = MOST_TOKENS
    # A wrong name would only ever be told "no such model": what is wrong has to be in the body.
    document["paths"] = {path.replace("{name}", MODELS[0]): item for path, item in document["paths"].items()}
    for item in document["paths"].values():
        for operation in item.values():
            operation.pop("parameters", None)
    return _named_fields_only(document) if mode is GenerationMode.POSITIVE else document


def _named_fields_only(value: Any) -> Any:
    """Without unknown fields that are null: they are allowed, and say nothing."""
    if isinstance(value, dict):
        inner = {key: _named_fields_only(item) for key, item in value.items()}
        return {**inner, "additionalProperties": False} if inner.get("additionalProperties") == NULL else inner
    return [_named_fields_only(item) for item in value] if isinstance(value, list) else value


@functools.cache
def operations(mode: GenerationMode) -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(narrowed(mode))
    return {_title(found.ok().method, found.ok().path): found.ok() for found in schema.get_all_operations()}


def _title(method: str, path: str) -> str:
    return f"{method.upper()} {path}"


NAMES = [_title(method, path) for path, item in narrowed(GenerationMode.NEGATIVE)["paths"].items() for method in item]


def fuzz(server: Running, name: str, mode: GenerationMode, examples: int, *, repeatable: bool) -> None:
    operation = operations(mode)[name]
    if mode is GenerationMode.NEGATIVE and operation.method == "get":
        pytest.skip("nothing in it can be wrong")

    @settings(max_examples=examples, deadline=None, derandomize=repeatable, database=None,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink])  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(base_url=server.url, timeout=PATIENCE_S)
        case.validate_response(response, checks=CHECKS)

    send()
    assert server.http.get("/health").json()["status"] == "ok"


MODES = pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])


@MODES
@pytest.mark.parametrize("name", NAMES)
def test_a_little_of_everything(server: Running, name: str, mode: GenerationMode) -> None:
    fuzz(server, name, mode, 6, repeatable=True)


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("name", NAMES)
def test_much_of_everything(server: Running, name: str, mode: GenerationMode) -> None:
    fuzz(server, name, mode, 100, repeatable=False)

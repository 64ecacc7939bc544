"""Requests nobody thought of: made by schemathesis from the description, sent to a real server.

Whatever comes, the answer is one the description knows: no 5xx, an error in its one form, a reply of its schema; and
what the description forbids is refused.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from dflash2_app.web.openapi.document import describe

from .conftest import PATIENCE_S, Running

MODELS = ["scripted", "tiny", "bare"]
MOST_TOKENS = 4
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
CHECKS = [checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
          checks.response_headers_conformance, checks.response_schema_conformance,
          checks.negative_data_rejection]  # fmt: skip


def narrowed() -> dict[str, Any]:
    """The description, with this server's models and short replies: the rest stays as wide as it is."""
    document = copy.deepcopy(describe("test"))
    for name, schema in document["components"]["schemas"].items():
        fields = schema.get("properties", {})
        if not name.endswith("Request"):
            continue
        fields["model"] = {"enum": MODELS}
        for length in LENGTHS:
            if length in fields:
                fields[length]["maximum"] = MOST_TOKENS
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", []):
                parameter["schema"] = {"enum": MODELS}
    return document


SCHEMA = schemathesis.openapi.from_dict(narrowed())
OPERATIONS = {f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}


def fuzz(server: Running, name: str, mode: GenerationMode, examples: int, *, repeatable: bool) -> None:
    operation = OPERATIONS[name]
    if mode is GenerationMode.NEGATIVE and operation.method == "get":
        pytest.skip("nothing in it can be wrong")

    @settings(max_examples=examples, deadline=None, derandomize=repeatable, database=None,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink])  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(base_url=server.url, session=session, timeout=PATIENCE_S)
        case.validate_response(response, checks=CHECKS)

    with requests.Session() as session:
        send()
    assert server.http.get("/health").json()["status"] == "ok"


MODES = pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])


@MODES
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_little_of_everything(server: Running, name: str, mode: GenerationMode) -> None:
    fuzz(server, name, mode, 12, repeatable=True)


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("name", OPERATIONS)
def test_much_of_everything(server: Running, name: str, mode: GenerationMode) -> None:
    fuzz(server, name, mode, 400, repeatable=False)

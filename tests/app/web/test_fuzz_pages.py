"""Requests nobody thought of, to the endpoints of the web app's pages.

Their bodies are described only by the code that reads them, so each request begins as one that a page would send; then
some of it is replaced, dropped or added. Whatever comes, the answer is no 500, and a refusal has its one form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dflash2_app.web.app import make_app
from dflash2_app.web.openapi.document import describe
from dflash2_app.web.serving.pool import ModelPool
from dflash2_app.web.serving.queue import Desk
from dflash2_app.web.serving.service import Service

from ..hub import Hub
from .conftest import PATIENCE_S, Running, serving
from .models import source_of, tiny_served

CHAT = {"version": 1, "title": "x", "model": "tiny", "messages": [{"role": "user", "content": "x"}]}
NAMED, PROFILE = {"name": "tiny"}, {"model": "tiny", "name": "fast"}
BENCH = {
    "model": "tiny",
    "prompts": "x",
    "widths": [3],
    "temperatures": [0],
    "max_tokens": 2,
    "repeats": 1,
    "samples": 1,
}
BODIES: dict[str, dict[str, Any]] = {
    "POST /api/bench": BENCH,
    "POST /api/chats": CHAT,
    "PUT /api/chats/{id}": CHAT,
    "PATCH /api/chats/{id}": {"title": "y"},
    "POST /api/downloads": {"name": "someone/tiny", "revision": "main", "drafter": "someone/small"},
    "POST /api/models/verify": {**NAMED, "delete_damaged": False},
    "POST /api/models/remove": NAMED,
    "POST /api/race": {"model": "tiny", "prompt": "x", "max_tokens": 2, "temperature": 0, "seed": 1, "block_size": 3},
    "POST /api/race/block": {"model": "tiny", "prompt": [1, 2], "reply": [3], "rows": 2},
    "POST /api/settings/check": {**NAMED, "values": {"temperature": 0.5, "dflash_block_size": 5}},
    "POST /api/settings/save": {**NAMED, "values": {"top_k": 20, "dflash_verify_mode": "adaptive"}},
    "POST /api/settings/preset": {**NAMED, "preset": "dflash2"},
    "POST /api/settings/profiles/save": {**PROFILE, "description": "x", "api_name": "x"},
    "POST /api/settings/profiles/apply": PROFILE,
    "POST /api/settings/profiles/remove": PROFILE,
    "POST /api/settings/profiles/rename": {**PROFILE, "new_name": "slow"},
    "POST /api/settings/profiles/expose": {**PROFILE, "exposed": True},
    "POST /api/doctor": {},
}  # fmt: skip
QUERIES: dict[str, dict[str, str]] = {
    "GET /api/models": {"context": "4096"},
    "GET /api/models/details": {"name": "tiny", "context": "4096"},
    "GET /api/models/removal": {"name": "tiny"},
    "GET /api/settings/model": {"name": "tiny"},
    "GET /api/settings/profiles": {"name": "tiny"},
    "GET /api/downloads/search": {"query": "x", "limit": "3"},
    "GET /api/downloads/card": {"name": "someone/tiny"},
    "GET /api/chats/{id}/export": {"format": "markdown"},
    "GET /api/bench/events": {"run": "x"},
}  # fmt: skip


def _operations() -> list[str]:
    pool = ModelPool([source_of(tiny_served())])
    paths = describe("test", make_app(Service(pool, Desk()), version="test").routes)["paths"]
    return [f"{method.upper()} {path}" for path, item in paths.items() if path.startswith("/api/") for method in item]


OPERATIONS = _operations()

WORDS = ["tiny", "x", "..", "../../etc/passwd", "", "\0", "x\n", "a/b", "~nosuchuser", "<b>", "null"]
words = st.one_of(st.sampled_from(WORDS), st.text(max_size=20))
lone = st.just("\ud800")  # half of a pair: JSON can say it, UTF-8 cannot
numbers = st.one_of(st.integers(), st.integers(-2, 9), st.floats())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words, lone),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)), max_leaves=6,
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any], value: st.SearchStrategy[Any]) -> dict[str, Any]:
    """The body with up to two of its fields replaced or dropped, and now and then one more."""
    names = draw(st.lists(st.sampled_from(sorted(body)), min_size=1, max_size=2)) if body else []
    kept = dict(body)
    for name in names:
        if draw(st.integers(0, 3)):
            kept[name] = draw(value)
        else:
            kept.pop(name, None)
    return {**kept, draw(words): draw(value)} if draw(st.integers(0, 5)) == 5 else kept


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    with serving(source_of(tiny_served())) as running:
        yield running


@pytest.fixture
def offered(up: Running, hub: Hub, home: Path) -> Iterator[Running]:
    """The server with this test's own home and a Hub of its own."""
    yield up
    up.http.post("/api/bench/cancel")
    up.settle()


def send(server: Running, operation: str, draw: st.DrawFn) -> None:
    method, _, path = operation.partition(" ")
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + quote(draw(words), safe="") + rest.partition("}")[2]
    query = draw(changed(QUERIES.get(operation, {}), words))
    body = None
    if operation in BODIES:
        body = draw(st.one_of(changed(BODIES[operation], words), changed(BODIES[operation], values), values))
    request = server.http.build_request(
        method, path, params=query, content=None if body is None else as_json(body), timeout=PATIENCE_S
    )
    answer = server.http.send(request, stream=True)
    try:
        check(answer, operation)
    finally:
        answer.close()


def as_json(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", errors="surrogatepass")  # NaN and the like: not JSON, so refused


def check(answer: httpx2.Response, operation: str) -> None:
    assert answer.status_code not in (500, 501), f"{operation}: {answer.read()!r}"
    if answer.status_code >= 400:
        answer.read()
        error = answer.json()["error"]
        assert error["message"] and "Traceback" not in error["message"] and "\n" not in error["message"], error
    elif answer.headers.get("content-type", "").startswith("text/event-stream") and not operation.startswith("GET"):
        for line in answer.iter_lines():  # an endless one is a GET
            assert "internal" not in line.lower(), line


def fuzz(server: Running, operation: str, examples: int, *, repeatable: bool) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=repeatable, database=None,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink])  # fmt: skip
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        send(server, operation, data.draw)

    run()
    assert server.http.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_little_of_everything(offered: Running, operation: str) -> None:
    fuzz(offered, operation, 10, repeatable=True)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_much_of_everything(offered: Running, operation: str) -> None:
    fuzz(offered, operation, 300, repeatable=False)


def test_every_body_and_query_belongs_to_an_endpoint() -> None:
    assert {*BODIES, *QUERIES} <= set(OPERATIONS)

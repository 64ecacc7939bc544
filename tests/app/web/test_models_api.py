"""What is loaded, and loading, pinning and unloading it over HTTP."""

from __future__ import annotations

import time

from dflash2_app.web.serving.source import Card

from .conftest import HELLO, serving
from .models import ReadySource, scripted, source_of

CHAT = "/v1/chat/completions"


def source(name: str) -> ReadySource:
    return source_of(scripted("fine", name))


def test_models_come_and_go() -> None:
    with serving(source("a"), source("org/b"), source("c"), most_loaded=2) as server:
        http = server.http
        states = {state["id"]: state for state in http.get("/v1/models/status").json()["models"]}
        assert not any(state["loaded"] for state in states.values())
        loaded = http.post("/v1/models/org/b/load").json()
        assert loaded["loaded"] and loaded["effective_engine"] == "dflash2" and loaded["block_size"] == 5
        assert http.post("/v1/models/org/b/settings", json={"pinned": True, "ttl_seconds": 60}).json()["pinned"]
        for name in ("a", "c"):
            assert http.post(CHAT, json={"model": name, "messages": HELLO}).status_code == 200
        states = {state["id"]: state["loaded"] for state in http.get("/v1/models/status").json()["models"]}
        assert states == {"a": False, "org/b": True, "c": True}
        assert http.post("/v1/models/c/unload").json()["loaded"] is False
        metrics = http.get("/metrics").text
        assert 'dflash2_model_loaded{model="org/b"} 1' in metrics and 'dflash2_model_loaded{model="c"} 0' in metrics
        assert http.post("/v1/models/c/settings", json={"pinned": 3}).status_code == 400
        assert http.post("/v1/models/c/load", json={"speed": 3}).status_code == 400
        assert http.post("/v1/models/nobody/unload").status_code == 404


def test_an_idle_model_goes_by_itself() -> None:
    with serving(source("a"), ttl_s=0.1) as server:
        server.http.post("/v1/models/a/load")
        end = time.monotonic() + 20
        while server.http.get("/v1/models/status").json()["models"][0]["loaded"]:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_model_that_cannot_be_loaded_says_why() -> None:
    broken = source("a")
    broken.fault = ValueError("config.json: got none")
    with serving(broken, source("b")) as server:
        answer = server.http.post(CHAT, json={"model": "a", "messages": HELLO})
        assert answer.status_code == 503 and "config.json: got none" in answer.json()["error"]["message"]
        assert server.http.get("/v1/models/status").json()["models"][0]["problem"] == "config.json: got none"
        assert server.http.post(CHAT, json={"model": "b", "messages": HELLO}).status_code == 200
        server.settle()


def test_metrics_are_prometheus_text() -> None:
    odd = source_of(scripted("fine", 'odd"name\\'), card=Card(alias="alias"))
    with serving(odd) as server:
        assert "dflash2_reply_failures_total 0" in server.http.get("/metrics").text
        server.http.post(CHAT, json={"model": 'odd"name\\', "messages": HELLO})
        server.http.get("/nothing/of/this")
        lines = server.http.get("/metrics").text.splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(len(line.rpartition(" ")) == 3 and float(line.rpartition(" ")[2]) >= 0 for line in samples)
    assert r'dflash2_generated_tokens_total{model="odd\"name\\"} 4' in samples
    assert r'dflash2_model_loaded{model="odd\"name\\"} 1' in samples, "one model, one label"
    assert 'dflash2_requests_total{path="other",status="404"} 1' in samples
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))

"""What the server tells of itself, and what its log never holds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.web.http.endpoint import SIGN_S
from dflash2_app.web.http.log import LogBuffer
from dflash2_app.web.pages import status_api
from dflash2_mlx.device.runtime import owner

from .conftest import HELLO, Running, serving
from .models import scripted, source_of, tiny_served

CHAT = "/v1/chat/completions"
KEY = "s3cret-key-of-a-server"
SECRET = "the words of a client"
log = logging.getLogger("dflash2.serve")


@pytest.fixture
def loud() -> Iterator[None]:
    before = log.level
    log.setLevel(logging.DEBUG)
    yield
    log.setLevel(before)


def test_status_tells_models_sums_queue_and_memory() -> None:
    with serving(source_of(scripted("fine and well")), source_of(tiny_served("plain", drafts=False))) as server:
        for _ in range(2):
            assert server.http.post(CHAT, json={"model": "scripted", "messages": HELLO}).status_code == 200
        assert server.http.post(CHAT, json={"model": "scripted"}).status_code == 400
        found = server.http.get("/api/status").json()
        assert (found["version"], found["address"], found["key_required"]) == ("test", server.url, False)
        assert found["queue"] | {"stuck_seconds": None} == {
            "running": 0, "waiting": 0, "most_running": 8, "most_waiting": 64, "stuck_seconds": None}  # fmt: skip
        told = server.http.get("/v1/models/status").json()["models"]
        assert [{**model, "idle_seconds": None} for model in found["models"]] == [
            {**model, "idle_seconds": None} for model in told
        ]
        sums = found["totals"]
        assert sums["requests_by_status"] == {"200": 2, "400": 1}, "what pages ask for is left out"
        assert sums["requests"] == 3
        assert sums["models"]["scripted"]["replies"] == 2 and sums["models"]["scripted"]["prompt_tokens"] == 14
        assert list(sums["models"]) == ["scripted"]
        assert found["memory"]["process_peak_bytes"] > 10**7 and found["memory"]["active_bytes"] >= 0
        metrics = server.http.get("/metrics").text
        generated = sums["models"]["scripted"]["generated_tokens"]
        assert f'dflash2_generated_tokens_total{{model="scripted"}} {generated:g}' in metrics


def test_doctor_looks_without_loading(server: Running) -> None:
    found = server.http.get("/api/doctor").json()
    assert found["pair"] is None and found["examination"] is None and found["machine"]["system"]
    assert {"select_walk", "few_row_attention", "qmm_rows"} <= {kernel["name"] for kernel in found["kernels"]}
    for body, told in (({"model": "tiny", "rows": 1}, "rows: got 1"), ({"rows": 2}, "model: got None"),
                       ({"model": "tiny", "x": 1}, "x: got 1")):  # fmt: skip
        answer = server.http.post("/api/doctor", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(told)
    assert server.http.post("/api/doctor", json={"model": "nobody"}).status_code == 404


def test_a_page_that_follows_the_status_keeps_no_tuning_waiting(server: Running) -> None:
    owner().call(lambda: None)
    time.sleep(0.3)
    for path in ("/api/status", "/api/doctor", "/v1/models/status", "/metrics", "/api/models"):
        assert server.http.get(path).status_code == 200
    assert owner().quiet_s >= 0.3


def ended(server: Running) -> dict[str, Any]:
    """The examination, when it has ended."""
    end = time.monotonic() + 300
    while (asked := server.http.get("/api/doctor").json()["examination"])["state"] not in ("done", "failed"):
        assert time.monotonic() < end, asked
        time.sleep(0.1)
    return asked


def test_passes_are_timed_on_demand_one_at_a_time(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def examined(found: dict[str, Any], engine: d2.Engine, rows: int, tell: Callable[[str], None]) -> None:
        tell("timing passes")
        assert go_on.wait(300)
        if engine.drafter is None:
            raise d2.PairError("drafter: got none, expected one")
        found["pair"] = {"model": engine.target_name, "rows": rows}

    monkeypatch.setattr(status_api, "examine", examined)
    assert server.http.post("/api/doctor", json={"model": "tiny", "rows": 2}).status_code == 202
    assert server.http.post("/api/doctor", json={"model": "tiny"}).status_code == 409
    while (asked := server.http.get("/api/doctor").json()["examination"])["stage"] != "timing passes":
        assert asked["state"] in ("waiting", "running") and asked["found"] is None
    assert server.http.get("/api/status").json()["queue"]["running"] == 1, "it has a place in line"
    go_on.set()
    assert ended(server)["found"]["pair"] == {"model": "tiny", "rows": 2}
    assert server.http.post("/api/doctor", json={"model": "plain"}).status_code == 202
    failed = ended(server)
    assert (failed["state"], failed["problem"]) == ("failed", "drafter: got none, expected one")
    server.settle()


@pytest.mark.usefixtures("loud")
def test_the_log_holds_no_prompt_reply_or_key() -> None:
    fault = scripted(f"reply: {SECRET}", "broken", fault=ValueError(SECRET))
    with serving(source_of(scripted(SECRET)), source_of(fault), api_key=KEY) as server:
        server.http.headers["authorization"] = f"Bearer {KEY}"
        for model in ("scripted", "broken"):
            server.http.post(CHAT, json={"model": model, "messages": [{"role": "user", "content": SECRET}]})
        server.http.get(f"/v1/models/{KEY}?prompt={SECRET}")
        server.http.get("/v1/models", headers={"authorization": f"Bearer {KEY}x"})
        told = server.http.get("/api/logs").json()
        text = "\n".join(line["text"] for line in told["lines"])
        assert "POST /v1/chat/completions 200" in text and "(ValueError in " in text and "•••" in text
        assert SECRET not in text and KEY not in text
        assert [line["number"] for line in told["lines"]] == list(range(1, told["last"] + 1))


@pytest.mark.usefixtures("loud")
def test_the_log_is_told_by_level_and_followed() -> None:
    with serving(source_of(scripted("fine"))) as server:
        log.warning("first\nline \x1b[2J")
        log.info("second")
        found = server.http.get("/api/logs", params={"level": "warning"}).json()
        assert [line["text"] for line in found["lines"]] == ["first line ␛[2J"]
        everything = server.http.get("/api/logs", params={"level": "info"}).json()["lines"]
        assert [line["text"] for line in everything][-1] == "second"
        number = everything[-1]["number"]
        assert server.http.get("/api/logs", params={"after": number, "level": "info"}).json()["lines"] == []
        assert server.http.get("/api/logs", params={"after": number - 1, "level": "info"}).json()["lines"] == [
            everything[-1]
        ]
        for query, told in (("after=x", "after: got 'x'"), ("level=loud", "level: got 'loud'"), ("x=1", "x: got '1'")):
            answer = server.http.get(f"/api/logs?{query}")
            assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(told)
            assert server.http.get(f"/api/logs/events?{query}").status_code == 400
        with server.http.stream("GET", f"/api/logs/events?after={found['last']}&level=warning") as answer:
            log.warning("third")
            line = next(line for line in answer.iter_lines() if line.startswith("data: "))
            assert "third" in line and "first" not in line


def test_who_follows_the_log_is_answered_before_there_is_a_line() -> None:
    with serving(source_of(scripted("fine"))) as server:
        began = time.monotonic()
        with server.http.stream("GET", "/api/logs/events?after=1000000") as answer:
            assert answer.status_code == 200 and time.monotonic() - began < SIGN_S / 2
            assert next(answer.iter_lines()).startswith(":")


@pytest.mark.usefixtures("loud")
def test_pages_that_look_every_few_seconds_do_not_fill_the_log() -> None:
    with serving(source_of(scripted("fine"))) as server:
        for path in ("/api/status", "/static/js/app.js", "/v1/models"):
            assert server.http.get(path).status_code == 200
        levels = {line["text"].split()[1]: line["level"] for line in server.http.get("/api/logs").json()["lines"]
                  if line["text"].startswith("GET ")}  # fmt: skip
        assert levels == {"/api/status": "debug", "/static/js/app.js": "debug", "/v1/models": "info"}


def test_old_lines_make_room() -> None:
    lines = LogBuffer(most=3)
    for number in range(5):
        lines.emit(logging.LogRecord("x", logging.INFO, "", 0, "line %d %s", (number, "y" * 9000), None))
    kept: list[dict[str, Any]] = lines.lines()
    assert [line["number"] for line in kept] == [3, 4, 5] and all(len(line["text"]) <= 2001 for line in kept)


def test_about_names_the_licences_of_vendored_parts(server: Running) -> None:
    found = server.http.get("/api/about").json()
    assert found["licence"] == "Apache-2.0"
    for part in found["vendored"]:
        assert server.http.get(part["path"]).status_code == 200

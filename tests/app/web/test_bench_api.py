"""The bench of the web app over HTTP: one measurement from its request to its file, and what is refused."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import HELLO, Running, serving
from .models import scripted, source_of, tiny_served

SMALL = {"model": "tiny", "prompts": "one\ntwo", "widths": [1, 3], "max_tokens": 8, "repeats": 1}
SLOW = {**SMALL, "max_tokens": 48, "repeats": 1000, "phases": False}
PATIENCE_S = 300


@pytest.fixture
def benching(home: Path) -> Iterator[Running]:
    with serving(source_of(tiny_served()), source_of(tiny_served("plain", drafts=False)), running=1) as up:
        yield up


def frames(server: Running) -> Iterator[tuple[str, Any]]:
    """The events of the newest measurement, which may be over before one could follow it."""
    named = {"run": current(server)["id"]}
    with server.http.stream("GET", "/api/bench/events", params=named, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200, answer.read()
        event = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                yield event, json.loads(line[6:])


def finished(server: Running) -> dict[str, Any]:
    return next(data for event, data in frames(server) if event == "end")


def start(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.http.post("/api/bench", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def until(condition: Any) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def current(server: Running) -> dict[str, Any]:
    return server.http.get("/api/bench").json()["current"]


def test_a_measurement_from_its_request_to_its_file(benching: Running, home: Path) -> None:
    begun = start(benching, SMALL)
    seen = list(frames(benching))
    kinds = [event for event, _ in seen]
    assert kinds[-1] == "end" and "rows" in kinds and "state" in kinds
    rows = next(data["settings"] for event, data in seen if event == "rows")
    assert {arm["width"] for arm in rows[0]["arms"]} <= {1, 3}
    end = seen[-1][1]
    record = end["record"]
    assert (end["id"], end["state"], end["kept"], end["problem"]) == (begun["id"], "done", True, None)
    assert (record["kind"], record["complete"], record["set"]) == ("pair", True, "own prompts")
    assert record["requests"] == record["requests_planned"] == 4 == end["requests_planned"]
    plain, drafted = record["settings"][0]["arms"]
    assert (plain["mode"], drafted["mode"], drafted["width"]) == ("plain", "dflash2", 3)
    assert drafted["texts"] == {"compared": 2, "identical": 2, "differences": []} and drafted["milliseconds"]
    assert record["recommendation"]["reason"]
    one = f"/api/bench/runs/{begun['id']}"
    assert benching.http.get(f"{one}/json").json() == record
    (kept,) = benching.http.get("/api/bench/runs").json()["runs"]
    assert (kept["id"], kept["model"], kept["complete"]) == (begun["id"], "tiny", True)
    assert benching.http.get(one).json()["record"] == record
    table = benching.http.get(f"{one}/csv")
    assert table.headers["content-type"].startswith("text/csv") and "attachment" in table.headers["content-disposition"]
    assert [row["width"] for row in csv.DictReader(table.text.splitlines())] == ["1", "3"]
    file = home / "settings" / "bench" / f"{begun['id']}.json"
    assert file.stat().st_mode & 0o077 == 0 and "one" not in json.loads(file.read_text())["record"]["set"].split()
    assert benching.http.delete(one).status_code == 200 and not file.exists()
    assert benching.http.get(one).status_code == benching.http.delete(one).status_code == 404
    benching.settle()


def test_a_cancelled_measurement_keeps_what_was_measured(benching: Running) -> None:
    start(benching, SLOW)
    assert benching.http.post("/api/bench", json=SMALL).status_code == 409, "one at a time"
    until(lambda: current(benching)["requests"] >= 2)
    assert benching.http.post("/api/bench/cancel").status_code == 200
    until(lambda: current(benching)["state"] == "cancelled")
    (kept,) = benching.http.get("/api/bench/runs").json()["runs"]
    assert not kept["complete"] and 2 <= kept["requests"] < kept["requests_planned"]
    assert benching.http.post("/api/bench/cancel").status_code == 404
    assert benching.http.get("/api/bench/events").status_code == 404
    named = benching.http.get("/api/bench/events", params={"run": kept["id"]})
    assert named.status_code == 200 and "event: end\n" in named.text and '"state":"cancelled"' in named.text
    other = benching.http.get("/api/bench/events", params={"run": "20200101-000000"})
    assert other.status_code == 404 and other.json()["error"]["param"] == "run"
    benching.settle()
    assert finished_again(benching)["state"] == "done", "the place in line and the model were given back"


def finished_again(server: Running) -> dict[str, Any]:
    start(server, SMALL)
    return finished(server)


def test_waiting_in_line_can_be_cancelled_too() -> None:
    slow = scripted("x" * 300, per_round=1, round_s=0.05)
    with serving(source_of(slow), source_of(tiny_served()), running=1) as server:
        with server.http.stream("POST", "/v1/chat/completions",
                                json={"model": "scripted", "messages": HELLO, "stream": True}) as reply:  # fmt: skip
            next(reply.iter_lines())
            start(server, SMALL)
            assert current(server)["state"] == "waiting"
            server.http.post("/api/bench/cancel")
            until(lambda: current(server)["state"] == "cancelled")
            assert server.service.desk.waiting == 0
        assert server.http.get("/api/bench/runs").json()["runs"] == []
        server.settle()


def test_requests_beside_it_are_told_of() -> None:
    with serving(source_of(tiny_served()), source_of(scripted("fine")), running=2) as server:
        start(server, SLOW)
        until(lambda: current(server)["state"] == "measuring")
        chat = {"model": "scripted", "messages": HELLO}
        assert server.http.post("/v1/chat/completions", json=chat).status_code == 200
        until(lambda: current(server)["requests"] >= 1)
        server.http.post("/api/bench/cancel")
        record = finished(server)["record"]
        assert "1 other request ran on this server meanwhile" in record["busy"]


def test_a_measurement_ends_with_the_server(home: Path) -> None:
    with serving(source_of(tiny_served())) as server:
        start(server, SLOW)
        until(lambda: current(server)["requests"] >= 1)
        name = current(server)["id"]
    kept = json.loads((home / "settings" / "bench" / f"{name}.json").read_text())
    assert kept["record"]["complete"] is False


def test_what_does_not_suit_the_model_is_told(benching: Running) -> None:
    for body, told in (
        ({**SMALL, "widths": [1, 9]}, "widths: got 9, expected integers in 1..5"),
        ({**SMALL, "model": "plain"}, "widths: got 3, expected integers in 1..1: there is no drafter"),
        ({**SMALL, "set": "gsm8k", "prompts": None}, "set: got 'gsm8k', expected the data set openai/gsm8k"),
    ):  # fmt: skip
        start(benching, body)
        end = until(lambda: (run := current(benching))["state"] == "failed" and run)
        assert end["problem"].startswith(told) and not end["kept"], end


def test_a_model_that_does_not_draft_says_why_in_the_words_of_the_api(benching: Running) -> None:
    start(benching, {"model": "plain", "prompts": "one", "max_tokens": 4, "repeats": 1, "samples": 3, "top_p": 0.5})
    record = finished(benching)["record"]
    (status,) = [m for m in benching.http.get("/v1/models/status").json()["models"] if m["id"] == "plain"]
    assert f"DFlash is not active for plain: {status['dflash_fallback_reason']}" in record["notices"]
    assert "samples: 3 were asked for, own prompts has 1" in record["notices"]
    assert "top_p has no effect at temperature 0" in record["notices"]
    assert [arm["width"] for arm in record["settings"][0]["arms"]] == [1] and record["recommendation"] is None


@pytest.mark.parametrize(("change", "told"), [
    ({"model": None}, "model: got None"), ({"widths": [1, 1]}, "widths: got [1, 1], expected a list of different"),
    ({"widths": [True]}, "widths: got [True]"), ({"widths": []}, "widths: got []"), ({"depths": [-1]}, "depths: got"),
    ({"temperatures": ["0"]}, "temperatures: got ['0']"), ({"temperatures": [101]}, "temperatures: got"),
    ({"max_tokens": 1}, "max_tokens: got 1"), ({"repeats": 0}, "repeats: got 0"), ({"seed": -1}, "seed: got -1"),
    ({"preset": "best"}, "preset: got 'best'"), ({"set": "mini"}, "prompts: got 'text beside a set'"),
    ({"prompts": " \n"}, "prompts: got no prompts"), ({"prompts": "{\"x\": 1}"}, "prompts:1: got none of them"),
    ({"repetition_penalty": 11}, "repetition_penalty: got 11, expected a number in [0, 10]"),
    ({"top_k": 2**31}, "top_k: got 2147483648"), ({"top_p": 2}, "top_p: got 2"),
    ({"phases": "no"}, "phases: got 'no'"), ({"speed": 3}, "speed: got 3, expected no"),
    ({"chat_template": False, "chat_template_args": {"a": 1}}, "chat_template_args: got {'a': 1}"),
])  # fmt: skip
def test_wrong_fields_are_refused_by_name(server: Running, change: dict[str, Any], told: str) -> None:
    body = json.dumps({**SMALL, **change})
    answer = server.http.post("/api/bench", content=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(told), answer.text
    assert current(server) is None


def test_unknown_models_and_runs(server: Running) -> None:
    assert server.http.post("/api/bench", json={**SMALL, "model": "nobody"}).status_code == 404
    for name in ("20260101-000000", "..%2f..%2fmodel_settings", "x"):
        assert server.http.get(f"/api/bench/runs/{name}").status_code == 404
        assert server.http.delete(f"/api/bench/runs/{name}").status_code == 404
        assert server.http.post(f"/api/bench/runs/{name}/apply").status_code == 404


def keep(home: Path, name: str = "20260102-030405", **changes: Any) -> str:
    """Put a measurement of mini into the base folder."""
    fields = "drafter set prompts preset max_tokens repeats complete requests requests_planned".split()
    record = {
        **dict.fromkeys(fields),
        "drafter": "mini",
        "settings": [],
        "recommendation": {"block_size": 5, "speedup": 1.5, "reason": "fast", "caution": None},
        **changes,
    }
    folder = home / "settings" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    run = {"version": 1, "id": name, "model": "mini", "began": "2026-01-02T03:04:05Z", "seconds": 1, "record": record}
    (folder / f"{name}.json").write_text(json.dumps(run))
    return f"/api/bench/runs/{name}"


def test_advice_becomes_a_setting(benching: Running, home: Path) -> None:
    one = keep(home)
    assert benching.http.post(f"{one}/apply", json={"x": 1}).status_code == 400
    answer = benching.http.post(f"{one}/apply").json()
    assert answer["told"].startswith("Runtime block size 5 is now set for mini in ")
    assert (
        json.loads((home / "settings" / "model_settings.json").read_text())["models"]["mini"]["dflash_block_size"] == 5
    )


@pytest.mark.parametrize(("changes", "told"), [
    ({"drafter": "/another"}, "apply: got a measurement with the drafter /another, expected mini"),
    ({"recommendation": {"block_size": None}}, "apply: nothing is written"),
    ({"recommendation": None}, "apply: nothing is written"),
])  # fmt: skip
def test_advice_that_does_not_fit_is_not_written(
    benching: Running, home: Path, changes: dict[str, Any], told: str
) -> None:
    answer = benching.http.post(f"{keep(home, **changes)}/apply")
    assert answer.status_code == 409 and answer.json()["error"]["message"].startswith(told)
    assert not (home / "settings" / "model_settings.json").exists()


def test_a_damaged_file_is_told_of_and_the_rest_is_listed(benching: Running, home: Path) -> None:
    keep(home)
    keep(home, "20260102-030406")
    for name, text in (("20260102-030407", "{"), ("20260102-030408", '{"record": 3}'), ("notes", "{")):
        (home / "settings" / "bench" / f"{name}.json").write_text(text)
    found = benching.http.get("/api/bench/runs").json()
    assert [run["id"] for run in found["runs"]] == ["20260102-030406", "20260102-030405"]
    assert len(found["problems"]) == 2 and all("expected" in line for line in found["problems"])


def test_a_file_that_cannot_be_written_is_told_of(benching: Running, home: Path) -> None:
    (home / "settings").mkdir(exist_ok=True)
    (home / "settings" / "bench").write_text("in the way")
    start(benching, SMALL)
    end = finished(benching)
    assert end["state"] == "done" and not end["kept"] and end["record"]["complete"]
    assert any("could not be kept" in note for note in end["notes"])

"""The side-by-side page's endpoints: a race from warm-up to verdict, refusals, cancelling, a block taken apart."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

import dflash2_mlx as d2
from dflash2_app.web.serving.queue import Desk
from tests.app.conftest import environment

from .conftest import HELLO, Running, serving
from .models import mini_source, scripted, source_of, tiny_engine, tiny_served
from .test_sharing import until

ORDER = {"model": "tiny", "prompt": "hello", "max_tokens": 12}
Events = list[tuple[str, Any]]


def decode_with(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    """Put something in the place of the library's decoding."""
    monkeypatch.setattr(d2, "stream_generate", stream)


def race(server: Running, **fields: Any) -> Events:
    """All events of a race; a comment is no event."""
    found = []
    with server.http.stream("POST", "/api/race", json={**ORDER, **fields}) as answer:
        assert answer.status_code == 200, answer.read()
        for frame in answer.iter_text():
            found.append(frame)
    return parse("".join(found))


def parse(text: str) -> Events:
    events = []
    for frame in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if lines:
            events.append((lines["event"], json.loads(lines["data"])))
    return events


def lane_of(events: Events, mode: str) -> list[dict[str, Any]]:
    return [data for name, data in events if name == "round" and data["lane"] == mode]


@pytest.fixture(scope="module")
def events(server: Running) -> Events:
    return race(server)


def test_a_race_runs_one_lane_after_the_other(events: Events) -> None:
    order = [(name, data.get("lane")) for name, data in events]
    told = [item for at, item in enumerate(order) if at == 0 or item != order[at - 1]]
    assert [item for item in told if item[0] != "prefill"] == [
        ("run", None), ("warm_up", "plain"), ("warm_up", "dflash2"),
        ("lane", "plain"), ("round", "plain"), ("lane_end", "plain"),
        ("lane", "dflash2"), ("round", "dflash2"), ("lane_end", "dflash2"), ("verdict", None),
    ]  # fmt: skip


def test_both_lanes_are_the_librarys_own_replies(events: Events) -> None:
    engine = tiny_engine()
    config = d2.GenerationConfig(max_tokens=12)
    for mode in ("plain", "dflash2"):
        wanted = d2.generate(engine, "hello", replace(config, mode=mode))
        rounds = lane_of(events, mode)
        assert "".join(text for done in rounds for _, text in done["tokens"]) == wanted.text
        assert [token for done in rounds for token, _ in done["tokens"]] == wanted.token_ids
        times = [done["t"] for done in rounds]
        assert times == sorted(times) and times[0] < times[-1]
        end = next(data for name, data in events if name == "lane_end" and data["lane"] == mode)
        assert end["stats"]["rounds"] == wanted.stats.rounds and end["stats"]["mode"] == mode
        assert end["stats"]["decode_s"] == times[-1] and end["others"] == 0
        assert rounds[-1]["finish_reason"] == "length"


def test_rounds_tell_what_was_drafted_and_what_was_kept(events: Events) -> None:
    first, *rounds = lane_of(events, "dflash2")
    assert first["num_accepted"] is None and first["t"] == 0.0
    for done in rounds:
        assert done["width"] == 5 and len(done["proposal"]) == 4
        kept = [token for token, _ in done["tokens"]][: done["num_accepted"]]
        assert kept == done["proposal"][: len(kept)]
        assert done["committed"] == len(done["tokens"]) <= done["num_accepted"] + 1
    assert all(done["num_accepted"] == 0 and done["committed"] == 1 for done in lane_of(events, "plain")[1:])


def test_the_verdict_and_the_head(events: Events) -> None:
    head, verdict = events[0][1], events[-1][1]
    assert (head["schema"], head["version"], head["target"], head["drafter"]) == (
        "dflash2-race", 1, "tiny", "tiny-drafter"
    )  # fmt: skip
    assert head["request"]["prompt"] == "hello" and head["sampling"]["lossless_mode"] == "coupled"
    assert head["sampling"]["greedy"] and head["width"] == 5
    assert verdict["identical"] and verdict["first_difference"] is None and verdict["difference"] is None
    ends = {data["lane"]: data["stats"] for name, data in events if name == "lane_end"}
    assert verdict["speedup"] == pytest.approx(
        ends["dflash2"]["tokens_per_second"] / ends["plain"]["tokens_per_second"]
    )


def test_sampled_lanes_are_coupled_so_that_their_texts_are_equal(server: Running) -> None:
    found = race(server, temperature=1.0, seed=7, block_size=3, verify_mode="dflash")
    assert found[-1][1]["identical"]
    head = found[0][1]
    assert (head["width"], head["sampling"]["seed"], head["sampling"]["greedy"]) == (3, 7, False)
    assert "temperature 1, seed 7, coupled" in head["subject"]
    texts = [
        "".join(text for done in lane_of(found, mode) for _, text in done["tokens"]) for mode in ("plain", "dflash2")
    ]
    assert texts[0] == texts[1] != ""
    assert {done["width"] for done in lane_of(found, "dflash2")[1:]} == {3}


def test_a_difference_is_told_with_its_gap_and_its_words(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    two = {"plain": "abcdef", "dflash2": "abXdef"}
    decode_with(monkeypatch, lambda engine, prompt, config: scripted(two[config.mode])._events(config))
    verdict = race(server)[-1][1]
    found = verdict["first_difference"]
    assert not verdict["identical"] and found["index"] == 2 and isinstance(found["logit_gap"], float)
    assert verdict["difference"].startswith("from token 2 on: plain 'c', DFlash 2 'X', logit gap ")


@pytest.mark.parametrize(("fields", "message"), [
    ({"model": "plain"}, "model: got 'plain', expected one that drafts: no drafter given"),
    ({"model": "nobody"}, "model: got 'nobody', expected one of: tiny"),
    ({"prompt": "  "}, "prompt: got ' ', expected at least one word"),
    ({"prompt": None}, "prompt: got None, expected text"),
    ({"max_tokens": 0}, "max_tokens: got 0"),
    ({"max_tokens": 5000}, "max_tokens: got 5000, expected an integer in 1..4096"),
    ({"temperature": 3}, "temperature: got 3, expected a number in [0, 2]"),
    ({"block_size": 6}, "block_size: got 6, expected an integer in 2..5"),
    ({"verify_mode": "off"}, "verify_mode: got 'off', expected 'dflash' or 'adaptive': a race shows drafting"),
    ({"verify_mode": "fast"}, "verify_mode: got 'fast', expected 'dflash' or 'adaptive'"),
    ({"model": "bare", "system": "Be brief."}, "system: got 'Be brief.', expected none: bare has no chat template"),
    ({"model": "bare", "thinking": True}, "thinking: got True, expected nothing: bare does not think"),
    ({"speed": 2}, "speed: got 2, expected no such field"),
])  # fmt: skip
def test_what_cannot_be_raced_is_refused(server: Running, fields: dict[str, Any], message: str) -> None:
    answer = server.http.post("/api/race", json={**ORDER, **fields})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"].startswith(message)
    server.settle()


def test_a_refusal_gives_the_reason_that_the_status_gives(server: Running) -> None:
    server.http.post("/v1/models/plain/load")
    states = {state["id"]: state for state in server.http.get("/v1/models/status").json()["models"]}
    refused = server.http.post("/api/race", json={**ORDER, "model": "plain"}).json()["error"]
    assert refused["message"].endswith(states["plain"]["dflash_fallback_reason"])
    assert refused["code"] == "dflash_not_active"


def test_a_drafter_that_lies_there_and_is_switched_off_races_nobody() -> None:
    """The embedded pair brings its drafter along, also where the settings do not want it."""
    with serving(mini_source(dflash_enabled=False)) as server:
        answer = server.http.post("/api/race", json={**ORDER, "model": "mini"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "dflash_not_active"), answer.text


def test_thinking_and_system_reach_the_prompt(server: Running) -> None:
    def prompt_tokens(**fields: Any) -> int:
        found = race(server, max_tokens=2, **fields)
        return int(next(data["stats"]["prompt_tokens"] for name, data in found if name == "lane_end"))

    off, on = prompt_tokens(thinking=False), prompt_tokens(thinking=True)
    assert off > on, "the template writes empty thinking where it is off"
    assert prompt_tokens(thinking=True, system="Be brief.") > on


def test_what_can_be_raced_is_listed(server: Running) -> None:
    listed = server.http.get("/api/race").json()
    assert listed["defaults"] == {"max_tokens": 160, "temperature": 0, "seed": 0}
    assert [model["id"] for model in listed["models"]][:2] == ["tiny", "plain"]
    assert all(example["label"] and example["prompt"] for example in listed["models"][0]["examples"])


def test_a_client_that_leaves_stops_the_race_within_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = d2.stream_generate

    def noting(engine: Any, prompt: Any, config: d2.GenerationConfig) -> Iterator[d2.GenerationEvent]:
        events = real(engine, prompt, config)
        try:
            for event in events:
                seen.append(config.mode)
                yield event
        finally:
            events.close()

    decode_with(monkeypatch, noting)
    with serving(source_of(tiny_served())) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            data = json.dumps({**ORDER, "max_tokens": 4000}).encode()
            head = f"POST /api/race HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            text = b""
            while text.count(b"event: round") < 3:
                text += connection.recv(65536)
        until(lambda: server.service.desk.running == 0, 60)
        done = len(seen)
        time.sleep(0.5)
        assert len(seen) == done < 2000, "something still runs"
        assert race(server)[-1][0] == "verdict", "the next one runs"


def test_neither_lane_finds_its_prompt_read(events: Events) -> None:
    ends = [data["stats"] for name, data in events if name == "lane_end"]
    assert [end["cached_tokens"] for end in ends] == [0, 0]


def test_others_that_ran_beside_a_lane_are_told() -> None:
    slow = scripted("y" * 400, "slow", round_s=0.05)
    with serving(source_of(slow), source_of(tiny_served())) as server:
        body = {"model": "slow", "messages": HELLO, "max_tokens": 400}
        beside = threading.Thread(target=lambda: server.http.post("/v1/chat/completions", json=body))
        beside.start()
        until(lambda: server.service.desk.running == 1)
        with_others = [data["others"] for name, data in race(server, max_tokens=4) if name == "lane_end"]
        beside.join()
        server.settle()
    assert with_others == [1, 1]


def test_a_race_waits_in_line_and_can_leave_it() -> None:
    slow = scripted("y" * 200, "slow", round_s=0.02)
    with serving(source_of(slow), source_of(tiny_served()), running=1) as server:
        desk: Desk = server.service.desk
        body = {"model": "slow", "messages": HELLO, "max_tokens": 200, "stream": True}
        first = server.http.build_request("POST", "/v1/chat/completions", json=body)
        answer = server.http.send(first, stream=True)
        until(lambda: desk.running == 1)
        waiting = server.http.send(server.http.build_request("POST", "/api/race", json=ORDER), stream=True)
        assert desk.waiting == 1
        assert next(waiting.iter_text()).startswith(": queue position 1")
        waiting.close()
        until(lambda: desk.waiting == 0)
        answer.close()
        server.settle()


def test_a_fault_in_a_race_is_an_event_and_no_traceback(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = scripted("abcdef", fault=RuntimeError("out of\nluck"))
    decode_with(monkeypatch, lambda engine, prompt, config: broken._events(config))
    found = race(server)
    assert found[-1][0] == "error" and found[-1][1]["error"]["message"] == "the race failed: out of luck"
    server.settle()


def test_a_real_demo_process_serves_the_page_and_ends_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "dflash2_app", "demo", "--web", "--no-browser", "Convert 31 kilograms to grams."]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment() | {"HF_HUB_OFFLINE": "1"}
    )
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while "http://" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        address = re.search(r"http://[\d.:]+", lines[-1]).group()
        assert "prompt=Convert+31+kilograms+to+grams." in lines[-1]
        with httpx2.Client(base_url=address, timeout=120) as client:
            (model,) = client.get("/api/race").json()["models"]
            assert (model["id"], model["dflash_active"], model["loaded"]) == ("mini", True, True)
            assert client.get("/").status_code == 200
            order = {"model": "mini", "prompt": "Convert 31 kilograms to grams.", "max_tokens": 12, "thinking": False}
            events = parse(client.post("/api/race", json=order).text)
            assert events[-1][0] == "verdict" and events[-1][1]["identical"]
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode in (0, 130) and out == "" and "Traceback" not in err
    finally:
        process.kill()
        process.wait()


# One block


def block(server: Running, **fields: Any) -> Any:
    return server.http.post("/api/race/block", json={**ORDER, **fields})


def test_a_block_of_a_race_is_shown_as_it_was_decoded(server: Running, events: Events) -> None:
    first, *rounds = lane_of(events, "dflash2")
    reply = [token for token, _ in first["tokens"]]
    for done in rounds[:3]:
        shown = block(server, reply=reply, width=done["width"]).json()
        assert shown["proposal"] == done["proposal"] and shown["num_accepted"] == done["num_accepted"]
        assert shown["anchor"]["id"] == reply[-1] and shown["bonus"]["id"] == done["tokens"][-1][0]
        assert len(shown["rows"]) == 4
        for number, row in enumerate(shown["rows"]):
            assert row["accepted"] == (number < done["num_accepted"])
            assert row["chosen"]["id"] in [candidate["id"] for candidate in row["candidates"]]
            assert (row["target"] is None) == (number > done["num_accepted"])
            assert sum(candidate["probability"] for candidate in row["candidates"]) == pytest.approx(1, abs=1e-4)
        reply += [token for token, _ in done["tokens"]]
    server.settle()


@pytest.mark.parametrize(("fields", "message"), [
    ({}, "reply: got none, expected 1 to"),
    ({"reply": []}, "reply: got none"),
    ({"reply": [1, "x"]}, "reply[1]: got 'x', expected a token id"),
    ({"reply": [True]}, "reply[0]: got 'True'"),
    ({"reply": [9999]}, "reply: got token id 9999, expected ids in 0..271"),
    ({"reply": [1], "width": 9}, "width: got 9, expected an integer in 2..5"),
    ({"reply": [1], "depth": 9}, "depth: got 9"),
    ({"reply": [1], "model": "plain"}, "model: got 'plain', expected one that drafts: no drafter given"),
])  # fmt: skip
def test_a_block_that_cannot_be_shown_is_refused(server: Running, fields: dict[str, Any], message: str) -> None:
    answer = block(server, **fields)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(message)
    server.settle()

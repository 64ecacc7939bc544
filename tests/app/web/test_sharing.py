"""Several requests at once: each its own text, in order of arrival, stopped when nobody listens (CK-16, CK-18)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dflash2_app.web.http.errors import ApiError
from dflash2_app.web.http.wire import Limits
from dflash2_app.web.serving.queue import Desk

from .conftest import HELLO, Running, raw_request, serving, until
from .models import plain_text, scripted, source_of, tiny_engine


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": HELLO, **fields}


def test_replies_at_once_equal_their_single_runs(server: Running) -> None:
    engine = tiny_engine()
    prompts = [f"{letter}-marker {'x' * 7 * at}" for at, letter in enumerate("ABCD")]
    alone = [plain_text(engine, messages(prompt), max_tokens=16) for prompt in prompts]
    fields = {"temperature": 0, "max_tokens": 16}

    def ask(prompt: str) -> str:
        answer = server.http.post("/v1/chat/completions", json={**body("tiny", **fields), "messages": messages(prompt)})
        return str(answer.json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(4) as clients:
        assert list(clients.map(ask, prompts)) == alone


def test_rounds_alternate(server: Running) -> None:
    """Of two long replies neither waits for the other to end."""
    ends: dict[str, list[float]] = {}

    def ask(name: str) -> None:
        ends[name] = []
        reply = server.openai.chat.completions.create(
            model="plain", messages=messages(name), temperature=0, max_tokens=24, stream=True
        )
        ends[name].extend(time.monotonic() for chunk in reply if chunk.choices[0].delta.content)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    overlap = min(ends["first"][-1], ends["second"][-1]) - max(ends["first"][1], ends["second"][1])
    assert overlap > 0, "one ran after the other"


def test_a_line_has_places_and_an_end() -> None:
    model = scripted("y" * 300, round_s=0.02)
    with serving(source_of(model), running=1, waiting=2) as server:
        first = raw_request(server, body("scripted", max_tokens=300, stream=True))
        until(lambda: server.service.desk.running == 1)
        second = raw_request(server, body("scripted", max_tokens=3, stream=True))
        until(lambda: server.service.desk.waiting == 1)
        third = raw_request(server, body("scripted", max_tokens=3))
        until(lambda: server.service.desk.waiting == 2)
        assert b": queue position 1\n" in second.recv(4096)
        refused = server.http.post("/v1/chat/completions", json=body("scripted"))
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert "queue" in refused.json()["error"]["message"]
        queue = server.http.get("/v1/models/status").json()["queue"]
        assert (queue["running"], queue["waiting"]) == (1, 2)
        assert "dflash2_requests_waiting 2" in server.http.get("/metrics").text
        second.close()  # who leaves the line makes room
        until(lambda: server.service.desk.waiting == 1)
        first.close()
        answer = b""
        while b'"finish_reason"' not in answer:  # head and body may come apart
            piece = third.recv(65536)
            assert piece, answer
            answer += piece
        assert b"x-queue-position: 2" in answer and b'"finish_reason":"length"' in answer
        third.close()
        server.settle()


def test_who_came_first_is_served_first() -> None:
    desk = Desk(most_running=1, most_waiting=3)
    seats = [desk.take() for _ in range(4)]
    assert [seat.position for seat in seats] == [0, 1, 2, 3]
    with pytest.raises(ApiError, match="expected at most 3"):
        desk.take()
    seats[2].leave()
    seats[2].leave()
    seats[0].leave()
    assert [seats[at].position for at in (1, 3)] == [0, 1] and seats[1].called.is_set()
    assert not seats[3].called.is_set() and (desk.running, desk.waiting) == (1, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_work_within_two_rounds(stream: bool) -> None:
    model = scripted("y" * 3000, per_round=1, round_s=0.03)
    with serving(source_of(model)) as server:
        connection = raw_request(server, body("scripted", max_tokens=3000, stream=stream))
        until(lambda: len(model.rounds) > 3)
        connection.close()
        left_at = len(model.rounds)
        server.settle()
        assert len(model.rounds) <= left_at + 3, "two rounds, and the one that began while the client left"
        time.sleep(0.1)
        assert len(model.rounds) <= left_at + 3
        assert 'dflash2_replies_total{finish_reason="cancelled",model="scripted"} 1' in server.http.get("/metrics").text


def test_a_client_that_does_not_read_holds_nothing_for_ever() -> None:
    model = scripted("y" * 60000, per_round=40)  # long lists of log-probabilities: more than any buffer takes
    with serving(source_of(model), limits=Limits(write_s=0.3)) as server:
        fields = body("scripted", max_tokens=60000, stream=True, logprobs=True, top_logprobs=2)
        connection = raw_request(server, fields, buffer=4096)
        until(lambda: server.service.desk.running == 1)
        server.settle()
        assert len(model.rounds) < 1500
        connection.close()


def test_a_reply_that_fails_is_told_and_the_next_one_works() -> None:
    broken = scripted("yyyyyyyy", "broken", fault=RuntimeError("the GPU\nwent away"))
    with serving(source_of(broken), source_of(scripted("fine"))) as server:
        for stream in (False, True):
            answer = server.http.post("/v1/chat/completions", json=body("broken", stream=stream))
            assert answer.status_code == (200 if stream else 500)
            assert "the reply failed: the GPU went away" in answer.text and "[DONE]" not in answer.text
        assert server.http.post("/v1/chat/completions", json=body("scripted")).json()["choices"]
        server.settle()
        assert "dflash2_reply_failures_total 2" in server.http.get("/metrics").text


def test_a_server_that_ends_says_so_to_those_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    model = scripted("y" * 3000, per_round=1, round_s=0.02)
    with serving(source_of(model), running=2) as server:
        waiting = [raw_request(server, body("scripted", max_tokens=3000, stream=stream)) for stream in (True, False)]
        waiting.append(raw_request(server, body("scripted", max_tokens=3000)))
        until(lambda: len(model.rounds) > 4 and server.service.desk.waiting == 1)
    streamed, *whole = (b"".join(iter(lambda c=connection: c.recv(65536), b"")) for connection in waiting)
    assert streamed.startswith(b"HTTP/1.1 200") and b"the server is shutting down" in streamed
    assert all(answer.startswith(b"HTTP/1.1 503") and b"shutting down" in answer for answer in whole)
    for connection in waiting:
        connection.close()
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
    assert len(model.rounds) < 3000


def test_health_shows_a_reply_that_stands_still() -> None:
    stuck = scripted("yy", "stuck", round_s=2.0, per_round=1)
    with serving(source_of(stuck), source_of(scripted("fine")), stuck_s=0.2) as server:
        connection = raw_request(server, body("stuck"))
        until(lambda: server.http.get("/health").status_code == 503)
        assert server.http.get("/health").json()["status"] == "stuck"
        refused = server.http.post("/v1/chat/completions", json=body("scripted"))
        assert refused.status_code == 503 and "stood still" in refused.json()["error"]["message"]
        connection.close()
        server.settle()
        assert server.http.get("/health").json()["status"] == "ok"

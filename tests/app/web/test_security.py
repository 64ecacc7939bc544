"""Who is let in, and what a hostile or broken client can do: be refused, while others are served."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from dflash2_app.web import server as server_module
from dflash2_app.web.guard import is_loopback
from dflash2_app.web.service import Limits

from .conftest import HELLO, Running, serving
from .models import scripted, source_of

CHAT = "/v1/chat/completions"
BODY = {"model": "scripted", "messages": HELLO}


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def alive(server: Running) -> bool:
    return bool(server.http.post(CHAT, json=BODY).json()["choices"])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "192.168.1.7"])
def test_a_foreign_host_name_is_refused(server: Running, host: str) -> None:
    answer = server.http.post(CHAT, json=BODY, headers={"host": host})
    assert answer.status_code == 403 and "Host" in answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
])  # fmt: skip
def test_foreign_pages_are_refused(server: Running, headers: dict[str, str]) -> None:
    assert server.http.post(CHAT, json=BODY, headers=headers).status_code == 403
    assert server.http.get("/v1/models", headers=headers).status_code == 403


def test_own_pages_and_programs_are_let_in(server: Running) -> None:
    for headers in ({}, {"origin": server.url}, {"sec-fetch-site": "same-origin"}, {"host": "localhost:5"}):
        answer = server.http.get("/v1/models", headers=headers)
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers


def test_a_key_is_asked_for() -> None:
    with serving(source_of(scripted("fine")), api_key="s3cret") as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "s3cretx"}, {"authorization": "s3cre"}):
            answer = server.http.post(CHAT, json=BODY, headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
            assert "s3cret" not in answer.text.replace("s3cretx", "")
        for headers in ({"authorization": "Bearer s3cret"}, {"x-api-key": "s3cret", "host": "my.machine:80"}):
            assert server.http.post(CHAT, json=BODY, headers=headers).status_code == 200
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/metrics").status_code == 401


def test_loopback_is_told_from_other_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "localhost.evil", "", "127.0.0.1.evil")))


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b'{"a":' * 50_000,
    b'{"model": "scripted", "messages": [{"role": "user", "content": "\\ud800"}]}', b"1" * 6000,
    b'{"model": 3, "messages": []}', b'{"model": "scripted"}', b'{"model": "scripted", "messages": "hello"}',
])  # fmt: skip
def test_malformed_bodies_are_refused(server: Running, body: bytes) -> None:
    answer = server.http.post(CHAT, content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].count("\n") == 0


@pytest.mark.parametrize("path", [
    "/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/v1/models/no<script>such",
    "/etc/passwd", "/v1/nothing", "//", "/v1/models/%00", "/v1/models/nobody/load",
])  # fmt: skip
def test_odd_paths_find_nothing(server: Running, path: str) -> None:
    answer = server.http.request("POST" if path.endswith("load") else "GET", path)
    assert answer.status_code == 404 and answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_other_methods_are_refused(server: Running) -> None:
    assert server.http.get(CHAT).status_code == 405
    assert server.http.delete("/v1/models").status_code == 405


def test_large_slow_and_lying_bodies_are_refused() -> None:
    with serving(source_of(scripted("fine")), limits=Limits(body_bytes=1000, body_s=0.3)) as server:
        assert server.http.post(CHAT, json={**BODY, "user": "x" * 2000}).status_code == 413
        assert server.http.post(CHAT, content=iter([b"x" * 600] * 3)).status_code == 413, "sent without a length"
        with connect(server) as slow:
            slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{")
            assert b" 408 " in slow.recv(4096)
        with connect(server) as short:
            short.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{")
        with connect(server) as noise:
            noise.sendall(b"\x16\x03\x01 not http\r\n\r\n")
            assert noise.recv(4096).startswith(b"HTTP/1.1 400")
        assert alive(server)


def test_heads_that_never_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEADER_S", 0.4)
    with serving(source_of(scripted("fine"))) as server:
        slow = [connect(server) for _ in range(20)]
        for connection in slow:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n")
        assert alive(server)
        time.sleep(0.2)
        for connection in slow:
            connection.sendall(b"X: y\r\n")  # a line now and then buys no time
        for connection in slow:
            assert connection.recv(4096) == b""
            connection.close()
        assert alive(server)


def test_a_long_reply_is_not_cut_off_with_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEADER_S", 0.2)
    with serving(source_of(scripted("y" * 12, round_s=0.2))) as server:
        assert server.http.post(CHAT, json=BODY).json()["choices"][0]["message"]["content"] == "y" * 12


ODD: list[Any] = [None, True, 0, -1, 1e308, "", "x", [], [[]], {}, {"a": {}}, [1], [{"type": "text"}], "\u0000"]
FIELDS = ["messages", "max_tokens", "temperature", "logit_bias", "stop", "tools", "tool_choice", "response_format",
          "stream_options", "chat_template_kwargs", "reasoning_effort", "logprobs", "top_logprobs", "seed", "n",
          "dflash2", "thinking_budget", "stream"]  # fmt: skip


def test_odd_values_never_break_the_server(server: Running) -> None:
    for field in FIELDS:
        for value in ODD:
            answer = server.http.post(CHAT, json={**BODY, "max_tokens": 2, field: value})
            assert answer.status_code in (200, 400), (field, value, answer.text)
    for part in ({"role": "user", "content": value} for value in ODD):
        assert server.http.post(CHAT, json={**BODY, "messages": [part]}).status_code in (200, 400)

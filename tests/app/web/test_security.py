"""Who is let in, and what a hostile or broken client can do: be refused, while others are served."""

from __future__ import annotations

import logging
import re
import socket
import time
from typing import Any

import pytest

from dflash2_app.web import server as server_module
from dflash2_app.web.guard import is_loopback
from dflash2_app.web.http import wire as http_module
from dflash2_app.web.http.log import PlainFormatter
from dflash2_app.web.http.wire import Limits

from .conftest import HELLO, PATIENCE_S, Running, serving
from .models import scripted, source_of

CHAT = "/v1/chat/completions"
BODY = {"model": "scripted", "messages": HELLO}


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


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


def test_a_refusal_waits_for_the_body_but_not_for_long(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket closed while its client still sends is reset, and the client never sees the answer."""
    head = b"POST /v1/models HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 9\r\n"
    with connect(server) as late:
        late.sendall(head + b"\r\n12345")
        late.settimeout(0.2)
        with pytest.raises(TimeoutError):
            late.recv(4096)
        late.sendall(b"6789")
        late.settimeout(PATIENCE_S)
        assert late.recv(4096).startswith(b"HTTP/1.1 403")
    monkeypatch.setattr(http_module, "DISCARD_S", 0.1)
    for waits in (head + b"\r\n12345", head + b"Expect: 100-continue\r\n\r\n"):
        with connect(server) as connection:
            connection.sendall(waits)
            assert connection.recv(4096).startswith(b"HTTP/1.1 403")


def test_a_key_is_asked_for() -> None:
    with serving(source_of(scripted("fine")), api_key="s3cret") as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "s3cretx"}, {"authorization": "s3cre"}):
            answer = server.http.post(CHAT, json=BODY, headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
            assert "s3cret" not in answer.text.replace("s3cretx", "")
        for headers in ({"authorization": "Bearer s3cret"}, {"x-api-key": "s3cret", "host": "my.machine:80"},
                        {"authorization": "bearer  s3cret"},
                        {"authorization": "Bearer s3cret", "x-api-key": "other"}):  # fmt: skip
            assert server.http.post(CHAT, json=BODY, headers=headers).status_code == 200
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/metrics").status_code == 401


def test_loopback_is_told_from_other_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "localhost.evil", "", "127.0.0.1.evil")))


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b'{"a":' * 50_000,
    b'{"model": "scripted", "messages": [{"role": "user", "content": "\\ud800"}]}', b"1" * 6000,
    b'{"model": "scripted", "model": "other", "messages": []}', b'{"model": "scripted", "seed": 1e999}',
    b'{"model": "scripted", "seed": -Infinity}', b'{"model": "scripted", "seed": ' + b"9" * 5000 + b"}",
    b'{"model": "scripted", "messages": [{"role": "user", "content": "a\x00"}', b'\xef\xbb\xbf{"model": "scripted"}',
    b'{"model": "scripted", "messages": [{"role": "user", "content": "\xc3\x28"}]}', b"{}garbage", b'{"a": 01}',
    b'{"model": 3, "messages": []}', b'{"model": "scripted"}', b'{"model": "scripted", "messages": "hello"}',
])  # fmt: skip
def test_malformed_bodies_are_refused(server: Running, body: bytes) -> None:
    answer = server.http.post(CHAT, content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].count("\n") == 0


@pytest.mark.parametrize("path", [
    "/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/v1/models/no<script>such",
    "/etc/passwd", "/v1/nothing", "/%2f", "/v1/models/%00", "/v1/models/nobody/load",
])  # fmt: skip
def test_odd_paths_find_nothing(server: Running, path: str) -> None:
    answer = server.http.request("POST" if path.endswith("load") else "GET", path)
    assert answer.status_code == 404 and answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_packed_bodies_are_refused_by_name(server: Running) -> None:
    answer = server.http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415 and answer.json()["error"]["message"].startswith("Content-Encoding: got 'gzip'")
    same = server.http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "identity"})
    assert "not JSON" in same.text


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


def test_a_key_may_have_any_alphabet_and_is_never_half_right() -> None:
    with serving(source_of(scripted("fine")), api_key="schlüssel-鍵") as server:
        right = "Bearer schlüssel-鍵".encode()
        assert server.http.get("/metrics", headers={b"authorization": right}).status_code == 200
        for wrong in (right[:-1], right + b"x", b"Basic schl\xc3\xbcssel-\xe9\x8d\xb5", b"Bearer", b"\xff\xfe"):
            assert server.http.get("/metrics", headers={b"authorization": wrong}).status_code == 401, wrong


@pytest.mark.parametrize("field", ["metadata", "chat_template_kwargs", "tools", "response_format", "no_such_field"])
def test_deep_nesting_is_refused_before_anything_walks_through_it(server: Running, field: str) -> None:
    for depth, refused in ((40, False), (200, True), (20_000, True)):
        pieces = b'{"properties":{"a":' * depth + b"{}" + b"}}" * depth
        tail = {"tools": b'[{"type":"function","function":{"name":"a","parameters":%b}}]',
                "response_format": b'{"type":"json_schema","json_schema":{"name":"a","schema":%b}}'}  # fmt: skip
        value = tail.get(field, b"%b") % pieces
        body = b'{"model":"scripted","max_tokens":2,"messages":[{"role":"user","content":"x"}],"%b":%b}'
        answer = server.http.post(CHAT, content=body % (field.encode(), value))
        assert answer.status_code in ((400,) if refused or field == "no_such_field" else (200, 400)), answer.text
        assert not refused or "inside each other" in answer.json()["error"]["message"], answer.text


def test_the_text_of_arguments_is_as_strict_as_the_body(server: Running) -> None:
    for arguments in ('{"a": NaN}', '{"a": 1, "a": 2}', "[" * 5000, '{"a": "\\ud800"}', "[1]"):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}, *HELLO]
        answer = server.http.post(CHAT, json={**BODY, "messages": messages})
        assert answer.status_code == 400, arguments
        assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


def test_header_bombs_are_refused() -> None:
    with serving(source_of(scripted("fine"))) as server:
        for bomb in (b"X: " + b"y" * 200_000, b"".join(b"X%d: y\r\n" % at for at in range(9000)), b"y" * 200_000):
            with connect(server) as connection:
                try:
                    connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + bomb)
                    assert connection.recv(4096)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")
                except ConnectionError:
                    pass  # cut off while it was still sending
        assert alive(server)


@pytest.mark.parametrize("head", [
    b"Content-Length: 4\r\nContent-Length: 5", b"Content-Length: 4\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 4", b"Transfer-Encoding: xchunked", b"Content-Length: +4",
    b"Transfer-Encoding: identity, chunked", b"Content-Length: 4\r\n Folded: x\r\nBad Name: 1", b"Content-Length : 4",
    b"Host: evil.example", b"Content-Length: 0x4", b"Content-Length: \xb2", b"Transfer-Encoding:\x0bchunked",
])  # fmt: skip
def test_no_request_is_smuggled_inside_another(server: Running, head: bytes) -> None:
    """Two readings of where a request ends are none: it is refused, and what follows it is not answered."""
    inner = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n" + inner)
        answered = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answered[9:12] in (b"400", b"501"), answered[:200]
    assert b'"object":"list"' not in answered
    assert alive(server)


def test_the_log_holds_no_keys_and_nothing_a_terminal_obeys(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, logger="dflash2.serve")
    monkeypatch.setattr(logging.getLogger("dflash2.serve"), "propagate", True)  # `serve` in this process ends that
    model = scripted("fine", fault=RuntimeError("gone \x1b[31m\nINFO forged"))
    with serving(source_of(model), api_key="s3cret") as server:
        for key in ("s3cret", "wr0ng"):
            headers = {"authorization": f"Bearer {key}"}
            server.http.get("/v1/models/%1b%5b31mred%0aINFO%20forged?api_key=s3cret", headers=headers)
            server.http.post(CHAT, json={**BODY, "model": "\x1b[31m\nINFO forged"}, headers=headers)
            server.http.post(CHAT, json=BODY, headers={**headers, "origin": "http://evil.example"})
            server.http.post(CHAT, json=BODY, headers=headers)
    formatter = PlainFormatter("%(levelname)s %(message)s")
    own = [record for record in caplog.records if record.name == "dflash2.serve"]
    for record in own:
        text = formatter.format(record)
        assert "s3cret" not in text and "wr0ng" not in text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
        assert record.exc_info or "\n" not in text
    assert len(own) >= 8

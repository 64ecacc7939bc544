"""Servers, from stand-ins that answer well, badly and not at all."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.bench.endpoint import Server, base_url, reported_acceptance
from dflash2_app.bench.serving import Counters, read_counters
from dflash2_app.errors import AppError, UsageError

from ..conftest import Run
from .stand_ins import ModelServer, model_server, piece, serving, usage


def reply(handler: ModelServer) -> None:
    handler.stream(piece("Hel"), piece("lo"), piece("", finish="stop"), usage(11))


def test_a_reply_is_read_and_its_tokens_are_the_servers() -> None:
    handler = model_server(reply)
    with serving(handler) as url:
        answer = Server(url, None).ask("Say hello.", {"max_tokens": 5, "temperature": 0.0})
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("Hello", 7, 11)
    assert answer.finish_reason == "stop" and answer.first_token_s > 0 and answer.decode_s >= 0
    assert answer.acceptance_length is None
    ((path, body),) = handler.asked
    assert path == "/v1/chat/completions" and body["model"] == "tiny"
    assert body["messages"] == [{"role": "user", "content": "Say hello."}]
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True} and body["max_tokens"] == 5


def test_bare_text_goes_to_completions() -> None:
    handler = model_server(lambda h: h.stream({"choices": [{"text": "b", "finish_reason": "length"}]}, usage(3)))
    with serving(handler) as url:
        answer = Server(f"{url}/v1/", "other").ask("a", {}, chat=False)
    assert answer.text == "b"
    assert handler.asked == [("/v1/completions", {"model": "other", "prompt": "a", "stream": True,
                                                  "stream_options": {"include_usage": True}})]  # fmt: skip


def test_thinking_counts_as_text() -> None:
    script: Callable[[ModelServer], None] = lambda h: h.stream(  # noqa: E731
        piece("hm", "reasoning_content"), piece("hm", "reasoning"), piece("yes"), usage(4)
    )
    with serving(model_server(script)) as url:
        assert Server(url, "tiny").ask("q", {}).text == "hmhmyes"


def test_acceptance_as_servers_report_it() -> None:
    # llama.cpp: 20 tokens, 12 of them drafts, so 8 passes. SGLang: 20 tokens in 5 passes.
    assert reported_acceptance({"timings": {"draft_n": 30, "draft_n_accepted": 12, "predicted_n": 20}}, 20) == (
        2.5, "timings (llama.cpp)",
    )  # fmt: skip
    assert reported_acceptance({"meta_info": {"spec_verify_ct": 5}}, 20) == (4.0, "meta_info (SGLang)")
    for nothing in ({}, {"timings": {"predicted_n": 20}}, {"meta_info": {}}, {"timings": {"draft_n": 0}}):
        assert reported_acceptance(nothing, 20) == (None, None)


PAGE = """# HELP vllm:spec_decode_num_drafts_total Number of drafts
vllm:spec_decode_num_drafts_total{engine="0"} %d
vllm:spec_decode_num_drafts_total{engine="1"} 2.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 999
vllm:spec_decode_num_accepted_tokens_total{engine="0"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} %d
vllm:num_requests_running 1
"""


def test_vllms_counters_by_hand() -> None:
    before, after = read_counters(PAGE % (10, 12, 8, 4)), read_counters(PAGE % (20, 24, 16, 8))
    assert before == Counters(12.0, 12.0, (8.0, 4.0))
    done = after.since(before)
    assert done == Counters(10.0, 12.0, (8.0, 4.0))
    assert done.acceptance_length == 2.2  # 1 + 12 / 10
    assert done.acceptance_by_position == [0.8, 0.5]
    assert read_counters("") == Counters() and Counters().acceptance_length is None
    assert Counters(2.0, 0.0, (0.0, 0.0)).acceptance_by_position == [0.0, None]
    assert read_counters(PAGE % (1, 1, 1, 1)).since(Counters()).by_position == (1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("https://host/api/v3/", "https://host/api/v3"),
        ("http://host/v1/chat/completions", "http://host/v1"),
    ],
)
def test_addresses(given: str, expected: str) -> None:
    assert base_url(given) == expected


@pytest.mark.parametrize("given", ["localhost:8000", "ftp://host", "http://", "file:///etc/passwd"])
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(UsageError, match="--endpoint: got"):
        base_url(given)


def broken(handler: ModelServer) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'data: {"choices": []}\n\n')
    handler.close_connection = True


FAULTS: dict[str, tuple[Callable[[ModelServer], None], str]] = {
    "no usage": (lambda h: h.stream(piece("x")), "got a stream without usage, expected token counts"),
    "no text": (lambda h: h.stream(usage(3)), "got a stream without text (3 tokens)"),
    "refused": (
        lambda h: h.send(400, b'{"error": {"message": "model\\nnot found", "code": 7}}'),
        "/chat/completions: got HTTP 400 (model not found), expected 200",
    ),
    "key": (lambda h: h.send(401, b"who are you", "text/plain"), "got HTTP 401 (who are you)"),
    "no stream": (lambda h: h.send(200, b"{}"), "got application/json, expected a stream of events"),
    "no JSON": (lambda h: h.stream("{oops"), "in the stream, expected JSON"),
    "error event": (lambda h: h.stream({"error": {"message": "out of memory"}}), "error in the stream (out of memory)"),
    "cut": (broken, "expected"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_answers_are_one_line(name: str) -> None:
    script, words = FAULTS[name]
    with serving(model_server(script)) as url, pytest.raises(AppError) as caught:
        Server(url, "tiny").ask("q", {})
    message = str(caught.value)
    assert words in message and message.startswith(f"--endpoint {url}/v1: ") and "\n" not in message
    assert (caught.value.hint is not None) == (name == "key")


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(AppError, match=r"got no answer \(connection refused\), expected a running server"):
        Server(f"http://127.0.0.1:{port}", "tiny").ask("q", {})


def test_the_model_must_be_named_unless_there_is_only_one() -> None:
    with (
        serving(model_server(reply, models=("a", "b"))) as url,
        pytest.raises(AppError, match=r"got 2 models \(a, b\)"),
    ):
        Server(url, None)
    with serving(model_server(reply)) as url:
        assert Server(url, None).model == "tiny"


# The command.

ASK = ["bench", "--samples", "2", "--max-tokens", "20", "--repeat", "2"]


def test_a_server_is_measured(run: Run, tmp_path: Path) -> None:
    handler = model_server(
        lambda h: h.stream(piece("a"), piece("b"), usage(20, timings={"draft_n": 9, "draft_n_accepted": 12}))
    )
    with serving(handler) as url:
        ran = run(*ASK, "--endpoint", url, "--temperatures", "0,0.5", "--top-k", "5", "--seed", "3", "--json",
                  "--csv", tmp_path / "o.csv", "--plot", tmp_path / "o.png")  # fmt: skip
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert (record["kind"], record["complete"], record["model"], record["endpoint"]) == (
        "server", True, "tiny", f"{url}/v1",
    )  # fmt: skip
    assert record["requests"] == record["requests_planned"] == 8 and record["recommendation"] is None
    assert record["acceptance_sources"] == ["timings (llama.cpp)"]
    greedy, sampled = record["settings"]
    assert [setting["temperature"] for setting in (greedy, sampled)] == [0.0, 0.5]
    (arm,) = greedy["arms"]
    assert arm["mode"] == "server" and arm["width"] is None and arm["acceptance_length"] == 2.5
    assert arm["tokens_per_second"] > 0 and arm["speedup"] is None and arm["peak_memory_bytes"] is None
    bodies = [body for _, body in handler.asked]
    assert len(bodies) == 2 * (1 + 4)  # each setting warms up once
    assert [body["seed"] for body in bodies[1:5]] == [3, 4, 3, 4]
    assert all(body["top_k"] == 5 and "top_p" not in body and "presence_penalty" not in body for body in bodies)
    assert (tmp_path / "o.csv").read_text().count("\n") == 3
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")


def test_vllms_counters_reach_the_table(run: Run) -> None:
    pages = iter([PAGE % (0, 0, 0, 0), PAGE % (10, 12, 8, 4)])
    with serving(model_server(reply, {"/metrics": lambda: next(pages)})) as url:
        ran = run(*ASK, "--endpoint", url, "--repeat", "1")
    assert ran.code == 0, ran.err
    assert "acceptance as the server tells it, in /metrics (vLLM), all requests together" in ran.out
    assert "server  0.80  0.50" in ran.out and "2.20" in ran.out


def test_without_a_word_on_acceptance_none_is_shown(run: Run) -> None:
    with serving(model_server(reply)) as url:
        ran = run(*ASK, "--endpoint", url)
    assert ran.code == 0 and "the server tells nothing of its acceptance" in ran.out
    assert "speed-up" in ran.out and "advice" not in ran.out and "accepted, of" not in ran.out


def test_the_presets_of_the_announcement(run: Run) -> None:
    handler = model_server(reply)
    with serving(handler) as url:
        assert run("bench", "--samples", "1", "--repeat", "1", "--endpoint", url, "--preset", "announcement").code == 0
        body: dict[str, Any] = handler.asked[-1][1]
        assert {name: body[name] for name in ("temperature", "top_p", "top_k", "presence_penalty", "max_tokens")} == {
            "temperature": 1.0, "top_p": 0.95, "top_k": 20, "presence_penalty": 1.5, "max_tokens": 2048,
        }  # fmt: skip
        assert body["chat_template_kwargs"] == {"enable_thinking": True}
        ran = run("bench", "--samples", "1", "--repeat", "1", "--endpoint", url, "--preset", "default")
        body = handler.asked[-1][1]
    assert "temperature" not in body and "top_p" not in body and body["max_tokens"] == 2048
    assert "the server's own sampling" in ran.out


def test_a_server_that_goes_away_costs_only_what_is_missing(run: Run) -> None:
    answered: list[int] = []

    def twice(handler: ModelServer) -> None:
        answered.append(1)
        reply(handler) if len(answered) <= 3 else handler.send(503, b'{"detail": "overloaded"}')

    with serving(model_server(twice)) as url:
        ran = run(*ASK, "--endpoint", url, "--json")
    assert ran.code == 1 and "got HTTP 503 (overloaded)" in ran.error
    record = json.loads(ran.out)
    assert (record["complete"], record["requests"], record["requests_planned"]) == (False, 2, 4)
    assert record["settings"][0]["arms"][0]["requests"] == 2


def test_the_key_comes_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str | None] = []

    def note(handler: ModelServer) -> None:
        keys.append(handler.headers["authorization"])
        reply(handler)

    monkeypatch.setenv("SOME_KEY", "sesame")
    with serving(model_server(note)) as url:
        assert run(*ASK, "--endpoint", url, "--api-key", "SOME_KEY").code == 0
        refused = run(*ASK, "--endpoint", url, "--api-key", "sk-typed-by-mistake")
    assert set(keys) == {"Bearer sesame"}
    assert refused.code == 2 and "--api-key" in refused.error and "sk-typed" not in refused.err


@pytest.mark.parametrize(
    "flags",
    [
        ["--model", "x"], ["--drafter", "none"], ["--draft-bits", "4", "--drafter", "x"], ["--widths", "1"],
        ["--target-dtype", "float32"], ["--no-phases"], ["--lossless-mode", "coupled"], ["--apply"],
    ],
)  # fmt: skip
def test_options_of_a_pair_are_refused_beside_a_server(run: Run, flags: list[str]) -> None:
    ran = run("bench", "--endpoint", "http://127.0.0.1:9", *flags)
    assert ran.code == 2 and "got it beside --endpoint" in ran.error
    assert any(flag in ran.error for flag in flags if flag.startswith("--"))


def test_options_of_a_server_need_one(run: Run) -> None:
    for flags in (["--endpoint-model", "x"], ["--api-key", "X"]):
        ran = run("bench", *flags)
        assert ran.code == 2 and ran.error == f"{flags[0]}: got {flags[1]!r}, expected --endpoint as well"

"""Many clients at once in all four interfaces, some of whom leave in the middle (CK-16, CK-18).

Every reply that is finished equals its single run, so nothing of one request can be in another's text. Afterwards
nothing is left: no seat, no thread, no connection, no memory; and the server answers.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import dflash2_mlx as d2

from .conftest import HELLO, PATIENCE_S, Running, raw_request, serving, until
from .models import plain_text, source_of, tiny_engine, tiny_served

TOKENS = 12
SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0.9, "seed": 7, "top_p": 0.9})
LEAVE_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: the connection ends with a reset
SECONDS = float(os.environ.get("DFLASH2_LOAD_SECONDS", "60"))


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@dataclass(frozen=True)
class Way:
    """One way to ask: its path and request, and where its text is."""

    path: str
    request: Callable[[str], dict[str, Any]]
    whole: Callable[[dict[str, Any]], str]
    piece: Callable[[dict[str, Any]], str]


WAYS = (
    Way("/v1/chat/completions", lambda prompt: {"messages": said(prompt), "max_tokens": TOKENS},
        lambda body: body["choices"][0]["message"]["content"],
        lambda event: event["choices"][0]["delta"].get("content", "")),
    Way("/v1/completions", lambda prompt: {"prompt": prompt, "max_tokens": TOKENS},
        lambda body: body["choices"][0]["text"], lambda event: event["choices"][0]["text"]),
    Way("/v1/responses", lambda prompt: {"input": prompt, "max_output_tokens": TOKENS},
        lambda body: body["output"][0]["content"][0]["text"],
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else ""),
    Way("/v1/messages", lambda prompt: {"messages": said(prompt), "max_tokens": TOKENS},
        lambda body: body["content"][0]["text"],
        lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else ""),
)  # fmt: skip


@dataclass
class Load:
    """What the clients share: what to ask, what to expect, and what came of it."""

    server: Running
    end: float
    alone: dict[tuple[bool, str, int], str]  # (bare text?, prompt, sampling) -> the single run's text
    faults: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)


def single_runs(prompts: list[str]) -> dict[tuple[bool, str, int], str]:
    engine, runs = tiny_engine(), {}
    for prompt in prompts:
        for at, fields in enumerate(SAMPLINGS):
            sampling = d2.SamplingConfig(**fields)
            runs[False, prompt, at] = plain_text(engine, said(prompt), max_tokens=TOKENS, sampling=sampling)
            config = d2.GenerationConfig(max_tokens=TOKENS, sampling=sampling, chat_template=False)
            runs[True, prompt, at] = d2.generate(engine, prompt, config).text
    return runs


def client(load: Load, number: int) -> None:
    """Ask again and again; leave some replies in the middle, and check the others."""
    chance = random.Random(number)
    prompts = sorted({prompt for _, prompt, _ in load.alone})
    while time.monotonic() < load.end:
        way, prompt, at = chance.choice(WAYS), chance.choice(prompts), chance.randrange(len(SAMPLINGS))
        stream = chance.random() < 0.5
        body = {"model": "tiny", **way.request(prompt), **SAMPLINGS[at], "stream": stream}
        if chance.random() < 0.4:
            leave(load, way, body, chance)
            continue
        text = ask(load.server, way, body)
        expected = load.alone[way.path == "/v1/completions", prompt, at]
        load.counted["finished"] += 1
        if text != expected:
            load.faults.append(f"{way.path} {prompt!r} {SAMPLINGS[at]}: {text!r}, alone {expected!r}")


def ask(server: Running, way: Way, body: dict[str, Any]) -> str:
    answer = server.http.post(way.path, json=body)
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.text}"
    if not body["stream"]:
        return way.whole(answer.json())
    return "".join(way.piece(json.loads(line[6:])) for line in answer.text.splitlines() if line.startswith("data: {"))


def leave(load: Load, way: Way, body: dict[str, Any], chance: random.Random) -> None:
    """Go at some point: before anything came, after a few bytes, politely or not."""
    with raw_request(load.server, body, path=way.path) as connection:
        if chance.random() < 0.5:
            connection.recv(chance.randrange(1, 2000))
        else:
            time.sleep(chance.random() * 0.3)
        if chance.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LEAVE_AT_ONCE)
    load.counted["left"] += 1


def run(clients: int, seconds: float) -> Counter[str]:
    prompts = [f"{chr(65 + at)}-marker {'z' * 5 * at}" for at in range(4)]
    alone = single_runs(prompts)
    with serving(source_of(tiny_served()), running=4, waiting=2 * clients) as server:
        load = Load(server, time.monotonic() + seconds, alone)
        assert server.http.get("/health").status_code == 200  # makes the client, which the threads share
        threads = [threading.Thread(target=client, args=(load, at)) for at in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 2 * PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), "a client never had its answer"
        server.settle(PATIENCE_S)
        assert load.faults == []
        assert server.service.pool.status()[0]["active_requests"] == 0
        last = server.http.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "max_tokens": 2})
        assert last.status_code == 200
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "dflash2-reply"])
    return load.counted


def test_a_little_load_with_clients_that_leave() -> None:
    counted = run(4, 5)
    assert counted["finished"] and counted["left"], counted


@pytest.mark.slow
def test_load_with_clients_that_leave() -> None:
    from tests.engines import settled_bytes

    run(2, 2)
    before = settled_bytes()
    counted = run(16, SECONDS)
    print(f"\n{counted['finished']} replies finished, {counted['left']} left, in {SECONDS:g} s")
    assert counted["finished"] >= 16 and counted["left"] >= 16, counted
    assert settled_bytes(before) <= before + 2**20, f"{settled_bytes() - before} bytes more than before"

"""Saved chats over HTTP: the terminal's own files, refused when they changed elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.chat.record import Chat, Message
from dflash2_app.chat.store import ChatStore

from .conftest import HELLO, Running, serving
from .models import scripted, source_of

CHATS = "/api/chats"
TURN = [{"role": "user", "content": "Why is the sky blue?"}, {"role": "assistant", "content": "Light scatters."}]


@pytest.fixture
def store(home: Path) -> ChatStore:
    """The folder that server and terminal share."""
    return ChatStore(home / "settings")


def create(server: Running, /, **changes: Any) -> dict[str, Any]:
    answer = server.http.post(CHATS, json={"chat": {"version": 1, "messages": TURN, **changes}})
    assert answer.status_code == 201, answer.text
    return answer.json()


def error(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    assert "\n" not in found["message"] and "Traceback" not in found["message"]
    return found


def test_a_chat_of_the_page_is_one_of_the_terminal(server: Running, store: ChatStore) -> None:
    numbers = {"ttft_s": 0.25, "acceptance_length": 3.5, "acceptance_by_position": [0.9, None]}
    reply = {**TURN[1], "reasoning_content": "hm", "finish_reason": "length", "numbers": numbers}
    made = create(server, messages=[TURN[0], reply], title="Sky", settings={"temperature": 0.5},
                  server={"stop": ["END"], "thinking_budget": 9}, template={"enable_thinking": False})  # fmt: skip
    (name,) = store.names()
    assert made["id"] == name and made["summary"]["heading"] == "Sky" and made["summary"]["turns"] == 1
    chat = store.load(name)
    assert chat.messages[1] == Message("assistant", "Light scatters.", "hm", False, "length", "", numbers)
    assert (chat.title, chat.settings, chat.template) == ("Sky", {"temperature": 0.5}, {"enable_thinking": False})
    assert chat.server == {"stop": ["END"], "thinking_budget": 9}


def test_a_chat_of_the_terminal_goes_on_in_the_page(server: Running, store: ChatStore) -> None:
    store.save("mine", Chat([Message(**TURN[0]), Message("assistant", "L", partial=True)], system="Be brief."))
    (listed,) = server.http.get(CHATS).json()["chats"]
    assert listed["id"] == "mine" and listed["heading"] == TURN[0]["content"] and listed["problem"] is None
    found = server.http.get(f"{CHATS}/mine").json()
    assert found["chat"]["system"] == "Be brief." and found["chat"]["messages"][1]["partial"] is True
    found["chat"]["messages"] += TURN
    saved = server.http.put(f"{CHATS}/mine", json={"revision": found["revision"], "chat": found["chat"]}).json()
    assert saved["revision"] != found["revision"] and store.load("mine").turns == 2


def test_an_older_version_replaces_nothing(server: Running, store: ChatStore) -> None:
    made = create(server)
    theirs = store.load(made["id"])
    theirs.messages += [Message("user", "from the terminal"), Message("assistant", "yes")]
    store.save(made["id"], theirs)
    again = {"revision": made["revision"], "chat": {"version": 1, "messages": TURN}}
    found = error(server.http.put(f"{CHATS}/{made['id']}", json=again), 409)
    assert found["code"] == "chat_changed" and "it was changed elsewhere" in found["message"]
    assert store.load(made["id"]).turns == 2
    store.delete(made["id"])
    assert "it was deleted" in error(server.http.put(f"{CHATS}/{made['id']}", json=again), 409)["message"]
    assert store.names() == []


def test_rename_delete_and_what_is_not_there(server: Running, store: ChatStore) -> None:
    made = create(server)
    url = f"{CHATS}/{made['id']}"
    renamed = server.http.patch(url, json={"title": " <b>Blue</b> "}).json()
    assert renamed["summary"]["heading"] == store.load(made["id"]).title == "<b>Blue</b>"
    stale = error(server.http.patch(url, json={"title": "x", "revision": made["revision"]}), 409)
    assert stale["code"] == "chat_changed" and store.load(made["id"]).title == "<b>Blue</b>"
    for title in (3, "two\nlines", "x" * 201, None):
        assert error(server.http.patch(url, json={"title": title}), 400)["param"] == "title"
    assert server.http.delete(url).json() == {"id": made["id"], "deleted": True}
    assert store.names() == [] and server.http.get(CHATS).json() == {"chats": []}
    for answer in (server.http.get(url), server.http.delete(url), server.http.patch(url, json={"title": "x"}),
                   server.http.get(f"{url}/export?format=json")):  # fmt: skip
        assert error(answer, 404)["code"] == "chat_not_found"


def test_search_reads_titles_and_messages(server: Running, store: ChatStore) -> None:
    store.save("one", Chat([Message(**TURN[0])], title="Weather"))
    store.save("two", Chat([Message("user", "Prime numbers")]))
    (store.folder / "broken.json").write_text("{", encoding="utf-8")

    def found(words: str) -> list[str]:
        return [one["id"] for one in server.http.get(CHATS, params={"search": words}).json()["chats"]]

    assert found("SKY weather") == ["one"] and found("prime") == ["two"] and found("sky prime") == []
    broken = next(one for one in server.http.get(CHATS).json()["chats"] if one["id"] == "broken")
    assert "unreadable file" in broken["problem"]
    assert error(server.http.get(CHATS, params={"search": "x" * 201}), 400)["message"].startswith("search: got")


def test_a_file_that_changed_is_read_again(server: Running, store: ChatStore) -> None:
    made = create(server)
    assert server.http.get(CHATS).json()["chats"][0]["turns"] == 1
    theirs = store.load(made["id"])
    theirs.messages.append(Message("user", "more"))
    store.save(made["id"], theirs)
    assert server.http.get(CHATS).json()["chats"][0]["turns"] == 2


def test_exports(server: Running, store: ChatStore) -> None:
    numbers = {"generated_tokens": 5, "acceptance_length": 3.456, "fallback_reason": "no drafter given"}
    reply = {**TURN[1], "reasoning_content": "two\nlines", "partial": True, "numbers": numbers}
    made = create(server, messages=[TURN[0], reply], system="Be brief.", model="tiny")
    url = f"{CHATS}/{made['id']}/export"
    plain = server.http.get(url, params={"format": "json"}).json()
    assert plain["name"] == f"{made['id']}.json" and json.loads(plain["text"])["messages"][1] == reply
    text = server.http.get(url, params={"format": "markdown"}).json()["text"]
    for piece in ("# Why is the sky blue?", "model tiny", "## System\n\nBe brief.", "> two\n> lines", "Light scatters.",
                  "*5 tokens · acceptance 3.46 · plain decoding: no drafter given · stopped*"):  # fmt: skip
        assert piece in text
    assert error(server.http.get(url), 400)["param"] == "format"


@pytest.mark.parametrize("name", ["..%2f..%2fsecret", "%2e%2e", ".lock", "a%00b", "x" * 70, "a%20b", "%c3%a9"])
def test_no_name_leads_out_of_the_folder(server: Running, store: ChatStore, name: str) -> None:
    (store.base / "secret.json").parent.mkdir(parents=True, exist_ok=True)
    (store.base / "secret.json").write_text('{"version": 1, "messages": []}', encoding="utf-8")
    url, body = f"{CHATS}/{name}", {"revision": "x", "chat": {"version": 1, "messages": []}}
    for answer in (server.http.get(url), server.http.delete(url), server.http.put(url, json=body)):
        assert 400 <= answer.status_code < 500, answer.text
    assert (store.base / "secret.json").exists()


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (None, "chat: got None, expected an object"),
        ({"version": 1, "messages": [], "mood": "good"}, "chat.mood: got 'good', expected no such field"),
        ({"version": 1, "messages": [{**TURN[0], "html": 1}]}, "chat.messages[0].html: got 1"),
        ({"version": 1, "messages": [TURN[0], TURN[0]]}, "messages[1].role: got 'user', expected 'assistant'"),
        ({"version": 1, "messages": [], "settings": {"heat": 1}}, "/set: got 'heat'"),
        ({"version": 1, "messages": [], "settings": {"top_p": 7}}, "top_p"),
        ({"version": 1, "messages": [], "server": {"stop": "x"}}, "server.stop: got 'x'"),
        ({"version": 1, "messages": [], "server": {"thinking_budget": True}}, "server.thinking_budget: got True"),
        ({"version": 1, "messages": [], "server": {"x": 1}}, "server.x: got 1"),
        ({"version": 1, "messages": [], "title": "x" * 201}, "chat.title: got"),
        ({"version": 1, "messages": [TURN[0]] * 4097}, "chat.messages: got 4097, expected at most 4096"),
    ],
)
def test_what_is_no_chat_is_refused_by_name(server: Running, store: ChatStore, chat: Any, message: str) -> None:
    assert message in error(server.http.post(CHATS, json={"chat": chat}), 400)["message"]
    assert store.names() == []


def test_a_huge_chat_and_a_folder_that_cannot_be_written(server: Running, home: Path) -> None:
    huge = {"chat": {"version": 1, "messages": [{"role": "user", "content": "x" * (16 * 2**20)}]}}
    assert "expected at most 16777216" in error(server.http.post(CHATS, json=huge), 413)["message"]
    (home / "settings").mkdir(exist_ok=True)
    (home / "settings" / "chats").write_text("a file in the folder's place", encoding="utf-8")
    answer = server.http.post(CHATS, json={"chat": {"version": 1, "messages": TURN}})
    assert "could not be saved" in error(answer, 503)["message"]


def test_what_the_controls_know_of_a_model() -> None:
    with serving(source_of(scripted("fine", "a"))) as server:
        assert server.http.get("/api/chat-model/a").json() == {"id": "a", "loaded": False}
        server.http.post("/v1/models/a/load")
        told = server.http.get("/api/chat-model/a").json()
        assert told["thinks"] and told["thinking_switch"] == "enable_thinking" and told["has_template"]
        assert (told["target"], told["drafter"]) == ("tiny", "tiny-drafter")
        assert told["defaults"]["max_tokens"] == 64 and told["defaults"]["temperature"] == 0
        assert error(server.http.get("/api/chat-model/b"), 404)["code"] == "model_not_found"


def test_usage_can_come_with_every_piece(server: Running) -> None:
    body = {"model": "scripted", "messages": HELLO, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = server.http.post("/v1/chat/completions", json={**body, "stream_options": options}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] < counts[-1] and "dflash2" in chunks[0]["usage"]
    options = {"continuous_usage_stats": True}
    answer = server.http.post("/v1/chat/completions", json={**body, "stream_options": options})
    assert "expected include_usage true" in error(answer, 400)["message"]

"""The model manager over HTTP, with a stand-in for the Hub: lists, search, the queue of downloads, removal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dflash2_app.models import registry as suggestions
from dflash2_app.models.registry import SuggestedDrafter
from tests.tiny import save_drafter

from ..hub import Hub
from ..hub.conftest import DRAFTER, TARGET, Published, folders, pair, short_waits
from .conftest import HELLO, Running, serving
from .models import scripted, source_of

__all__ = ["folders", "pair", "short_waits"]  # fixtures of the Hub's own tests

SHARD = "model.safetensors"


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    with serving(
        source_of(scripted("fine " * 2000, TARGET, round_s=0.02)), source_of(scripted("b", "other"))
    ) as running:
        yield running


@pytest.fixture
def http(up: Running, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    """The server with an empty queue and cache; the target's known drafter is the one published beside it."""
    monkeypatch.setattr(
        suggestions, "drafter_for",
        lambda name, config=None: SuggestedDrafter(DRAFTER, "made for it") if "target" in name else None,
    )  # fmt: skip
    yield up.http
    for task in up.http.get("/api/downloads").json()["tasks"]:
        up.http.post(f"/api/downloads/{task['id']}/cancel", json={})
    until(lambda: all(task["ended_at"] for task in up.http.get("/api/downloads").json()["tasks"]))
    for task in up.http.get("/api/downloads").json()["tasks"]:
        up.http.post(f"/api/downloads/{task['id']}/remove", json={})
    up.http.post("/v1/models/other/unload")
    up.settle(30)
    up.http.post(f"/v1/models/{TARGET}/unload")


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)
    return found


def add(http: httpx2.Client, model: str = TARGET, **more: Any) -> int:
    answer = http.post("/api/downloads", json={"model": model, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def task(http: httpx2.Client, number: int) -> dict[str, Any]:
    return next(one for one in http.get("/api/downloads").json()["tasks"] if one["id"] == number)


def ended(http: httpx2.Client, number: int) -> dict[str, Any]:
    return until(lambda: (one := task(http, number)) and one["ended_at"] and one)


def act(http: httpx2.Client, number: int, verb: str) -> httpx2.Response:
    return http.post(f"/api/downloads/{number}/{verb}", json={})


def message(answer: httpx2.Response) -> str:
    return answer.json()["error"]["message"]


def test_a_download_with_its_drafter(http: httpx2.Client, hub: Hub) -> None:
    assert http.get("/api/models").json()["models"] == []
    done = ended(http, add(http))
    assert (done["state"], done["error"], done["repos"], done["progress"]) == (
        "completed", None, [TARGET, DRAFTER], 1.0,
    )  # fmt: skip
    assert done["done_bytes"] == done["total_bytes"] == sum(file["size_bytes"] for file in done["files"])
    assert any("cc-by-nc-4.0: not for commercial use" in note for note in done["notes"])
    found = http.get("/api/models").json()
    models = {model["name"]: model for model in found["models"]}
    assert set(models) == {TARGET, DRAFTER} and models[TARGET]["served_as"] == TARGET
    assert models[TARGET]["state"]["loaded"] is False and models[DRAFTER]["served_as"] is None
    assert models[TARGET]["kind"] == "target" and models[TARGET]["quantization"] == "4-bit group 32"
    assert models[TARGET]["drafter_is_here"] and models[TARGET]["memory"]["estimate_bytes"]["total"] > 0
    assert [state["id"] for state in found["only_served"]] == ["other"]


def test_cancel_keeps_what_has_come_and_retry_goes_on(http: httpx2.Client, hub: Hub, pair: Published) -> None:
    released = hub.hold(SHARD, after=5000)
    number = add(http, DRAFTER)
    until(lambda: hub.count("/storage/") and task(http, number)["phase"] == "fetching")
    until(lambda: any(path.stat().st_size for path in partials(hub)))
    assert task(http, number)["state"] == "downloading"
    began = time.monotonic()
    act(http, number, "cancel")
    cancelled = ended(http, number)
    assert cancelled["state"] == "cancelled" and time.monotonic() - began < 20, "a silent Hub is not waited for"
    kept = sum(path.stat().st_size for path in partials(hub))
    assert kept > 0 and http.get("/api/models").json()["models"] == []
    released.set()
    assert act(http, number, "retry").json()["state"] == "pending"
    done = ended(http, number)
    assert (done["state"], done["tries"]) == ("completed", 2)
    with hub.lock:
        ranges = [seen.headers.get("range") for seen in hub.seen if seen.path.startswith("/storage/")]
    assert ranges[-1] == f"bytes={kept}-", "it went on from there"


def partials(hub: Hub) -> list[Path]:
    from huggingface_hub import constants

    return list(Path(constants.HF_HUB_CACHE).glob("models--*/blobs/*.incomplete"))


def test_one_at_a_time_and_each_once(http: httpx2.Client, hub: Hub) -> None:
    released = hub.hold(SHARD, after=100)
    first = add(http, DRAFTER)
    second = add(http, TARGET, drafter="none")
    until(lambda: task(http, first)["state"] == "downloading")
    assert task(http, second)["state"] == "pending"
    twice = http.post("/api/downloads", json={"model": TARGET})
    assert twice.status_code == 409 and "is pending already" in message(twice)
    assert act(http, first, "remove").status_code == 409 and act(http, second, "retry").status_code == 409
    assert act(http, second, "cancel").json()["state"] == "cancelled"
    assert act(http, second, "retry").json()["state"] == "pending"
    released.set()
    assert ended(http, first)["state"] == "completed" and ended(http, second)["state"] == "completed"
    assert task(http, second)["repos"] == [TARGET]
    assert http.post("/api/downloads/clear", json={}).json()["removed"] == 2
    assert http.get("/api/downloads").json()["tasks"] == []


def test_what_goes_wrong_is_told_and_can_be_tried_again(http: httpx2.Client, hub: Hub) -> None:
    hub.fail("/resolve/", 404, times=50)
    failed = ended(http, add(http, DRAFTER))
    assert failed["state"] == "failed" and DRAFTER in failed["error"] and "\n" not in failed["error"]
    hub.faults.clear()
    act(http, failed["id"], "retry")
    assert ended(http, failed["id"])["state"] == "completed"
    missing = ended(http, add(http, "nobody/nothing"))
    assert missing["state"] == "failed" and "the Hub has no such repository" in missing["error"]


def test_search_and_card(http: httpx2.Client, hub: Hub) -> None:
    hub.add("big/asks-first", {"config.json": b"{}"}, gated=True, tags=["mlx"], license="llama3")
    found = http.get("/api/downloads/search", params={"text": "target"}).json()["models"]
    assert [model["name"] for model in found] == [TARGET] and found[0]["here"] is False
    assert http.get("/api/downloads/search").json()["models"][-1]["gated"] is True
    everything = http.get("/api/downloads/search", params={"any_format": "true", "author": "tiny"}).json()["models"]
    assert {model["name"]: model["non_commercial"] for model in everything} == {TARGET: False, DRAFTER: True}
    card = http.get("/api/downloads/card", params={"name": TARGET}).json()
    assert card["kind"] == "target" and card["left_bytes"] == card["size_bytes"] > 0 and card["free_bytes"] > 0
    assert card["with_drafter"]["name"] == DRAFTER and card["with_drafter"]["non_commercial"]
    assert card["with_drafter"]["terms"] == [f"{DRAFTER}: its licence is cc-by-nc-4.0: not for commercial use"]
    assert http.get("/api/downloads/card", params={"name": TARGET}).json()["left_bytes"] == card["left_bytes"]
    assert hub.count(f"/api/models/{TARGET}") == 1, "the Hub is asked once"
    ended(http, add(http, TARGET, drafter="none"))
    here = http.get("/api/downloads/card", params={"name": TARGET}).json()
    assert here["here"] and here["left_bytes"] == 0 and here["with_drafter"]["left_bytes"] > 0


def test_a_drafter_for_another_target_is_refused(http: httpx2.Client, hub: Hub, tmp_path: Path) -> None:
    hub.add("tiny/other", save_drafter(tmp_path / "other", hidden_size=128))
    failed = ended(http, add(http, TARGET, drafter="tiny/other"))
    assert failed["state"] == "failed" and "hidden_size: got 128" in failed["error"]


def test_removal_asks_refuses_what_is_in_use_and_frees(http: httpx2.Client, up: Running, home: Path) -> None:
    ended(http, add(http))
    asked = http.get("/api/models/removal", params={"name": TARGET}).json()
    assert asked["in_use"] is None and asked["freed_bytes"] > 0 and len(asked["commits"]) == 1
    http.post(f"/v1/models/{TARGET}/load")
    settings = home / "settings"
    settings.mkdir()
    record = {"tiny--target-4bit": {"dflash_enabled": True, "dflash_draft_model": DRAFTER}}
    (settings / "model_settings.json").write_text(json.dumps({"version": 1, "models": record}))
    refused = http.post("/api/models/remove", json={"name": DRAFTER})
    assert refused.status_code == 409 and f"is the drafter of {TARGET}, which is loaded" in message(refused)
    asked_for = {"model": TARGET, "messages": HELLO, "stream": True, "max_tokens": 10_000}
    with http.stream("POST", "/v1/chat/completions", json=asked_for) as reply:
        lines = reply.iter_lines()  # held: an iterator that is dropped closes the connection
        next(lines)
        until(lambda: up.service.desk.running)
        refused = http.post("/api/models/remove", json={"name": TARGET})
        assert refused.status_code == 409 and "is used by 1 request(s)" in message(refused)
    up.settle(30)
    gone = http.post("/api/models/remove", json={"name": TARGET}).json()
    assert gone["removed"] and gone["freed_bytes"] == asked["freed_bytes"]
    states = {state["id"]: state["loaded"] for state in http.get("/v1/models/status").json()["models"]}
    assert states[TARGET] is False
    assert [model["name"] for model in http.get("/api/models").json()["models"]] == [DRAFTER]
    assert http.post("/api/models/remove", json={"name": TARGET}).status_code == 409


def test_a_folder_of_ones_own_is_never_removed(http: httpx2.Client, home: Path) -> None:
    folder = save_drafter(home / "settings" / "models" / "mine")
    refused = http.post("/api/models/remove", json={"name": str(folder)})
    assert refused.status_code == 404 and "a folder of your own" in message(refused) and folder.is_dir()


def events(http: httpx2.Client, method: str, path: str, **more: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    with http.stream(method, path, **more) as answer:
        assert answer.status_code == 200
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


def test_verify_reports_what_was_damaged(http: httpx2.Client) -> None:
    ended(http, add(http, DRAFTER))
    told = list(events(http, "POST", "/api/models/verify", json={"name": DRAFTER}))
    assert told[-1][0] == "result" and told[-1][1]["good"] is True
    from dflash2_app.models.cache import cached_repo

    folder = cached_repo(DRAFTER).current()
    assert folder is not None
    with (folder / SHARD).open("r+b") as file:
        file.seek(200)
        file.write(b"other bytes")
    result = list(events(http, "POST", "/api/models/verify", json={"name": DRAFTER, "delete_damaged": True}))[-1][1]
    assert not result["good"] and result["bad"][0]["name"] == SHARD and result["deleted_files"] == 1
    refused = http.post("/api/models/verify", json={"name": "nobody/nothing"})
    assert refused.status_code in (200, 409) and "got no finished model" in refused.text


def test_one_stream_tells_everything(http: httpx2.Client) -> None:
    first: dict[str, Any] = {}
    completed = loaded = began = False
    with closing(events(http, "GET", "/api/models/events")) as told:
        for kind, data in told:
            first.setdefault(kind, data)
            if len(first) == 2 and not began:
                began = True
                add(http, DRAFTER)
                http.post("/v1/models/other/load")
            completed |= any(task["state"] == "completed" for task in data.get("tasks", []))
            loaded |= any(state["id"] == "other" and state["loaded"] for state in data.get("models", []))
            if completed and loaded:
                break
    assert first["downloads"]["tasks"] == [] and len(first["models"]["models"]) == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/models?context=0", None, 400),
        ("GET", "/api/models?context=many", None, 400),
        ("GET", "/api/models?what=1", None, 400),
        ("GET", "/api/models/details", None, 400),
        ("GET", "/api/models/details?name=%00", None, 400),
        ("GET", "/api/models/details?name=nobody", None, 404),
        ("GET", "/api/models/details?name=nobody/nothing", None, 424),
        ("GET", f"/api/models/details?name={'x' * 400}", None, 400),
        ("GET", "/api/models/details?name=~nobody-here", None, 400),
        ("GET", "/api/models/removal?name=../../etc", None, 404),
        ("GET", "/api/downloads/search?limit=5000", None, 400),
        ("GET", "/api/downloads/search?sort=best", None, 400),
        ("GET", "/api/downloads/search?any_format=yes", None, 400),
        ("GET", "/api/downloads/card?name=mini", None, 404),
        ("POST", "/api/downloads", {"model": "no-owner"}, 400),
        ("POST", "/api/downloads", {"model": "a/b", "drafter": "../x"}, 400),
        ("POST", "/api/downloads", {"model": "a/b", "speed": 1}, 400),
        ("POST", "/api/downloads", {"model": 5}, 400),
        ("POST", "/api/downloads", [], 400),
        ("POST", "/api/downloads/77/cancel", {}, 404),
        ("POST", "/api/downloads/x/cancel", {}, 404),
        ("POST", "/api/downloads/1/explode", {}, 404),
        ("POST", "/api/models/verify", {"name": "a/b", "delete_damaged": "yes"}, 400),
        ("POST", "/api/models/remove", {"name": "a/b", "yes": True}, 400),
    ],
)
def test_what_is_wrong_is_one_line(http: httpx2.Client, method: str, path: str, body: Any, status: int) -> None:
    answer = http.request(method, path, json=body) if method == "POST" else http.get(path)
    assert answer.status_code == status, answer.text
    assert message(answer) and "\n" not in message(answer)

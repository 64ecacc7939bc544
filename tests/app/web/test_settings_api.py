"""Settings over HTTP: what is shown, what is refused by key, and what stands in the files afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dflash2_app.manage.forms import typed
from dflash2_app.settings.keys import KEYS

from ..hub import Hub
from ..settings.pairs import save_pair
from .conftest import Running, serving
from .models import scripted, source_of

ANNOUNCED = {
    "dflash_enabled": True, "dflash_draft_quant_enabled": True, "dflash_draft_quant_weight_bits": 4,
    "dflash_draft_quant_activation_bits": 16, "dflash_draft_quant_group_size": 64, "dflash_block_size": 5,
    "dflash_verify_mode": "dflash", "dflash_draft_sink_size": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    with serving(source_of(scripted("fine", "Tiny-27B-4bit"))) as running:
        yield running


@pytest.fixture
def http(up: Running, hub: Hub, home: Path) -> httpx2.Client:
    """The server, which reads the files of this test's own home."""
    return up.http


@pytest.fixture
def files(home: Path) -> Path:
    return home / "settings"


def records(files: Path) -> dict[str, Any]:
    return json.loads((files / "model_settings.json").read_text(encoding="utf-8"))["models"]


def save(http: httpx2.Client, model: Any, **values: Any) -> httpx2.Response:
    return http.post("/api/settings/save", json={"model": str(model), "values": values})


def message(answer: httpx2.Response) -> str:
    return answer.json()["error"]["message"]


def test_the_schema_lists_every_key_once(http: httpx2.Client) -> None:
    groups = http.get("/api/settings/schema").json()["groups"]
    keys = {key["name"]: key for group in groups for key in group["keys"]}
    assert sorted(keys) == sorted(KEYS) and len({group["group"] for group in groups}) == len(groups)
    mode = keys["dflash_verify_mode"]
    assert (mode["form"], mode["choices"], mode["label"]) == (
        "choice", ["dflash", "adaptive", "ddtree", "off"], "Verify mode",
    )  # fmt: skip
    assert keys["dflash_in_memory_cache_max_bytes"]["default_text"] == "8 GiB"
    for name, key in KEYS.items():  # what is shown can be typed
        text = keys[name]["default_text"]
        assert key.parse(text) == key.normalise(key.default) or text == "", name


def test_sizes_are_shown_as_they_can_be_typed() -> None:
    key = KEYS["dflash_ssd_cache_max_bytes"]
    for size, text in ((2**30, "1 GiB"), (3 * 2**19, "1572864"), (2**20, "1 MiB"), (2**30 + 2**20, "1025 MiB")):
        assert typed(key, size) == text and key.parse(text) == size


def test_the_announcements_setup(http: httpx2.Client, files: Path, pair: tuple[Path, Path]) -> None:
    target, drafter = map(str, pair)
    preset = http.post("/api/settings/preset", json={"model": target, "preset": "dflash2", "drafter": drafter}).json()
    assert preset["values"]["dflash_block_size"] == "5" and not (files / "model_settings.json").exists()
    checked = http.post("/api/settings/check", json={"model": target, "values": preset["values"]}).json()
    assert checked["ok"] and checked["pairing"]["state"] == "good" and checked["drafter"] == drafter
    assert checked["dflash_requested"] and checked["dflash_fallback_reason"] is None and checked["requires_reload"]
    assert not (files / "model_settings.json").exists()
    saved = save(http, target, **preset["values"]).json()
    assert saved["saved"] and saved["requires_reload"] and not saved["auto_unloaded"]
    assert records(files) == {"Tiny-27B-4bit": {**ANNOUNCED, "dflash_draft_model": drafter}}
    shown = saved["settings"]["values"]
    assert shown["dflash_block_size"] == {
        "value": 5, "text": "5", "origin": "model", "own": True, "inherited_text": "", "inherited_origin": "default",
    }  # fmt: skip
    assert shown["temperature"]["origin"] == "default"
    by_name = http.get("/api/settings/model", params={"name": "tiny-27b-4bit"}).json()
    assert by_name["target"] == target and by_name["drafters"] == []


def test_faults_are_told_by_key_and_nothing_is_saved(http: httpx2.Client, files: Path, pair: tuple[Path, Path]) -> None:
    target = str(pair[0])
    values = {
        "dflash_block_size": "many",
        "top_p": 1.5,
        "dflash_draft_quant_weight_bits": 2,
        "speed": 3,
        "min_p": "0.1",
    }
    checked = http.post("/api/settings/check", json={"model": target, "values": values}).json()
    assert not checked["ok"] and set(checked["faults"]) == {
        "dflash_block_size", "top_p", "dflash_draft_quant_weight_bits", "speed",
    }  # fmt: skip
    assert checked["faults"]["top_p"] == "got 1.5, expected a number in (0, 1]"
    refused = save(http, target, **values)
    assert refused.status_code == 400 and message(refused).startswith("dflash_block_size: got 'many', expected an int")
    assert refused.json()["error"]["param"] == "dflash_block_size" and not (files / "model_settings.json").exists()


def test_a_wrong_pair_is_refused_with_its_reason(http: httpx2.Client, files: Path, pair: tuple[Path, Path]) -> None:
    target = str(pair[0])
    for drafter, words in (
        (target, "architectures: got"),
        ("/nowhere/at/all", "expected an existing folder or a full Hub id"),
        ("~nobody-of-this-name/x", "expected a folder (no such user)"),
        ("x" * 300, "expected at most 1000 printable characters"),
    ):
        values = {"dflash_enabled": True, "dflash_draft_model": drafter}
        refused = save(http, target, **values)
        assert refused.status_code == 400 and words in message(refused), message(refused)
        assert refused.json()["error"]["param"] == "dflash_draft_model"
    checked = http.post("/api/settings/check", json={"model": target, "values": {"dflash_draft_model": target}}).json()
    assert checked["pairing"]["state"] == "bad" and "architectures" in checked["faults"]["dflash_draft_model"]
    assert not (files / "model_settings.json").exists()


def test_a_bad_drafter_of_another_program_is_refused_when_dflash_is_switched_on(
    http: httpx2.Client, files: Path, pair: tuple[Path, Path]
) -> None:
    files.mkdir()
    record = {"dflash_draft_model": str(pair[0]), "mtp_num_draft_tokens": 3, "temperature": 7e400}
    (files / "model_settings.json").write_text(json.dumps({"version": 1, "models": {"Tiny-27B-4bit": record}}))
    refused = save(http, pair[0], dflash_enabled=True)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "dflash_draft_model"
    shown = http.get("/api/settings/model", params={"name": str(pair[0])}).json()
    assert shown["pairing"]["state"] == "bad" and shown["kept"] == {"mtp_num_draft_tokens": 3}
    assert any("temperature" in problem for problem in shown["problems"])
    assert save(http, pair[0], dflash_draft_model=None, temperature=None).status_code == 200
    assert records(files) == {"Tiny-27B-4bit": {"mtp_num_draft_tokens": 3}}


def test_values_come_from_where_it_says(
    http: httpx2.Client, files: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.mkdir()
    (files / "settings.json").write_text(json.dumps({"version": "1.0", "sampling": {"temperature": 0.5, "top_k": 7}}))
    monkeypatch.setenv("DFLASH2_TOP_K", "9")
    answer = save(http, pair[0], temperature=0.25, frequency_penalty=0.5).json()
    shown = answer["settings"]["values"]
    assert (shown["temperature"]["origin"], shown["temperature"]["inherited_text"]) == ("model", "0.5")
    assert shown["temperature"]["inherited_origin"] == "global"
    assert (shown["top_k"]["origin"], shown["top_k"]["value"]) == ("environment", 9)
    assert any("oMLX, if it runs, must reload" in note for note in answer["notes"])
    assert (
        json.loads((files / "dflash2_extras.json").read_text())["models"]["Tiny-27B-4bit"]["frequency_penalty"] == 0.5
    )
    assert not save(http, pair[0], temperature=0.3).json()["requires_reload"]
    assert save(http, pair[0], temperature=None).json()["settings"]["values"]["temperature"]["origin"] == "global"


def test_profiles(http: httpx2.Client, files: Path, pair: tuple[Path, Path]) -> None:
    model = str(pair[0])

    def profile(verb: str, **more: Any) -> httpx2.Response:
        return http.post(f"/api/settings/profiles/{verb}", json={"model": model, **more})

    save(http, model, temperature=0.5, model_alias="quick")
    assert profile("save", name="calm").json()["settings"]["active_profile"] == "calm"
    save(http, model, temperature=0.9)
    shown = http.get("/api/settings/profiles", params={"model": model}).json()
    assert shown["profile_modified"] and shown["profiles"][0]["values"][0]["label"] == "Temperature"
    assert profile("apply", name="calm").json()["settings"]["values"]["temperature"]["value"] == 0.5
    assert profile("rename", name="calm", new_name="calmer").json()["settings"]["active_profile"] == "calmer"
    exposed = profile("expose", name="calmer", exposed=True, api_name="c").json()["settings"]["profiles"][0]
    assert (exposed["exposed"], exposed["served_as"], exposed["display_name"]) == (True, "quick:c", "calmer")
    profile("save", name="other")
    assert "expected a name that the profile calmer does not have" in message(
        profile("expose", name="other", exposed=True, api_name="c")
    )
    assert message(profile("rename", name="other", new_name="calmer")).startswith("profile: got 'calmer'")
    assert profile("rename", name="other", new_name="No Good").status_code == 400
    assert profile("apply", name="nobody").status_code == 409
    assert profile("apply", name="other", speed=3).status_code == 400
    assert profile("expose", name="other").status_code == 400
    assert [p["name"] for p in profile("remove", name="calmer").json()["settings"]["profiles"]] == ["other"]
    stored = json.loads((files / "model_profiles.json").read_text())["profiles"]["Tiny-27B-4bit"]
    assert list(stored) == ["other"] and stored["other"]["settings"]["temperature"] == 0.5


def test_a_profile_that_changes_the_engine_requires_a_reload(http: httpx2.Client, pair: tuple[Path, Path]) -> None:
    model = str(pair[0])
    save(http, model, dflash_enabled=True, dflash_draft_model=str(pair[1]))
    http.post("/api/settings/profiles/save", json={"model": model, "name": "drafts"})
    save(http, model, dflash_enabled=None)
    answer = http.post("/api/settings/profiles/apply", json={"model": model, "name": "drafts"}).json()
    assert answer["requires_reload"] and answer["settings"]["values"]["dflash_enabled"]["value"] is True


def test_one_default_model_and_the_overview(http: httpx2.Client, files: Path, pair: tuple[Path, Path]) -> None:
    save(http, pair[0], is_default=True)
    found = http.get("/api/settings").json()
    assert found["default_model"] == "Tiny-27B-4bit" and found["base_path"] == str(files)
    assert found["base_path_origin"] == "DFLASH2_BASE_PATH" and found["free_bytes"] > 0


def test_a_damaged_file_is_left_alone_until_somebody_says_so(
    http: httpx2.Client, files: Path, pair: tuple[Path, Path]
) -> None:
    files.mkdir()
    (files / "model_settings.json").write_text("{ nothing")
    for answer in (http.get("/api/settings"), save(http, pair[0], temperature=0.5)):
        assert answer.status_code == 409 and "expected a JSON object; it was left as it is" in message(answer)
    assert "expected a JSON object" in http.get("/api/models").json()["settings_problem"]
    assert (files / "model_settings.json").read_text() == "{ nothing"
    moved = http.post("/api/settings/recover", json={}).json()["moved"]
    assert len(moved) == 1 and save(http, pair[0], temperature=0.5).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("check", {"model": "no-such-model", "values": {}}, 404),
        ("check", {"model": "", "values": {}}, 400),
        ("check", {"model": "/", "values": {}}, 404),
        ("check", {"model": "a\u0000b", "values": {}}, 400),
        ("check", {"model": "mini"}, 400),
        ("check", {"model": "mini", "values": []}, 400),
        ("check", {"model": "mini", "values": {}, "more": 1}, 400),
        ("check", {"model": ["mini"], "values": {}}, 400),
        ("preset", {"model": "mini", "preset": "fast"}, 400),
        ("preset", {"model": "o/unknown-model", "preset": "dflash2"}, 409),
        ("recover", {"all": True}, 400),
        ("profiles/save", {"model": "mini", "name": "Not Allowed"}, 400),
        ("profiles/save", {"model": "mini"}, 400),
    ],
)
def test_what_is_wrong_is_one_line(http: httpx2.Client, path: str, body: dict[str, Any], status: int) -> None:
    answer = http.post(f"/api/settings/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert message(answer) and "\n" not in message(answer)


def test_unknown_parameters_are_refused(http: httpx2.Client) -> None:
    assert http.get("/api/settings/model", params={"name": "mini", "x": "1"}).status_code == 400
    assert http.get("/api/settings", params={"x": "1"}).status_code == 400
    assert http.get("/api/settings/model").status_code == 400
    mini = http.get("/api/settings/model", params={"name": "mini"}).json()
    assert mini["dflash_requested"] and mini["drafter"] == "mini" and mini["pairing"]["state"] == "good"


def test_every_page_keeps_to_the_folder_of_the_command_line(
    home: Path, tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    with serving(source_of(scripted("fine", "Tiny-27B-4bit"))) as server:
        server.service.base_path = tmp_path / "elsewhere"
        found = server.http.get("/api/settings").json()
        assert (found["base_path"], found["base_path_origin"]) == (str(tmp_path / "elsewhere"), "--base-path")
        assert save(server.http, pair[0], top_k=7).status_code == 200
        assert records(tmp_path / "elsewhere")["Tiny-27B-4bit"]["top_k"] == 7
        chat = {"version": 1, "messages": [{"role": "user", "content": "hello"}]}
        assert server.http.post("/api/chats", json={"chat": chat}).status_code == 201
        assert server.http.get("/api/bench/runs").status_code == server.http.get("/api/models").status_code == 200
        assert len(list((tmp_path / "elsewhere" / "chats").glob("*.json"))) == 1
    assert not (home / "settings").exists()

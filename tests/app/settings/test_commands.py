"""`dflash2-mlx settings`, as typed: what is shown, saved and refused, and that nothing is lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.models import registry
from dflash2_mlx.device.chips import read_chip
from tests.tiny import TARGET_CONFIGS, drafter_config

from ..conftest import Run
from .samples import ALL_KEYS, model_settings, read, write

TARGET = "mlx-community/Qwen3.8-27B-4bit"
ID = "mlx-community--Qwen3.8-27B-4bit"
ANNOUNCED = {
    "dflash_enabled": True,
    "dflash_draft_model": "incoai/Qwen3.8-27B-DFlash2",
    "dflash_draft_quant_enabled": True,
    "dflash_draft_quant_weight_bits": 4,
    "dflash_draft_quant_activation_bits": 16,
    "dflash_draft_quant_group_size": 64,
    "dflash_block_size": 5,
    "dflash_verify_mode": "dflash",
    "dflash_draft_sink_size": 0,
}


def config_folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_the_announced_setup_in_one_line(run: Run, base: Path) -> None:
    ran = run("settings", "preset", "dflash2", TARGET)
    assert ran.code == 0 and ran.err == ""
    assert read(base) == {"version": 1, "models": {ID: ANNOUNCED}}
    assert "Runtime block size                 5" in ran.out
    again = run("settings", "show", TARGET).out
    assert "Draft Model                        incoai/Qwen3.8-27B-DFlash2" in again
    assert "Verify mode                        dflash" in again
    assert "replies: drafted by incoai/Qwen3.8-27B-DFlash2" in again


def test_the_announced_setup_by_hand_is_the_same(run: Run, base: Path) -> None:
    words = [f"{name}={json.dumps(value).strip(chr(34))}" for name, value in ANNOUNCED.items()]
    assert run("settings", "set", TARGET, *words).code == 0
    assert read(base)["models"][ID] == ANNOUNCED


def test_the_preset_on_a_chip_that_emulates_bfloat16(run: Run, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("dflash2_mlx.analysis.this_chip", lambda: read_chip("applegpu_g14s", "Apple M2 Max"))
    ran = run("settings", "preset", "dflash2", TARGET)
    assert read(base)["models"][ID] == {**ANNOUNCED, "dflash_draft_quant_activation_bits": 32}
    assert "note: Activation Bits: 32, because M1 and M2 emulate bfloat16" in ran.err


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("someone/Unknown-3B", "got no drafter on record for it, expected one of Qwen3.8-27B, "),
        ("someone/Qwen3-4B-tuned", "got no drafter on record for it, expected one of Qwen3.8-27B, "),
    ],
)
def test_a_preset_without_a_drafter(run: Run, base: Path, model: str, words: str) -> None:
    ran = run("settings", "preset", "dflash2", model)
    assert ran.code == 1 and words in ran.error
    assert not base.exists()


def test_licences_and_doubts_are_told(run: Run) -> None:
    ran = run("settings", "preset", "dflash2", "zai-org/GLM-5.3-Flash")
    assert "CC BY-NC-ND 4.0: not for commercial use" in ran.err
    assert "in the middle of its training" in run("settings", "preset", "dflash2", "x/Qwen3.6-35B-A3B-4bit").err
    other = run("settings", "set", "a/b", "dflash_draft_model=incoai/Qwen3.8-27B-DFlash2")
    assert "was made for Qwen3.8-27B" in other.err
    unknown = run("settings", "set", "a/b", "dflash_draft_model=a/d")
    assert "not checked yet: a/b is not on this machine" in unknown.err


def test_a_file_of_omlx_is_changed_and_nothing_is_lost(run: Run, base: Path) -> None:
    before = model_settings()
    write(base, before)
    write(base, {"version": "1.0", "sampling": {"temperature": 0.4}}, "settings.json")
    ran = run("settings", "set", "qwen3.8-27b-4BIT", "temperature=0.7", "dflash_block_size=4")
    before["models"]["Qwen3.8-27B-4bit"] |= {"temperature": 0.7, "dflash_block_size": 4}
    assert read(base) == before
    assert "oMLX, if it runs, must reload its settings" in ran.err
    run("settings", "unset", "Qwen3.8-27B-4bit", "temperature", "dflash_max_ctx")
    del before["models"]["Qwen3.8-27B-4bit"]["temperature"], before["models"]["Qwen3.8-27B-4bit"]["dflash_max_ctx"]
    assert read(base) == before
    assert read(base, "settings.json") == {"version": "1.0", "sampling": {"temperature": 0.4}}


def test_origins(run: Run, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base, model_settings())
    write(base, {"version": "1.0", "sampling": {"temperature": 0.4, "top_k": 30}}, "settings.json")
    monkeypatch.setenv("DFLASH2_BLOCK_SIZE", "3")
    shown = json.loads(run("settings", "show", "Org--Repo", "--origin", "--json").out)
    assert shown["settings"]["temperature"] == 0.6 and shown["settings"]["top_k"] == 30
    wanted = {"temperature": "model", "top_k": "global", "dflash_block_size": "environment", "top_p": "default"}
    assert {name: shown["origins"][name] for name in wanted} == wanted
    assert set(shown["kept"]) == {
        "qwen35_fast_prefill", "specprefill_enabled", "turboquant_kv_bits", "from_the_future", "big",
    }  # fmt: skip
    text = run("settings", "show", "Org--Repo", "--origin").out
    assert "  Temperature                        0.6  (model)" in text
    assert "  Runtime block size                 3  (environment)" in text
    assert "  Top K                              30  (global)" in text
    told = run("settings", "set", "Org--Repo", "dflash_block_size=6")
    assert "dflash_block_size: DFLASH2_BLOCK_SIZE is set and wins in this environment" in told.err


def test_show_json_holds_what_it_leads_to(run: Run, base: Path) -> None:
    write(base, model_settings())
    shown = json.loads(run("settings", "show", "Qwen3.8-27B-4bit", "--json").out)
    assert list(shown) == [
        "model", "known", "profile", "profile_modified", "settings", "kept", "problems", "target", "drafter",
        "dflash_requested", "dflash_fallback_reason", "notes",
    ]  # fmt: skip
    assert {name: shown["settings"][name] for name in ALL_KEYS} == ALL_KEYS
    assert shown["dflash_requested"] and shown["drafter"] == "incoai/Qwen3.8-27B-DFlash2"


def test_the_overview(run: Run, base: Path) -> None:
    assert run("settings", "show").out.endswith("no model has settings yet\n")
    write(base, model_settings())
    lines = run("settings", "show").out.splitlines()
    assert lines[0] == f"base folder  {base} (DFLASH2_BASE_PATH)"
    assert "Qwen3.8-27B-4bit          on      incoai/Qwen3.8-27B-DFlash2" in lines
    assert "Aliased                   off     -  (default, alias Bob)" in lines
    shown = json.loads(run("settings", "show", "--json").out)
    assert shown["default_model"] == "Aliased" and shown["base_path_origin"] == "DFLASH2_BASE_PATH"
    assert "--origin: got it without a model" in run("settings", "show", "--origin").error


def test_another_base_folder(run: Run, base: Path, tmp_path: Path) -> None:
    run("settings", "set", "o/m", "top_k=5", "--base-path", tmp_path / "other")
    assert read(tmp_path / "other")["models"] == {"o--m": {"top_k": 5}} and not base.exists()


def test_a_local_model_is_found_again_by_its_name(run: Run, base: Path, tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "far" / "Mine-4bit", TARGET_CONFIGS["qwen3"])
    run("settings", "set", folder, "temperature=0.3", "model_alias=me")
    assert read(base)["models"]["Mine-4bit"] == {"temperature": 0.3, "model_alias": "me"}
    assert read(base, "dflash2_extras.json")["models"]["Mine-4bit"] == {"source": str(folder)}
    assert json.loads(run("settings", "show", "me", "--json").out)["target"] == str(folder)


def test_the_pairing_check_comes_before_saving(run: Run, base: Path, tmp_path: Path) -> None:
    target = config_folder(tmp_path / "t", TARGET_CONFIGS["qwen3"])
    wrong = config_folder(tmp_path / "wrong", drafter_config(hidden_size=128))
    right = config_folder(tmp_path / "right", drafter_config())
    ran = run("settings", "set", target, f"dflash_draft_model={wrong}", "dflash_enabled=on")
    assert ran.code == 1 and "hidden_size: got 128 in the drafter, expected the target's 64" in ran.error
    assert not base.exists()
    assert run("settings", "set", target, f"dflash_draft_model={right}", "dflash_enabled=on").code == 0
    assert read(base)["models"]["t"]["dflash_draft_model"] == str(right)


def test_a_draft_folder_is_saved_as_an_absolute_path(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_folder(tmp_path / "draft", drafter_config())
    monkeypatch.chdir(tmp_path)
    assert run("settings", "set", "o/m", "dflash_draft_model=draft").code == 0
    assert read(base)["models"]["o--m"]["dflash_draft_model"] == str(tmp_path / "draft")


def test_the_checkpoints_own_block_size_is_not_written(run: Run, base: Path) -> None:
    run("settings", "preset", "dflash2", TARGET)
    ran = run("settings", "set", TARGET, "dflash_block_size=8")
    assert "dflash_block_size" not in read(base)["models"][ID]
    assert "8 is the checkpoint's own, so nothing is written" in ran.err
    assert "16 will be cut to 8" in run("settings", "set", TARGET, "dflash_block_size=16").err


REFUSED = [
    (["set", "o/m"], "missing argument 'KEY=VALUE...'"),
    (["set", "o/m", "top_k"], "setting: got 'top_k', expected KEY=VALUE"),
    (["set", "o/m", "nope=1"], "nope: got no such setting"),
    (["set", "o/m", "top_k=-1"], "top_k: got -1, expected an integer >= 0"),
    (["set", "o/m", "mtp_enabled=true"], "mtp_enabled: got an oMLX setting that nothing here uses"),
    (["set", "o/m", "dflash_draft_quant_weight_bits=2"], "dflash_draft_quant_weight_bits: got 2, expected 4 or 8"),
    (["set", "typo", "top_k=1"], "model: got 'typo', expected a folder, a Hub id"),
    (
        ["set", "o/m", "dflash_draft_model=bare"],
        "dflash_draft_model: got 'bare', expected an existing folder or a full",
    ),
    (["set", "o/m", "dflash_draft_model=/no/such"], "dflash_draft_model: got '/no/such', expected an existing folder"),
    (["set", "o/m", "dflash_draft_model=mini"], "dflash_draft_model: got 'mini' for o/m, expected mini with mini only"),
    (["set", "o/m", "dflash_ssd_cache=on", "dflash_in_memory_cache=off"], "dflash_ssd_cache: got true without"),
    (["set", "o/m", "top_k=1", "--base-path", ""], "--base-path: got '', expected at least one character"),
    (["unset", "o/m", "nope"], "nope: got no such setting"),
    (["preset", "other", "o/m"], "preset: got 'other', expected dflash2"),
    (["profile", "save", "o/m", "Bad Name"], "profile: got 'Bad Name', expected at most 32 of"),
    (["nope"], "no such command 'nope'"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(item[0])[:50] for item in REFUSED])
def test_refusals(run: Run, base: Path, arguments: list[str], message: str) -> None:
    ran = run("settings", *arguments)
    assert message in ran.error and ran.code == 2 and ran.out == ""
    assert not (base / "model_settings.json").exists()


def test_unset_needs_a_model_with_settings(run: Run) -> None:
    assert "expected one that has settings" in run("settings", "unset", "o/m", "top_k").error


def test_what_is_for_the_server_is_saved_like_the_rest(run: Run, base: Path) -> None:
    ran = run("settings", "set", "o/m", "is_pinned=on", "ttl_seconds=60")
    assert ran.code == 0 and read(base)["models"]["o--m"] == {"is_pinned": True, "ttl_seconds": 60}


def test_a_bad_value_in_a_file_is_told(run: Run, base: Path) -> None:
    write(base, {"version": 1, "models": {"o--m": {"top_k": "many"}}})
    ran = run("settings", "show", "o/m")
    assert ran.code == 0 and "note: not used: top_k (model): got 'many', expected an integer >= 0" in ran.err
    run("settings", "unset", "o/m", "top_k")
    assert read(base)["models"] == {}


@pytest.mark.parametrize("command", [["show"], ["show", "a"], ["set", "o/m", "top_k=1"], ["preset", "dflash2", TARGET]])
def test_a_damaged_file_stops_every_command_and_can_be_set_aside(run: Run, base: Path, command: list[str]) -> None:
    path = write(base, '{"version": 1, "models": {')
    ran = run("settings", *command)
    assert ran.code == 1 and str(path) in ran.error and "it was left as it is" in ran.error
    assert "hint: " in ran.err and "settings recover" in ran.err
    assert path.read_text() == '{"version": 1, "models": {'
    assert f"{path} is now model_settings.json.damaged-" in run("settings", "recover").out
    assert run("settings", "set", "o/m", "top_k=1").code == 0
    kept = [item for item in base.iterdir() if ".damaged-" in item.name]
    assert [item.read_text() for item in kept] == ['{"version": 1, "models": {']
    assert "nothing to do" in run("settings", "recover").out


def test_another_version_is_told(run: Run, base: Path) -> None:
    write(base, {"version": 7, "models": {}})
    assert "got version 7, expected 1: read as far as it is understood" in run("settings", "show").err


def test_profiles(run: Run, base: Path) -> None:
    run("settings", "set", "o/m", "temperature=0.5")
    assert run("settings", "profile", "save", "o/m", "warm").out == "o--m: profile warm saved\n"
    run("settings", "set", "o/m", "temperature=0.1")
    assert run("settings", "profile", "list", "o/m").out == "warm (active, modified)\n"
    assert "profile  warm (modified)" in run("settings", "show", "o/m").out
    assert run("settings", "profile", "apply", "o/m", "warm").code == 0
    assert read(base)["models"]["o--m"]["temperature"] == 0.5
    assert run("settings", "profile", "list", "o/m").out == "warm (active)\n"
    assert "Temperature                        0.5" in run("settings", "profile", "show", "o/m", "warm").out
    held = json.loads(run("settings", "profile", "show", "o/m", "warm", "--json").out)
    assert held["settings"] == {"temperature": 0.5}
    assert run("settings", "profile", "remove", "o/m", "warm").code == 0
    assert run("settings", "profile", "list", "o/m").out == "o--m has no profiles\n"
    assert "profile: got 'warm'" in run("settings", "profile", "apply", "o/m", "warm").error


def test_a_profile_is_renamed_exposed_and_hidden(run: Run, base: Path) -> None:
    run("settings", "set", "o/m", "temperature=0.5")
    run("settings", "profile", "save", "o/m", "warm")
    assert run("settings", "profile", "rename", "o/m", "warm", "hot").out == "o--m: profile warm renamed to hot\n"
    assert run("settings", "profile", "list", "o/m").out == "hot (active)\n"
    assert run("settings", "profile", "expose", "o/m", "hot", "--as", "fast").out == "o--m: profile hot exposed\n"
    held = json.loads(run("settings", "profile", "show", "o/m", "hot", "--json").out)
    assert (held["expose_as_model"], held["api_name"]) == (True, "fast")
    assert json.loads(run("settings", "show", "o/m:fast", "--json").out)["profile"] == "hot"
    assert run("settings", "profile", "hide", "o/m", "hot").out == "o--m: profile hot hidden\n"
    assert json.loads(run("settings", "profile", "show", "o/m", "hot", "--json").out)["expose_as_model"] is False
    assert "profile: got 'warm'" in run("settings", "profile", "rename", "o/m", "warm", "cold").error
    assert "profile: got 'warm'" in run("settings", "profile", "expose", "o/m", "warm").error
    assert "expected at most 32 of" in run("settings", "profile", "expose", "o/m", "hot", "--as", "Not Good").error


def test_an_exposed_profile_is_shown_and_not_changed(run: Run, base: Path) -> None:
    run("settings", "set", "o/m", "temperature=0.5", "top_k=3")
    exposed = {"settings": {"temperature": 0.9}, "expose_as_model": True, "api_name": "hot"}
    write(base, {"version": 1, "profiles": {"o--m": {"h": exposed}}}, "model_profiles.json")
    shown = json.loads(run("settings", "show", "o/m:hot", "--json", "--origin").out)
    assert (shown["settings"]["temperature"], shown["origins"]["temperature"]) == (0.9, "profile")
    assert shown["settings"]["top_k"] == 3
    assert "and its profile 'h', expected the model alone (o--m)" in run("settings", "set", "o/m:hot", "top_k=1").error


def test_no_command_reads_a_real_home(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DFLASH2_BASE_PATH")
    run("settings", "set", "o/m", "top_k=1")
    assert (home / ".dflash2-mlx" / "model_settings.json").is_file()


def test_a_preset_says_when_the_only_drafter_is_one_of_version_1(run: Run, base: Path) -> None:
    ran = run("settings", "preset", "dflash2", "mlx-community/Qwen3-4B-4bit")
    assert ran.code == 0 and "is a DFlash drafter (version 1): no DFlash 2 drafter is on record" in ran.err
    record = read(base)["models"]["mlx-community--Qwen3-4B-4bit"]
    assert record["dflash_draft_model"] == "z-lab/Qwen3-4B-DFlash-b16"


def test_every_registry_pair_can_be_preset(run: Run, base: Path) -> None:
    for pair in registry.known_pairs():
        assert run("settings", "preset", "dflash2", pair.target.id or f"x/{pair.target.name}").code == 0
    records = read(base)["models"].values()
    assert all((record["dflash_block_size"], record["dflash_verify_mode"]) == (5, "dflash") for record in records)

"""`models list`, `search` and `info`, and whether a model fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from dflash2_app.commands import models as commands
from dflash2_app.commands import models_view, options
from dflash2_app.models import hub as hub_calls
from dflash2_app.models import memory, registry
from dflash2_app.settings.paths import find_base
from tests.published import DFLASH2
from tests.tiny import TARGET_CONFIGS, save_drafter, save_target

from ..conftest import Run
from . import Hub
from .conftest import DRAFTER, MINI, TARGET, Published, names, shown
from .test_pull import CONFIG, cache, snapshot

NAMES = ["tiny/a-4bit", "tiny/b-8bit", "other/c-4bit"]


# Search


@pytest.fixture
def shelf(hub: Hub) -> Hub:
    for number, name in enumerate(NAMES):
        day = f"2026-10-0{number + 1}T00:00:00.000Z"
        tags = ["mlx", "4-bit"] if "4bit" in name else ["mlx"]
        hub.add(name, {"config.json": CONFIG}, tags=tags, downloads=10 * number, likes=9 - number, last_modified=day)
    hub.add("tiny/torch", {"config.json": CONFIG}, downloads=1000, license="mit")
    return hub


def test_search_shows_what_mlx_reads_most_downloaded_first(run: Run, shelf: Hub) -> None:
    assert names(run, "search") == NAMES[::-1]
    assert names(run, "search", "--any-format") == ["tiny/torch", *NAMES[::-1]]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["4bit"], ["other/c-4bit", "tiny/a-4bit"]),
        (["tiny 4bit"], ["tiny/a-4bit"]),
        (["--author", "other"], ["other/c-4bit"]),
        (["--tag", "4-bit"], ["other/c-4bit", "tiny/a-4bit"]),
        (["--sort", "likes"], NAMES),
        (["--sort", "updated"], NAMES[::-1]),
        (["--sort", "created", "--limit", "1"], NAMES[-1:]),
        (["--sort", "trending", "--limit", "2"], NAMES[:2]),
    ],
)
def test_search_filters_and_sorts(run: Run, shelf: Hub, flags: list[str], expected: list[str]) -> None:
    assert names(run, "search", *flags) == expected


def test_search_says_when_there_is_nothing(run: Run, shelf: Hub) -> None:
    ran = run("models", "search", "torch")
    assert (ran.code, ran.out) == (0, "") and "nothing found; --any-format also shows" in ran.err
    assert shown(run, "search", "torch", "--any-format")["models"][0]["license"] == "mit"


def test_search_refuses(run: Run, shelf: Hub) -> None:
    assert run("models", "search", "--sort", "size").error.startswith("--sort: got 'size', expected trending or")
    assert run("models", "search", "--limit", "0").error.startswith("--limit: got '0'")
    shelf.stop()
    assert "cannot be reached" in run("models", "search").error


def test_the_words_of_options_are_those_of_the_modules() -> None:
    assert tuple(hub_calls.SORTS) == commands.SORT_NAMES
    assert options.DEFAULT_CONTEXT == memory.DEFAULT_CONTEXT


# List


def test_list_names_every_place(run: Run, hub: Hub, pair: Published, home: Path, tmp_path: Path) -> None:
    run("models", "pull", TARGET, "--drafter", DRAFTER)
    base = find_base().folder
    two_levels = save_target(base / "models" / "owner" / "plain", "qwen3", tokenizer=MINI / "target")
    one_level = save_drafter(base / "models" / "drafter")
    (base / "models" / ".hidden").mkdir()
    adapter = save_target(base / "models" / "adapter", "qwen3")
    (adapter / "adapter_config.json").write_text("{}")
    assert names(run, "list") == [DRAFTER, TARGET, str(one_level), str(two_levels)]
    assert names(run, "list", "--kind", "drafter") == [DRAFTER, str(one_level)]
    found = {item["name"]: item for item in shown(run, "list")["models"]}
    target = found[TARGET]
    assert (target["kind"], target["family"], target["quantization"]) == ("target", "Qwen3.5", "4-bit group 32")
    assert target["memory"]["fits"] is True and target["problem"] is None
    assert target["size_bytes"] == sum(path.stat().st_size for path in pair.target.iterdir())
    assert (found[str(one_level)]["block_size"], found[str(one_level)]["source"]) == (5, "folder")
    assert found[DRAFTER]["id"] == "tiny--drafter" and found[str(two_levels)]["id"] == "plain"


def test_list_reads_omlx_folders(run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, folder = tmp_path / "omlx", save_drafter(tmp_path / "elsewhere" / "drafter")
    base.mkdir()
    for settings in (
        {"model_dirs": [str(folder.parent)]},
        {"model_dir": str(folder.parent)},
        {"model_dirs": [str(folder)]},
    ):
        (base / "settings.json").write_text(json.dumps({"version": "1.0", "model": settings}))
        assert names(run, "list", "--base-path", base) == [str(folder)]
    monkeypatch.setenv("DFLASH2_BASE_PATH", str(base))
    assert names(run, "list") == [str(folder)]
    for text in ("{", "[" * 100_000, '{"model": {"model_dirs": "x"}}'):
        (base / "settings.json").write_text(text)
        ran = run("models", "list")
        assert ran.code == 0 and f"note: {base / 'settings.json'}: got an unreadable file" in ran.err


def test_list_tells_what_is_wrong(run: Run, home: Path) -> None:
    top = find_base().folder / "models"
    damaged = save_drafter(top / "damaged")
    (damaged / "config.json").write_text("{")
    deep = save_drafter(top / "deep")
    (deep / "config.json").write_text("[" * 100_000)
    save_drafter(top / "foreign")
    (top / "foreign" / "config.json").write_text('{"model_type": "bert"}')
    cut = save_drafter(top / "cut")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors", "c": "model-3.safetensors"}}
    (cut / "model.safetensors.index.json").write_text(json.dumps(index))
    folded = save_drafter(top / "folded")
    (folded / "model.safetensors.index.json").write_text("[" * 100_000)
    empty = save_drafter(top / "empty")
    (empty / "model.safetensors").unlink()
    save_drafter(top / "again" / "cut")
    ran = run("models", "list")
    assert ran.code == 0
    for words in (
        f"{damaged}: got an unreadable config.json",
        f"{deep}: got an unreadable config.json",
        f"{top / 'foreign'}: model_type: got 'bert'",
        f"{folded}: got an unreadable model.safetensors.index.json",
        f"{cut}: got 1 of 3 weight files, expected model-1.safetensors, model-3.safetensors too",
        f"{empty}: got no model*.safetensors, expected weights",
        f"{cut}: got a second model called cut, expected one",
    ):
        assert words in ran.err


def test_list_of_nothing_says_where_it_looked(run: Run, hub: Hub, home: Path) -> None:
    ran = run("models", "list")
    assert (ran.code, ran.out) == (0, "")
    assert str(cache()) in ran.err and str(find_base().folder / "models") in ran.err


def test_what_another_program_downloaded_is_ours_too(run: Run, hub: Hub, pair: Published) -> None:
    snapshot_download(DRAFTER)
    assert names(run, "list") == [DRAFTER]
    assert run("models", "verify").code == 0
    assert shown(run, "pull", DRAFTER)["models"][0]["fetched_bytes"] == 0
    assert hub.count("/storage/") == 1


def test_list_suggests_and_counts_the_drafter(
    run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry.SuggestedDrafter(DRAFTER, "made for it")
    monkeypatch.setattr(registry, "drafter_for", lambda *about: found)
    run("models", "pull", TARGET, "--drafter", "none")
    item = shown(run, "list")["models"][0]
    assert (item["drafter"], item["drafter_is_here"]) == (DRAFTER, False)
    assert item["memory"]["estimate_bytes"]["drafter_weights"] == 0
    assert f"{DRAFTER} (not here)" in run("models", "list").out
    run("models", "pull", TARGET)
    item = next(one for one in shown(run, "list")["models"] if one["name"] == TARGET)
    assert item["drafter_is_here"] and item["memory"]["estimate_bytes"]["drafter_weights"] > 0


def test_a_table_on_a_terminal(run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[TARGET].license = "\x1b[2Jmit [bold]x"
    monkeypatch.setattr(models_view, "is_terminal", lambda stream: True)
    lines = run("models", "search").out.splitlines()
    assert lines[0].split() == ["model", "downloads", "likes", "updated", "licence", "gated"]
    assert lines[2].split() == [TARGET, "120", "7", "2026-10-01", "␛[2Jmit", "[bold]x"]


# Info


def test_info_of_the_hub_and_of_this_machine(run: Run, hub: Hub, pair: Published) -> None:
    before = shown(run, "info", TARGET)
    assert before["path"] is None and before["download_bytes"] == before["size_bytes"] > 0
    assert (before["license"], before["likes"], before["gated"]) == ("apache-2.0", 7, False)
    run("models", "pull", TARGET)
    after = shown(run, "info", TARGET)
    assert after["path"] == str(snapshot(hub, TARGET)) and after["download_bytes"] == 0
    assert after["newer_on_hub"] is False
    hub.change(TARGET, README__md=b"new")
    assert shown(run, "info", TARGET)["newer_on_hub"] is True
    text = run("models", "info", TARGET).out
    assert "the Hub has a newer commit" in text and "to fetch    3 B" in text and "memory      needs" in text
    hub.stop()
    offline = run("models", "info", TARGET)
    assert offline.code == 0 and "note: shown from this machine alone: " in offline.err
    assert "family      Qwen3.5" in offline.out


def test_info_of_a_folder_and_of_nothing(run: Run, hub: Hub, home: Path) -> None:
    folder = save_drafter(find_base().folder / "models" / "drafter")
    for name in (str(folder), "drafter"):
        assert shown(run, "info", name)["block_size"] == 5
    assert run("models", "info", "nothing").error.startswith("MODEL: got 'nothing', expected a Hub id, or a model")
    assert run("models", "info", "tiny/nothing").error.startswith("tiny/nothing: the Hub has no such repository")


def test_info_of_what_cannot_be_used(run: Run, hub: Hub) -> None:
    hub.add("tiny/bert", {"config.json": b'{"model_type": "bert"}'}, gated=False)
    facts = shown(run, "info", "tiny/bert")
    assert facts["kind"] == "other" and facts["memory"] is None and "model_type: got 'bert'" in facts["problem"]


def test_info_of_what_may_not_be_read_or_has_no_weights(run: Run, hub: Hub) -> None:
    hub.add("tiny/gated", {"config.json": CONFIG, "model.safetensors": b"x"}, gated=True, license="llama3")
    facts = shown(run, "info", "tiny/gated")
    assert (facts["kind"], facts["gated"], facts["license"]) == ("unknown", True, "llama3")
    assert facts["problem"] == "tiny/gated: its owner asks for an agreement before download"
    hub.add("tiny/gguf", {"config.json": CONFIG, "model.gguf": b"x"})
    text = run("models", "info", "tiny/gguf").out
    assert "kind        target" in text and "problem     tiny/gguf: got .gguf, expected config.json and" in text


# Memory


def test_what_does_not_fit_is_refused_with_numbers_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash2_mlx as d2
    from dflash2_app.errors import AppError

    target, drafter = TARGET_CONFIGS["qwen3_5"], DFLASH2["Qwen3.8-27B"].raw
    gate = d2.Precision()
    whole = memory.check_fit(target, drafter, 8192, precision=gate, limit=10**12)
    assert whole.fits is True and whole.longest_context is None
    memory.require_fit("x", whole)
    assert whole.estimate is not None
    limit = whole.estimate.total - 1
    close = memory.check_fit(target, drafter, 8192, precision=gate, limit=limit)
    assert close.fits is False and close.longest_context == 7168
    assert d2.memory_estimate(target, drafter, 7168, precision=gate).total <= limit
    monkeypatch.setattr(memory, "pair_that_fits", lambda size: ("small/target", "small/drafter"))
    with pytest.raises(
        AppError, match=r"^x: got 4\.\d GB at 8192 tokens of context \(target .*, drafter 4\.\d"
    ) as caught:
        memory.require_fit("x", close)
    assert caught.value.hint == (
        "what needs less: a context of 7168 tokens, or --draft-bits 4, or small/target with small/drafter, "
        "or the same model in fewer bits"
    )
    never = memory.check_fit(target, drafter, 8192, precision=gate, limit=1000)
    assert never.longest_context == 0 and "a context of" not in memory.what_fits(never)


def test_what_cannot_be_estimated_is_not_refused() -> None:
    fit = memory.check_fit({"model_type": "bert"}, None, limit=10**9)
    assert fit.fits is None and "model_type: got 'bert'" in str(fit.reason)
    memory.require_fit("x", fit)


def test_a_pair_is_refused_by_name_before_it_is_loaded(run: Run, hub: Hub, pair: Published, tmp_path: Path) -> None:
    from dflash2_app.errors import AppError

    run("models", "pull", TARGET, "--drafter", DRAFTER)
    for target, drafter in ((TARGET, DRAFTER), (str(pair.target), str(pair.drafter))):
        fit = memory.require_local_fit(target, drafter, limit=10**9)
        assert fit.fits is True and fit.estimate is not None and fit.estimate.drafter_weights > 0
        with pytest.raises(AppError, match=f"^{target}: got 0.1 GB at 8192 tokens"):
            memory.require_local_fit(target, drafter, limit=10**6)
    assert memory.require_local_fit("tiny/elsewhere", None, limit=1).fits is None
    assert memory.require_local_fit(TARGET, None, limit=10**9).estimate.drafter_weights == 0


@pytest.mark.parametrize(
    ("license", "forbids"),
    [("cc-by-nc-4.0", True), ("CC BY-NC-ND 4.0", True), ("apache-2.0", False), (None, False), ("mit", False),
     ("creativeml-openrail-m", False), ("qwen-research", True)],
)  # fmt: skip
def test_licences_that_forbid_commercial_use(license: str | None, forbids: bool) -> None:
    assert registry.is_non_commercial(license) is forbids


def test_words_that_are_no_command(run: Run) -> None:
    ran = run("models", "fetch")
    assert ran.code == 2 and "hint: `dflash2-mlx models --help` lists the options" in ran.err
    ran = run("models", "list", "--kind", "x")
    assert ran.error == "--kind: got 'x', expected all or target or drafter or other"
    assert "hint: `dflash2-mlx models list --help` lists the options" in ran.err
    assert run("models").out.count("pull") >= 1
    assert constants.HF_HUB_OFFLINE

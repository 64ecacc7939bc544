"""`models pull` against the stand-in: what is fetched, what is shown, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from dflash2_app.models import memory, pull, registry
from tests.tiny import TARGET_CONFIGS, save_drafter

from ..conftest import Run
from . import Hub, repos
from .conftest import DRAFTER, MINI, TARGET, Published

CONFIG = json.dumps(TARGET_CONFIGS["qwen3"]).encode()


def cache() -> Path:
    return Path(constants.HF_HUB_CACHE)


def snapshot(hub: Hub, repo_id: str) -> Path:
    folder = cache() / ("models--" + repo_id.replace("/", "--"))
    return folder / "snapshots" / hub.repos[repo_id].commit()


def test_target_and_drafter_together_and_nothing_else(run: Run, hub: Hub, pair: Published) -> None:
    ran = run("models", "pull", TARGET, "--drafter", DRAFTER)
    assert ran.code == 0, ran.err
    assert ran.out == f"{TARGET}\t{snapshot(hub, TARGET)}\n{DRAFTER}\t{snapshot(hub, DRAFTER)}\n"
    for folder, published in ((snapshot(hub, TARGET), pair.target), (snapshot(hub, DRAFTER), pair.drafter)):
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            path.name: path.read_bytes() for path in published.iterdir()
        }
        assert (folder.parent.parent / "refs" / "main").read_text() == folder.name
        assert not list((folder.parent.parent / "blobs").glob("*.incomplete"))
    assert f"{DRAFTER}: its licence is cc-by-nc-4.0: not for commercial use" in ran.err
    assert hub.count("pytorch_model") == hub.count("original") == hub.count("consolidated") == 0


def test_the_pair_then_works_offline(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub finds what was pulled, and so does the engine."""
    hub.add("small/target", MINI / "target")
    hub.add("small/drafter", MINI / "drafter")
    assert run("models", "pull", "small/target", "--drafter", "small/drafter").code == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.stop()
    assert Path(snapshot_download("small/target")) == snapshot(hub, "small/target")
    pair = ["--model", "small/target", "--drafter", "small/drafter"]
    ran = run("generate", "import os", *pair, "--max-tokens", "4", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["drafter"] == "small/drafter" and json.loads(ran.out)["mode"] == "dflash2"


def test_huggingface_hub_finds_nothing_to_do(run: Run, hub: Hub, pair: Published) -> None:
    run("models", "pull", TARGET)
    before = hub.count("/storage/")
    snapshot_download(TARGET, allow_patterns=["*.json", "model.safetensors"])
    assert hub.count("/storage/") == before


def test_a_second_pull_fetches_nothing(run: Run, hub: Hub, pair: Published) -> None:
    run("models", "pull", TARGET)
    before = hub.count("/resolve/") - hub.count("/resolve/" + hub.repos[TARGET].commit() + "/config.json")
    ran = run("models", "pull", TARGET, "--json")
    shown = json.loads(ran.out)["models"]
    assert [item["fetched_bytes"] for item in shown] == [0] and shown[0]["license"] == "apache-2.0"
    assert f"{TARGET}: everything is here" in ran.err
    assert hub.count("/resolve/") - hub.count("/resolve/" + hub.repos[TARGET].commit() + "/config.json") == before


def test_a_new_commit_fetches_only_what_changed(run: Run, hub: Hub, pair: Published) -> None:
    run("models", "pull", TARGET)
    old = snapshot(hub, TARGET)
    hub.change(TARGET, README__md=b"A better model.\n")
    ran = run("models", "pull", TARGET, "--json")
    assert json.loads(ran.out)["models"][0]["fetched_bytes"] == len(b"A better model.\n")
    assert (snapshot(hub, TARGET) / "README.md").read_bytes() == b"A better model.\n"
    assert (old / "README.md").read_bytes() == b"A model.\n", "the old commit stays"
    assert run("models", "info", TARGET, "--json").code == 0


def test_the_known_drafter_comes_along(run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry.SuggestedDrafter(DRAFTER, "made for it")
    asked: list[object] = []
    monkeypatch.setattr(registry, "drafter_for", lambda *about: (asked.append(about), found)[1])
    ran = run("models", "pull", TARGET)
    assert ran.code == 0 and f"note: with it comes {DRAFTER}: made for it" in ran.err
    assert snapshot(hub, DRAFTER).is_dir()
    assert asked == [(TARGET, json.loads((pair.target / "config.json").read_text()))]
    none = run("models", "pull", TARGET, "--drafter", "none", "--json")
    assert [item["name"] for item in json.loads(none.out)["models"]] == [TARGET]


def test_without_a_known_drafter_it_says_so(run: Run, hub: Hub, pair: Published) -> None:
    assert f"no drafter is known for {TARGET}: it decodes plainly" in run("models", "pull", TARGET).err


def refused(hub: Hub, repo_id: str) -> bool:
    """Nothing of a repository's weights was asked for, and nothing is in the cache."""
    return hub.count("/storage/") == 0 and not (cache() / ("models--" + repo_id.replace("/", "--"))).exists()


def test_a_drafter_for_another_target_is_refused_before_anything_is_fetched(
    run: Run, hub: Hub, pair: Published, tmp_path: Path
) -> None:
    hub.add("tiny/other", save_drafter(tmp_path / "other", hidden_size=128))
    ran = run("models", "pull", TARGET, "--drafter", "tiny/other")
    assert ran.code == 1 and ran.error.startswith("tiny/other for tiny/target-4bit: hidden_size: got 128")
    assert refused(hub, TARGET) and refused(hub, "tiny/other")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.gguf": b"x", "README.md": b""}, "tiny/bad: got .gguf, expected config.json and safetensors files"),
        ({"config.json": CONFIG}, "tiny/bad: got no weights, expected config.json and safetensors files"),
        ({"config.json": b"{", "model.safetensors": b"x"}, "tiny/bad: got an unreadable config.json"),
        ({"config.json": b"[]", "model.safetensors": b"x"}, "tiny/bad: got a config.json of type list"),
        ({"config.json": b'{"model_type": "bert"}', "model.safetensors": b"x"}, "tiny/bad: model_type: got 'bert'"),
    ],
)
def test_what_cannot_be_used_is_not_fetched(run: Run, hub: Hub, files: dict[str, bytes], words: str) -> None:
    hub.add("tiny/bad", files)
    ran = run("models", "pull", "tiny/bad")
    assert ran.code == 1 and ran.error.startswith(words)
    assert refused(hub, "tiny/bad")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["one"], 2, "MODEL: got 'one', expected a Hub id like owner/name"),
        (["../x"], 2, "MODEL: got '../x'"),
        (["a/b/c"], 2, "MODEL: got 'a/b/c'"),
        ([TARGET, "--drafter", "x"], 2, "MODEL: got 'x'"),
        ([TARGET, "--drafter", TARGET], 1, f"{TARGET}: got a target, expected a drafter"),
        ([DRAFTER, "--drafter", DRAFTER], 2, f"--drafter: got '{DRAFTER}', expected none"),
        ([TARGET, "--context", "0"], 2, "--context: got '0'"),
        (["tiny/nothing"], 1, "tiny/nothing: the Hub has no such repository, or it is private"),
    ],
)
def test_bad_arguments(run: Run, pair: Published, arguments: list[str], code: int, words: str) -> None:
    ran = run("models", "pull", *arguments)
    assert (ran.code, ran.out) == (code, "") and ran.error.startswith(words)


def test_a_full_disk_is_seen_before_the_first_byte(
    run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "free_bytes", lambda folder: pull.SPARE_BYTES + 1000)
    ran = run("models", "pull", TARGET)
    assert ran.code == 1 and ran.error.startswith("disk: got 268.4 MB free at ") and f"for {TARGET}" in ran.error
    assert refused(hub, TARGET)
    monkeypatch.setattr(pull, "free_bytes", lambda folder: 10**12)
    assert run("models", "pull", TARGET).code == 0
    monkeypatch.setattr(pull, "free_bytes", lambda folder: 0)
    assert run("models", "pull", TARGET).code == 0, "nothing is missing any more"


def test_a_model_that_does_not_fit_is_told(run: Run, pair: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., memory.Fit] = memory.check_fit
    monkeypatch.setattr(memory, "check_fit", lambda *about: real(*about, limit=40_000_000))
    ran = run("models", "pull", TARGET, "--drafter", DRAFTER)
    assert ran.code == 0
    assert f"note: {TARGET} does not fit this machine: got 0.1 GB at 8192 tokens of context" in ran.err
    assert "what needs less: a context of 3072 tokens, or --draft-bits 4" in ran.err


def test_a_page_that_would_write_elsewhere(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("tiny/evil", {"config.json": CONFIG, "model.safetensors": b"x", "../../out.json": b"{}"})
    assert run("models", "pull", "tiny/evil").code == 0
    assert not (cache().parent / "out.json").exists() and hub.count("out.json") == 0
    monkeypatch.setattr(repos, "blob_id", lambda content: "../../../evil")
    hub.add("tiny/worse", {"config.json": CONFIG, "model.safetensors": b"x"})
    ran = run("models", "pull", "tiny/worse")
    assert ran.code == 1 and ran.error.startswith("tiny/worse: got config.json without size and hash")

"""`models remove` and `verify`: what leaves the cache, and what damage is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash2_app.commands import models as commands

from ..conftest import Run
from . import Hub
from .conftest import DRAFTER, TARGET, Published, names, shown
from .test_pull import CONFIG, cache, snapshot

# Remove


def test_remove_asks_and_frees_only_what_nobody_needs(run: Run, hub: Hub, pair: Published) -> None:
    run("models", "pull", TARGET)
    old = snapshot(hub, TARGET)
    hub.change(TARGET, README__md=b"new")
    run("models", "pull", TARGET)
    new = snapshot(hub, TARGET)
    refused = run("models", "remove", TARGET)
    assert refused.code == 2 and refused.error == "--yes: got no terminal to ask on, expected --yes" and old.is_dir()
    one = shown(run, "remove", TARGET, "--revision", old.name[:8], "--yes")
    assert one["freed_bytes"] == len(b"A model.\n"), "the other files are those of the newer commit too"
    assert not old.exists() and (new / "model.safetensors").is_file()
    assert run("models", "remove", TARGET, "--revision", "beef", "-y").error.startswith("--revision: got 'beef'")
    run("models", "pull", DRAFTER)
    both = run("models", "remove", TARGET, DRAFTER, "--yes")
    assert both.code == 0 and f"removed {TARGET}, {DRAFTER}: " in both.err
    assert not list(cache().glob("models--*"))
    gone = run("models", "remove", TARGET, "--yes")
    assert gone.code == 1 and gone.error.startswith(f"{TARGET}: got no such model in {cache()}")


@pytest.mark.parametrize(
    ("answer", "gone"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_remove_takes_a_yes_for_a_yes(
    run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch, answer: str, gone: bool
) -> None:
    run("models", "pull", DRAFTER)
    monkeypatch.setattr(commands, "is_terminal", lambda stream: True)
    ran = run("models", "remove", DRAFTER, stdin=answer)
    assert f"remove {DRAFTER} (343.9 kB)? [y/N] " in ran.err
    assert ran.code == (0 if gone else 1) and snapshot(hub, DRAFTER).exists() is not gone
    if not gone:
        assert "error: nothing was removed" in ran.err


def test_remove_keeps_another_repository_with_the_same_commit(
    run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renamed or copied repository has the commits of the old one."""
    commit = hub.repos[TARGET].commit()
    for name in ("tiny/copy", "tiny/another"):
        monkeypatch.setattr(hub.add(name, pair.target), "commit", lambda number=-1: commit)
    for name in (TARGET, "tiny/copy", "tiny/another"):
        assert run("models", "pull", name, "--drafter", "none").code == 0
    for name in ("tiny/copy", TARGET):
        assert run("models", "remove", name, "--yes").code == 0
        assert not (cache() / ("models--" + name.replace("/", "--"))).exists()
    assert names(run, "list") == ["tiny/another"]


def test_remove_of_an_interrupted_pull(run: Run, hub: Hub) -> None:
    hub.add("tiny/big", {"config.json": CONFIG, "model.safetensors": bytes(500_000)})
    hub.cut("model.safetensors", after=100_000)
    hub.cut("model.safetensors", after=0, times=4)
    assert run("models", "pull", "tiny/big").code == 1
    assert shown(run, "remove", "tiny/big", "--yes")["freed_bytes"] > 0
    assert not list(cache().glob("models--*"))


@pytest.mark.parametrize("name", ["one", "/etc", "../x", "a/.."])
def test_remove_takes_hub_ids_only(run: Run, hub: Hub, name: str) -> None:
    ran = run("models", "remove", name, "--yes")
    assert ran.code == 2 and ran.error == f"MODEL: got {name!r}, expected a Hub id like owner/name"


# Verify


def test_verify_finds_damage_offline_and_pull_repairs_it(
    run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("models", "pull", TARGET, "--drafter", DRAFTER)
    asked = len(hub.seen)
    good = run("models", "verify")
    assert good.code == 0 and [line.split("\t")[:2] for line in good.out.splitlines()] == [
        [DRAFTER, "good"],
        [TARGET, "good"],
    ]
    weights, config = (snapshot(hub, TARGET) / name for name in ("model.safetensors", "config.json"))
    blob = weights.resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    config.resolve().write_bytes(config.read_bytes() + b" ")
    ran = run("models", "verify", TARGET, "--json")
    assert ran.code == 1 and ran.error == f"{TARGET}: damaged or incomplete"
    found = json.loads(ran.out)["models"][0]
    assert [bad["name"] for bad in found["bad"]] == ["config.json", "model.safetensors"] and not found["good"]
    assert f"{TARGET}: model.safetensors: got checksum " in ran.err
    assert len(hub.seen) == asked, "nothing was asked of the Hub"
    assert blob.exists(), "nothing is deleted unasked"
    deleted = run("models", "verify", TARGET, "--delete-damaged")
    assert deleted.code == 1 and "2 files were deleted" in deleted.error and not blob.exists()
    assert run("models", "pull", TARGET, "--drafter", "none").code == 0
    assert run("models", "verify").code == 0


def test_verify_names_missing_files(run: Run, hub: Hub, pair: Published) -> None:
    run("models", "pull", TARGET)
    (snapshot(hub, TARGET) / "model.safetensors").resolve().unlink()
    ran = run("models", "verify", TARGET)
    assert ran.code == 1 and f"{TARGET}: model.safetensors: got no file " in ran.err
    assert run("models", "verify", "tiny/nothing").error.startswith("tiny/nothing: got no finished model in the cache")


def test_a_cache_without_links(run: Run, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that knows no links files lie in the snapshot; hashes are then the Hub's."""

    def impossible(self: Path, target: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "symlink_to", impossible)
    files = {path.name: path.read_bytes() for path in pair.target.iterdir()}
    hub.add("tiny/twins", {**files, "copy.json": files["config.json"]})
    assert run("models", "pull", "tiny/twins").code == 0
    folder = snapshot(hub, "tiny/twins")
    assert {path.name for path in folder.iterdir()} == {*files, "copy.json"}
    assert not any(path.is_symlink() for path in folder.iterdir()) and not list((folder.parents[1] / "blobs").iterdir())
    assert run("models", "verify", "tiny/twins").code == 0
    again = shown(run, "pull", "tiny/twins")
    assert again["models"][0]["fetched_bytes"] == 0
    (folder / "config.json").write_bytes(b"{}")
    assert run("models", "verify", "tiny/twins").code == 1
    hub.stop()
    ran = run("models", "verify", "tiny/twins")
    assert ran.code == 0 and "got no checksum for" in ran.err

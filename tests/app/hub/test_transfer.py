"""What the network does to a pull (CK-24): no half file under its final name, and nothing fetched twice."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest
from huggingface_hub import constants, scan_cache_dir

from dflash2_app.models import transfer

from ..conftest import Run, environment, spawn
from . import Hub
from .conftest import TARGET, Published
from .repos import sha256
from .test_pull import CONFIG, cache, snapshot

BIG = os.urandom(3_000_000)
OTHER = os.urandom(3_000_000)
REPO = "tiny/big"
PULL = ("models", "pull", REPO)


@pytest.fixture
def big(hub: Hub) -> Iterator[Hub]:
    """A repository with one weight file of three pieces."""
    hub.add(REPO, {"config.json": CONFIG, "model.safetensors": BIG})
    yield hub
    assert_nothing_half(hub)


def blobs() -> Path:
    return cache() / "models--tiny--big" / "blobs"


def partial(content: bytes = BIG) -> Path:
    return blobs() / f"{sha256(content)}.incomplete"


def assert_nothing_half(hub: Hub) -> None:
    """Whatever has a final name is whole, and huggingface_hub sees no damage."""
    contents = {sha256(content): content for files in hub.repos[REPO].history for content in files.values()}
    for path in blobs().glob("*"):
        if path.suffix != ".incomplete" and len(path.name) == 64:
            assert path.read_bytes() == contents[path.name]
    if cache().is_dir():
        assert not scan_cache_dir(cache()).warnings


def ranges(hub: Hub) -> list[str | None]:
    """The ranges asked of the big file, in order."""
    return [seen.headers.get("range") for seen in hub.seen if "/storage/" in seen.path]


def assert_here(hub: Hub) -> None:
    assert (snapshot(hub, REPO) / "model.safetensors").read_bytes() == hub.repos[REPO].history[-1]["model.safetensors"]
    assert not list(blobs().glob("*.incomplete"))


def test_a_cut_connection_goes_on_where_it_was_cut(run: Run, big: Hub) -> None:
    big.cut("model.safetensors", after=1_500_000)
    ran = run(*PULL)
    assert ran.code == 0, ran.err
    assert "model.safetensors: http://127.0.0.1" in ran.err and "trying again in 0 s" in ran.err
    first, second = ranges(big)
    assert first is None and second is not None and 0 < int(second.removeprefix("bytes=").rstrip("-")) <= 1_500_000
    assert_here(big)


def test_cut_ten_times_but_further_each_time(run: Run, big: Hub) -> None:
    big.cut("model.safetensors", after=300_000, times=9)
    assert run(*PULL).code == 0
    assert len(ranges(big)) == 10
    assert_here(big)


def test_an_interrupted_pull_goes_on_in_the_next_run(run: Run, big: Hub) -> None:
    big.cut("model.safetensors", after=2_000_000)
    big.cut("model.safetensors", after=0, times=4)
    ran = run(*PULL)
    assert ran.code == 1 and ran.error.startswith("tiny/big: http://127.0.0.1")
    left = partial().stat().st_size
    assert 0 < left <= 2_000_000 and not snapshot(big, REPO).exists()
    everything = sum(path.stat().st_size for path in blobs().glob("*.incomplete"))  # small files may be unfinished too
    listed = run("models", "list")
    assert f"tiny/big: an interrupted pull left {everything} bytes" in listed.err and listed.out == ""
    unfinished = "tiny/big: got no finished model in the cache (an interrupted pull)"
    assert run("models", "verify", REPO).error.startswith(unfinished)
    again = run(*PULL)
    assert again.code == 0 and "going on after" in again.err
    assert ranges(big)[-1] == f"bytes={left}-"
    assert_here(big)


def test_a_file_that_changed_meanwhile_begins_anew(run: Run, big: Hub) -> None:
    big.cut("model.safetensors", after=2_000_000)
    big.cut("model.safetensors", after=0, times=4)
    assert run(*PULL).code == 1 and partial().exists()
    big.change(REPO, model__safetensors=OTHER)
    assert run(*PULL).code == 0
    assert ranges(big)[-1] is None, "resumed only for the same ETag"
    assert_here(big)


def test_an_etag_that_is_not_the_pages(run: Run, big: Hub) -> None:
    big.rename("model.safetensors", "f" * 64)
    ran = run(*PULL)
    assert ran.code == 1 and f"model.safetensors: got ETag {'f' * 64}, expected {sha256(BIG)}" in ran.error
    assert not partial().exists() and ranges(big) == [None]


@pytest.mark.parametrize("content", [BIG[:-1], BIG + b"!"])
def test_a_wrong_size(run: Run, big: Hub, content: bytes) -> None:
    big.forge("model.safetensors", content)
    ran = run(*PULL)
    assert ran.code == 1
    assert f"model.safetensors: got {len(content)} bytes, expected {len(BIG)} as the Hub's page says" in ran.error
    assert not partial().exists() and not snapshot(big, REPO).exists()


def test_wrong_content_of_the_right_size(run: Run, big: Hub) -> None:
    big.forge("model.safetensors", OTHER, times=1)
    ran = run(*PULL)
    assert ran.code == 1 and f"got checksum {sha256(OTHER)}, expected {sha256(BIG)}" in ran.error
    assert not partial().exists() and not snapshot(big, REPO).exists()
    assert run(*PULL).code == 0
    assert_here(big)


@pytest.mark.parametrize("size", [1, 1_000_000, len(BIG), len(BIG) + 5])
def test_a_damaged_rest_of_an_earlier_run_is_replaced(run: Run, big: Hub, size: int) -> None:
    blobs().mkdir(parents=True)
    partial().write_bytes(bytes(size))
    assert run(*PULL).code == 0
    assert_here(big)


def test_a_blob_that_is_cut_short_is_fetched_anew(run: Run, big: Hub) -> None:
    assert run(*PULL).code == 0
    (blobs() / sha256(BIG)).write_bytes(BIG[:1000])
    assert run(*PULL).code == 0
    assert_here(big)


def test_small_files_are_checked_too(run: Run, big: Hub) -> None:
    big.add(REPO, {"config.json": CONFIG, "notes.txt": b"right", "model.safetensors": BIG})
    big.forge("notes.txt", b"wrong")
    ran = run(*PULL)
    assert ran.code == 1 and "notes.txt: got checksum" in ran.error


@pytest.mark.parametrize(("status", "part"), [(429, "/api/"), (503, "/api/"), (503, "/resolve/"), (502, "/storage/")])
def test_a_busy_hub_is_asked_again(run: Run, big: Hub, status: int, part: str) -> None:
    big.fail(part, status, times=2, Retry_After="0")
    assert run(*PULL).code == 0
    assert_here(big)


def test_a_hub_that_stays_busy(run: Run, big: Hub) -> None:
    big.fail("/storage/", 503, times=100)
    ran = run(*PULL)
    assert ran.code == 1 and ran.error == "tiny/big: the Hub answered 503 Service Unavailable"
    assert big.count("/storage/") == 5


def test_no_network(run: Run, big: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    big.stop()
    ran = run(*PULL)
    assert ran.code == 1 and re.match(r"tiny/big: http://127\.0\.0\.1:\d+ cannot be reached \(.+\)$", ran.error)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run(*PULL).error == "tiny/big: the network is switched off by HF_HUB_OFFLINE"


def test_gated(run: Run, big: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    big.repos[REPO].gated = True
    ran = run(*PULL)
    assert ran.code == 1 and ran.error == "tiny/big: its owner asks for an agreement before download"
    assert f"agree at {big.endpoint}/tiny/big, then log in" in ran.err
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert run(*PULL).code == 0
    sent = [seen.headers.get("authorization") for seen in big.seen if "/resolve/" in seen.path]
    assert sent[-1] == "Bearer hf_secret"
    assert all("authorization" not in seen.headers for seen in big.seen if "/storage/" in seen.path)


def test_the_disk_fills_up_on_the_way(run: Run, big: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transfer.Path.open

    class Full:
        def __init__(self, file: object):
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            if self.file.tell() > 1_000_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data)

    def opened(path: Path, mode: str = "r", *rest: object, **more: object) -> object:
        file = real(path, mode, *rest, **more)
        return Full(file) if mode in ("ab", "wb") and path == partial() else file

    with monkeypatch.context() as patched:
        patched.setattr(transfer.Path, "open", opened)
        ran = run(*PULL)
    left = partial().stat().st_size
    assert ran.code == 1 and f"the disk is full at {left} of 3000000 bytes of model.safetensors" in ran.error
    assert left > 1_000_000 and run(*PULL).code == 0 and ranges(big)[-1] == f"bytes={left}-"
    assert_here(big)


def test_a_second_process_does_not_disturb_the_first(run: Run, big: Hub) -> None:
    lock = cache() / ".locks" / "models--tiny--big" / "dflash2.lock"
    lock.parent.mkdir(parents=True)
    with filelock.FileLock(lock):
        assert run(*PULL).error == "tiny/big: another process is working on it"
    assert run(*PULL).code == 0


def wait_for(path: Path, size: int) -> None:
    for _ in range(4000):
        if path.is_file() and path.stat().st_size >= size:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} does not come")


def test_ctrl_c_on_a_terminal_leaves_nothing_broken(run: Run, big: Hub) -> None:
    """The real command on a pseudo-terminal: bars are drawn, Ctrl-C ends it, the next run goes on."""
    event = big.hold("model.safetensors", after=2_000_000)
    process, screen = pty.fork()
    if process == 0:
        os.execve(sys.executable, [sys.executable, "-m", "dflash2_app", *PULL], environment() | {"TERM": "xterm"})
    shown: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(screen, shown))
    reader.start()
    wait_for(partial(), 1_000_000)
    os.write(screen, b"\x03")
    _, status = os.waitpid(process, 0)
    reader.join()
    event.set()
    text = b"".join(shown).decode()
    assert os.waitstatus_to_exitcode(status) == 130
    assert "all files" in text and "━" in text and "Traceback" not in text
    assert "stopped; what has come is kept" in text
    assert not snapshot(big, REPO).exists()
    left = partial().stat().st_size
    assert run(*PULL).code == 0 and ranges(big)[-1] == f"bytes={left}-"
    assert_here(big)


def _read_all(screen: int, into: list[bytes]) -> None:
    try:
        while data := os.read(screen, 65536):
            into.append(data)
    except OSError:  # the other end is closed
        os.close(screen)


@pytest.mark.slow
def test_killed_at_any_point_the_next_run_finishes(big: Hub) -> None:
    event = big.hold("model.safetensors", after=1_500_000)
    command = [sys.executable, "-m", "dflash2_app", *PULL]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(partial(), 1_000_000)
        process.send_signal(signal.SIGKILL)
        process.wait()
    event.set()
    assert_nothing_half(big)
    ran = spawn(*PULL, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["models"][0]["fetched_bytes"] < len(BIG) + len(CONFIG)
    assert_here(big)


def test_a_stalled_connection_is_given_up(run: Run, big: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_READ_TIMEOUT_S", 0.3)
    event = big.hold("model.safetensors", after=1_500_000)
    assert run(*PULL).code == 0
    event.set()
    assert_here(big)


def test_the_drafter_failing_leaves_no_target_either(run: Run, hub: Hub, pair: Published) -> None:
    hub.forge("model.safetensors", b"nothing of the kind")  # of the drafter, which was published last
    ran = run("models", "pull", TARGET, "--drafter", "tiny/drafter")
    assert ran.code == 1 and ran.error.startswith("tiny/")
    assert not snapshot(hub, TARGET).exists() and not snapshot(hub, "tiny/drafter").exists()

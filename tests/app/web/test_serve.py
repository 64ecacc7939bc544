"""The command: its options, what it refuses before anything is loaded, and a real process from start to end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from dflash2_app.commands.serve import LimitOptions, ServedModels, ServerOptions
from tests.app.conftest import Run, environment


@pytest.fixture
def busy_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_port_in_use_is_one_line(run: Run, busy_port: int) -> None:
    ran = run("serve", "--port", str(busy_port))
    assert ran.code == 1 and ran.out == ""
    assert ran.error == f"--port: {busy_port} on 127.0.0.1 is in use by another program"


@pytest.mark.parametrize(("arguments", "message"), [
    (["--host", "0.0.0.0"], "--host: got '0.0.0.0', expected 127.0.0.1 or localhost"),
    (["--host", "::"], "--host: got '::'"),
    (["--host", "203.0.113.7", "--api-key", "k"], "--host: 203.0.113.7 is no address of this machine"),
    (["--port", "70000"], "--port: got '70000', expected an integer in 0..65535"),
    (["--drafter", "a", "--drafter", "b"], "--drafter: got 2 for 0 --model"),
    (["--model", "mini", "--model", "mini"], "--model: got 'mini' twice"),
    (["--max-running", "0"], "--max-running: got '0', expected an integer in 1..256"),
    (["--max-memory-gb", "-1"], "--max-memory-gb: got '-1', expected a number > 0"),
])  # fmt: skip
def test_wrong_options_are_refused(run: Run, arguments: list[str], message: str) -> None:
    ran = run("serve", *arguments)
    assert ran.error.startswith(message) and ran.code in (1, 2)


@pytest.mark.parametrize("model", ["/no/such/folder", "nobody/nothing"])
def test_a_model_that_cannot_be_loaded_ends_the_command(run: Run, model: str) -> None:
    ran = run("serve", "--port", "0", "--model", model)
    assert ran.code == 1 and model in ran.error and "unexpected" not in ran.error


def test_models_and_drafters_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    options = ServedModels(
        model=["mini", str(folder), "a/b"], drafter=["mini", "none", "c/d"], draft_bits=4, target_dtype="float32",
        exactness="exact",
        base_path=tmp_path / "settings",
    )  # fmt: skip
    mini, local, hub = options.catalogue().offered.sources
    plans = [source.setup.plan for source in (mini, local, hub)]
    assert [source.name for source in (mini, local, hub)] == ["mini", "target", "a/b"]
    assert [(plan.target, plan.drafter, plan.draft_bits) for plan in plans] == [
        ("mini", "mini", 4), (str(folder), None, None), ("a/b", "c/d", 4),
    ]  # fmt: skip
    assert all((plan.target_dtype, plan.exactness) == ("float32", "exact") for plan in plans)
    assert hub.weight_bytes is None
    (alone,) = ServedModels().catalogue().offered.sources
    assert (alone.name, alone.setup.target) == ("mini", "mini")


def test_a_base_path_has_its_own_settings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model_settings.json").write_text("{")
    ran = run("serve", "--port", "0", "--base-path", tmp_path)
    assert ran.code == 1 and ran.error.startswith(f"{tmp_path}/model_settings.json: got no JSON")
    (tmp_path / "model_settings.json").write_text('{"models": {"mini": {"temperature": -1}}}')
    ran = run("serve", "--port", "0", "--base-path", tmp_path)
    assert ran.code == 1 and ran.error == "mini: temperature (model): got -1, expected a number >= 0"
    assert "note: no --model given, and no other model on this machine: serving the embedded mini pair" in ran.err


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DFLASH2_API_KEY", raising=False)
    assert ServerOptions().key is None
    monkeypatch.setenv("DFLASH2_API_KEY", "from-there")
    assert ServerOptions().key == "from-there" and ServerOptions(api_key="mine").key == "mine"
    assert LimitOptions().max_running == 8


def test_a_real_process_serves_the_embedded_pair_and_ends_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "dflash2_app", "serve", "--port", "0"]
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment() | {"HF_HUB_OFFLINE": "1"}
    )
    try:
        assert server.stderr is not None and server.stdout is not None
        lines = [server.stderr.readline()]
        while "http://" not in lines[-1]:
            lines.append(server.stderr.readline())
            assert lines[-1], lines
        url = re.search(r"http://[\d.:]+", lines[-1]).group()
        body = {"model": "mini", "prompt": "def add(a, b):", "max_tokens": 6, "temperature": 0}
        with httpx2.Client(base_url=url, timeout=120) as client:
            answer = client.post("/v1/completions", json=body).json()
            assert answer["usage"]["dflash2"]["mode"] == "dflash2" and answer["usage"]["completion_tokens"] == 6
            state = client.get("/v1/models/status").json()["models"][0]
            assert (state["effective_engine"], state["dflash_active"], state["loaded"]) == ("dflash2", True, True)
        os.kill(server.pid, signal.SIGINT)
        out, err = server.communicate(timeout=60)
        assert server.returncode in (0, 130) and out == "" and "Traceback" not in err
    finally:
        server.kill()
        server.wait()

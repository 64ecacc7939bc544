"""What the application's tests share: a fake library, a command line in this process, an empty home."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash2_app.cli import main
from dflash2_app.settings.keys import KEYS

from .fake_library import FakeLibrary, install
from .hub import Hub, hub

__all__ = ["Hub", "hub"]  # the fixture, for all tests of the application

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one error line; fails when there is none, more than one, or a traceback."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point everything that reads a home folder to an empty one, and keep the Hub out."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    for key in KEYS.values():  # settings of whoever runs the tests
        monkeypatch.delenv(key.variable, raising=False)
    monkeypatch.setenv("DFLASH2_BASE_PATH", str(folder / "settings"))
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # In this process the variable may have been read already, by whichever test came first.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("DFLASH2_DEBUG", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return folder


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """Take the models out of the library."""
    fake = FakeLibrary()
    install(fake, monkeypatch.setattr)
    return fake


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command line in this process, as the installed command would."""

    def call(*arguments: str | Path, stdin: str | bytes = "") -> Ran:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


def environment() -> dict[str, str]:
    """The environment of a command in a process of its own, run from a checkout."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'app'}{os.pathsep}{ROOT}"}


def spawn(*arguments: str | Path, stdin: str = "", timeout: float = 60) -> Ran:
    """Run the real command, on the real library, in a process of its own."""
    command = [sys.executable, "-m", "dflash2_app", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment(), timeout=timeout)
    return Ran(done.returncode, done.stdout, done.stderr)

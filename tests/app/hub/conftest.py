"""Models to publish on the stand-in, and waits short enough for tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_drafter, save_target

from ..conftest import Run
from . import Hub

MINI = Path(__file__).resolve().parents[3] / "dflash2_mlx" / "data" / "mini"
TARGET, DRAFTER = "tiny/target-4bit", "tiny/drafter"


@dataclass(frozen=True)
class Published:
    """Folders of a tiny Qwen3.5-shaped 4-bit target and its drafter, as they are on the stand-in."""

    target: Path
    drafter: Path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Published:
    top = tmp_path_factory.mktemp("published")
    target = save_target(top / "target", "qwen3_5", bits=4, tokenizer=MINI / "target")
    (target / "README.md").write_text("A model.\n")
    return Published(target, save_drafter(top / "drafter"))


@pytest.fixture
def pair(hub: Hub, folders: Published) -> Published:
    """Both models on the stand-in; the target with files that nobody needs."""
    files = {path.name: path.read_bytes() for path in folders.target.iterdir()}
    extra = {"pytorch_model.bin": b"old", "original/model.safetensors": b"twice", "consolidated.safetensors": b"3"}
    page = {"license": "apache-2.0", "tags": ["mlx"], "downloads": 120, "likes": 7}
    hub.add(TARGET, {**files, **extra}, **page)
    hub.add(DRAFTER, folders.drafter, license="cc-by-nc-4.0", downloads=9, likes=8)
    return folders


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2_app.models.hub.FIRST_WAIT_S", 0.001)


def names(run: Run, *arguments: object) -> list[str]:
    """What `models …` lists, by name."""
    ran = run("models", *map(str, arguments))
    assert ran.code == 0, ran.err
    return [line.split("\t")[0] for line in ran.out.splitlines()]


def shown(run: Run, *arguments: object) -> dict[str, Any]:
    """What `models … --json` says."""
    ran = run("models", *map(str, arguments), "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)

"""A machine with models: real folders with real configs, whose weights are the tiny model's and made at once."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.settings.paths import Base
from dflash2_app.web.serving.catalogue import Catalogue
from dflash2_mlx.engine import Engine
from tests.tiny import TARGET_CONFIGS, drafter_config

from .models import VOCAB, tiny_engine

ON: dict[str, Any] = {"dflash_enabled": True, "dflash_verify_mode": "dflash"}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


@dataclass
class Machine:
    """A base folder with settings, and what was loaded of it."""

    base: Path
    loads: list[dict[str, Any]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)  # loading waits for it
    fault: Exception | None = None

    @property
    def models(self) -> Path:
        return self.base / "models"

    def model(self, name: str, **changes: Any) -> Path:
        """Put a target on this machine."""
        return self._folder(name, {**TARGET_CONFIGS["qwen3_untied"], "vocab_size": VOCAB, **changes})

    def drafter(self, name: str) -> Path:
        return self._folder(name, drafter_config(vocab_size=VOCAB))

    def _folder(self, name: str, config: dict[str, Any]) -> Path:
        folder = self.models / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(b"")
        return folder

    def configure(self, **records: dict[str, Any]) -> None:
        """Write the models' records anew."""
        self._write("model_settings.json", {"version": 1, "models": records})

    def profile(self, model: str, name: str, settings: dict[str, Any], **more: Any) -> None:
        """Give a model an exposed profile."""
        path = self.base / "model_profiles.json"
        held = json.loads(path.read_text()) if path.exists() else {"version": 1, "profiles": {}}
        held["profiles"].setdefault(model, {})[name] = {"expose_as_model": True, "settings": settings, **more}
        self._write(path.name, held)

    def shared(self, **sections: Any) -> None:
        """Write oMLX's `settings.json`."""
        self._write("settings.json", {"version": "1.0", **sections})

    def _write(self, name: str, value: Any) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        fresh = self.base / f"{name}.new"
        fresh.write_text(json.dumps(value))
        fresh.replace(self.base / name)

    def catalogue(self, **options: Any) -> Catalogue:
        return Catalogue(Base(self.base, "default"), environment=options.pop("environment", {}), **options)

    @property
    def loaded(self) -> list[tuple[str, bool]]:
        """Names of the targets that were loaded, and whether with a drafter."""
        return [(Path(load["target"]).name, load["drafter"] is not None) for load in self.loads]

    def load(self, target: str, drafter: str | None = None, **options: Any) -> Engine:
        """Stands for the library's `load`."""
        self.loads.append({"target": target, "drafter": drafter, **options})
        assert self.gate.wait(30)
        if self.fault is not None:
            raise self.fault
        return replace(tiny_engine(drafts=drafter is not None or target == "mini"), target_name=target)


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """An empty machine; `home` keeps everything else away."""
    made = Machine(home / "settings")
    made.gate.set()
    monkeypatch.setattr(d2, "load", made.load)
    return made

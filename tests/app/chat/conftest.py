"""What the chat's tests share: the bootstrap pair made to chat, an empty base folder, a view that remembers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_app.chat.app import ChatApp
from dflash2_app.chat.settings import ReplySettings
from dflash2_app.chat.store import ChatStore
from tests.pairs import BOOTSTRAP

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking and reasoning_effort == 'high' %}Hard. {% endif %}"
)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target`, the bootstrap one with a chat template, and `drafter`."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "target").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / "target" / name).symlink_to(BOOTSTRAP / "target" / name)
    settings = json.loads((BOOTSTRAP / "target" / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = TEMPLATE
    (folder / "target" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "drafter").symlink_to(BOOTSTRAP / "drafter")
    return folder


@pytest.fixture(scope="session")
def engine(pair: Path) -> d2.Engine:
    return d2.load(pair / "target", pair / "drafter")


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty base folder, not made yet."""
    folder = tmp_path / "base"
    monkeypatch.setenv("DFLASH2_BASE_PATH", str(folder))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return folder


@dataclass
class RecordingView:
    """Remembers what it was told; `on_show` is called after each piece of a reply."""

    fold_thinking: bool = False
    said: list[str] = field(default_factory=list)
    shown: list[tuple[str, str]] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    charts: list[list[float | None]] = field(default_factory=list)
    on_show: Callable[[], None] = lambda: None

    def header(self, title: str, hint: str) -> None:
        self.said += [title, hint]

    def note(self, text: str) -> None:
        self.said.append(f"note: {text}")

    def info(self, text: str) -> None:
        self.said.append(text)

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        self.said += [f"{left}: {right}" for left, right in rows]

    def problem(self, message: str, hint: str | None) -> None:
        self.said.append(f"error: {message}")

    def bars(self, shares: Sequence[float | None]) -> None:
        self.charts.append(list(shares))

    def earlier(self, question: str, reply: str, *, markdown: bool) -> None:
        self.said += [f"> {question}", reply]

    def begin_reply(self, *, markdown: bool) -> None:
        self.shown = []

    def show(self, kind: str, text: str) -> None:
        self.shown.append((kind, text))
        self.on_show()

    def progress(self, text: str) -> None:
        pass

    def end_reply(self, figures: str) -> None:
        self.endings.append(figures)

    @property
    def reply(self) -> str:
        return "".join(text for kind, text in self.shown if kind == "answer")


@pytest.fixture
def view() -> RecordingView:
    return RecordingView()


@pytest.fixture
def app(engine: d2.Engine, view: RecordingView, base: Path) -> ChatApp:
    """A chat of short replies with the bootstrap pair."""

    def load(target: str, drafter: str | None) -> d2.Engine:
        if "missing" in (target, drafter):
            raise d2.CheckpointError("model: got 'missing', expected a folder")
        return d2.load(target, drafter)

    return ChatApp(engine, load, view, ChatStore(base), settings=ReplySettings(max_tokens=8))

"""`chat` on a pseudo-terminal, as a person types and sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .terminal import Terminal, chat_command

PROMPT = "\n›"


class Opened:
    """Starts chats and ends them with the test."""

    def __init__(self, pair: Path, base: Path):
        self._pair, self._base = pair, base
        self._terminals: list[Terminal] = []

    def __call__(self, *arguments: str, tokens: int = 8, columns: int = 80, rows: int = 30, **extra: str) -> Terminal:
        command = chat_command(
            "--model", self._pair / "target", "--drafter", self._pair / "drafter",
            "--max-tokens", str(tokens), "--base-path", self._base, *arguments,
        )  # fmt: skip
        terminal = Terminal(command, columns=columns, rows=rows, **extra)
        self._terminals.append(terminal)
        return terminal

    def close(self) -> None:
        for terminal in self._terminals:
            terminal.close()


@pytest.fixture
def opened(pair: Path, base: Path) -> Iterator[Opened]:
    opened = Opened(pair, base)
    yield opened
    opened.close()


def replies(terminal: Terminal) -> int:
    flat = " ".join(terminal.whole.split())
    return flat.count("· cut at max_tokens") + flat.count("· stopped")


def ready(terminal: Terminal, after: int) -> bool:
    """Whether so many replies are written and the next line is awaited."""
    return replies(terminal) == after and terminal.text.endswith("›")


def say(terminal: Terminal, text: str) -> None:
    """Type a line where one is awaited: between two of them, Enter is a line's end to the terminal."""
    terminal.until(lambda: terminal.text.endswith("›"))
    terminal.enter(text)


def test_turns_a_stopped_reply_a_resize_and_the_commands(opened: Opened, base: Path) -> None:
    terminal = opened(tokens=400)
    terminal.until(PROMPT)
    assert "block size 8 · greedy" in " ".join(terminal.text.split()) and "/help lists the commands" in terminal.text
    terminal.enter("class Stack:")
    terminal.until(lambda: re.search(r"^\d\d+ tokens · .*acceptance", terminal.text, re.MULTILINE) is not None)
    terminal.resize(56, 30)
    terminal.type("typed ahead")
    terminal.type("\x03")
    terminal.until("stopped")
    terminal.until("› typed ahead")  # it waited for its turn, and Ctrl-C did not throw it away
    assert "› class Stack:" in terminal.whole, "what stood above is still there"
    terminal.type("\x03")  # empties the line, and leaves nothing
    say(terminal, "/set max_tokens 8")
    terminal.until("max_tokens  8")
    say(terminal, "and more")
    terminal.until(lambda: ready(terminal, 2))
    say(terminal, "/stats")
    terminal.until("acceptance by position")
    reused = re.search(r"(\d+) of (\d+) prompt tokens reused", " ".join(terminal.whole.split()))
    assert reused is not None and int(reused[1]) > int(reused[2]) - 24
    say(terminal, "/nope")
    terminal.until("error: command: got '/nope'")
    say(terminal, "/retry")
    terminal.until(lambda: ready(terminal, 3))
    say(terminal, "/undo")
    terminal.until("taken back: and more")
    say(terminal, "/save mine")
    terminal.until("saved as mine")
    say(terminal, "/exit")
    assert terminal.wait() == 0
    saved = json.loads((base / "chats" / "mine.json").read_text(encoding="utf-8"))
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"]
    assert saved["messages"][1]["partial"] is True
    assert saved["messages"][1]["content"].split()[0] in terminal.whole


def test_history_resume_and_no_colour(opened: Opened, base: Path) -> None:
    first = opened()
    first.until(PROMPT)
    first.enter("one message")
    first.until(lambda: ready(first, 1))
    first.type("two")
    first.type("\n")  # Ctrl-J
    first.type("lines\\")
    first.enter("")  # a backslash before Enter, too
    first.enter("long")
    first.until(lambda: ready(first, 2))
    first.type("\x04")
    assert first.wait() == 0
    second = opened("--resume", NO_COLOR="1")
    second.until("2 turns")
    second.until(PROMPT)
    second.type("\x1b[A")
    second.until("› two\n  lines\n  long")
    second.type("\x03")
    second.enter("more")
    second.until(lambda: ready(second, 1))
    second.type("\x03")
    second.until("Ctrl-C again or Ctrl-D leaves")
    second.type("\x03")
    assert second.wait() == 0
    (file,) = (base / "chats").iterdir()
    contents = [message["content"] for message in json.loads(file.read_text(encoding="utf-8"))["messages"]]
    assert contents[::2] == ["one message", "two\nlines\nlong", "more"]
    codes = {int(code) for part in re.findall(rb"\x1b\[([\d;]*)m", second.raw) for code in part.split(b";") if code}
    assert not {code for code in codes if 30 <= code <= 49 or 90 <= code <= 107}, "NO_COLOR"
    assert any(code in (1, 2) for code in codes), "bold and dim are no colours"


def test_commands_are_completed_on_a_narrow_screen(opened: Opened) -> None:
    terminal = opened(columns=30, rows=12)
    terminal.until(PROMPT)
    terminal.type("/sta\t")
    terminal.until("› /stats")
    terminal.enter("")
    terminal.until("no reply yet")
    terminal.enter("hi")
    terminal.until(lambda: ready(terminal, 1))
    terminal.type("\x04")
    assert terminal.wait() == 0


def test_a_dumb_terminal_gets_plain_lines(opened: Opened) -> None:
    terminal = opened(TERM="dumb")
    terminal.until("\n>")
    terminal.enter("hi")
    terminal.until(lambda: terminal.text.endswith("\n>") and "8 tokens" in terminal.text)
    terminal.type("\x04")
    assert terminal.wait() == 0
    assert b"\x1b" not in terminal.raw

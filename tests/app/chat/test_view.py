"""What a terminal shows of a reply, read from a screen: finished text is drawn once and never erased."""

from __future__ import annotations

import io
import os
import re

import pyte
import pytest
from rich.cells import cell_len

from dflash2_app.chat.terminal_view import SETTLING_S, LiveRegion, TerminalView
from dflash2_app.chat.view import LinesView
from dflash2_app.console.output import Output


class Screen(io.StringIO):
    """A stream that is a screen, with the lines that left it at the top."""

    encoding = "utf-8"

    def __init__(self, columns: int = 40, rows: int = 12):
        super().__init__()
        self.screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.Stream(self.screen)
        self.raw = ""

    def write(self, text: str) -> int:
        self.raw += text
        self._stream.feed(text.replace("\n", "\r\n"))  # as a terminal in its usual mode does
        return len(text)

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.screen.columns, self.screen.lines))

    @property
    def lines(self) -> list[str]:
        """All lines, those above the screen too."""
        above = ["".join(line[at].data for at in range(self.screen.columns)) for line in self.screen.history.top]
        lines = [line.rstrip() for line in [*above, *self.screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def screen() -> Screen:
    return Screen()


def region_on(screen: Screen, clock: list[float] | None = None) -> LiveRegion:
    times = clock or [0.0]
    return LiveRegion(screen.write, screen.size, lambda: times[0])


# The live lines


def test_live_lines_are_replaced_and_finished_ones_stay(screen: Screen) -> None:
    region = region_on(screen)
    region.draw(["one", "two", "three"])
    region.draw(["ONE", "TWO"])
    assert screen.lines == ["ONE", "TWO"]
    region.commit(["done"], ["next"])
    region.draw(["next!", "more"])
    assert screen.lines == ["done", "next!", "more"]
    region.commit(["end"])
    assert screen.lines == ["done", "end"]
    assert not screen.screen.cursor.hidden and (screen.screen.cursor.y, screen.screen.cursor.x) == (2, 0)


def test_what_did_not_change_is_not_written(screen: Screen) -> None:
    region = region_on(screen)
    region.draw(["one"])
    written = len(screen.raw)
    region.draw(["one"])
    assert len(screen.raw) == written


@pytest.mark.parametrize("rows", [3, 5, 12])
def test_a_screen_full_of_text_scrolls_without_loss(rows: int) -> None:
    screen = Screen(20, rows)
    region = region_on(screen)
    for number in range(30):
        region.draw([f"live {number}.{part}" for part in range(rows + 3)])
        region.commit([f"line {number}"], ["live"])
    region.commit([])
    assert screen.lines == [f"line {number}" for number in range(30)]


@pytest.mark.parametrize("columns", [10, 20, 39, 40, 60, 200])
def test_a_resize_never_erases_finished_text(columns: int) -> None:
    screen, clock = Screen(40, 12), [0.0]
    region = region_on(screen, clock)
    region.commit([f"line {number}" for number in range(4)], ["x" * 30, "status"])
    screen.screen.resize(12, columns)
    region.draw(["y" * min(30, columns - 1), "status"])
    assert columns == 40 or "xxx" in screen.lines[4], "while the border is being dragged nothing is drawn"
    clock[0] = SETTLING_S
    region.draw(["y" * min(30, columns - 1), "status"])
    assert [line for line in screen.lines if line.startswith("line")] == [f"line {number}" for number in range(4)]
    assert screen.lines[-1] == "status" and screen.lines[-2].startswith("yyy")
    assert not any("xxx" in line for line in screen.lines), "nothing is left behind"


@pytest.mark.parametrize("columns", [7, 16, 29])
def test_nor_where_the_terminal_wraps_lines_anew(columns: int) -> None:
    # pyte cuts lines off when it becomes narrower; this is how the screen of one that wraps them looks.
    wide, narrow, clock = Screen(40, 40), Screen(columns, 40), [0.0]
    now = [wide]
    region = LiveRegion(lambda text: now[0].write(text), lambda: now[0].size(), lambda: clock[0])
    region.commit(["line 0", "line 1"], ["x" * 30, "status"])
    narrow.write("line 0\nline 1\n" + "x" * 30 + "\nstatus")
    now[0] = narrow
    region.draw(["y" * columns, "status"])
    clock[0] = SETTLING_S
    region.draw(["y" * columns, "status"])
    region.commit(["line 2"], ["z"])
    lines = narrow.lines
    assert [line for line in lines if line.startswith("line")] == ["line 0", "line 1", "line 2"]
    assert lines[-1] == "z" and not any("y" in line for line in lines)


# Replies


def reply(view: TerminalView, text: str, size: int = 7, *, markdown: bool = True) -> None:
    view.begin_reply(markdown=markdown)
    for at in range(0, len(text), size):
        view.show("answer", text[at : at + size])
        view.progress("3 tokens")
    view.end_reply("9 tokens")


TEXT = "# Title\n\nFirst *paragraph*.\n\n" + "".join(f"- item {number}\n" for number in range(20)) + "\nThe `end`."
SHOWN = ["Title", "", "First paragraph.", "", *(f" • item {number}" for number in range(20)), "", "The end.", ""]


@pytest.mark.parametrize(("rows", "size"), [(6, 3), (12, 9), (12, 300), (60, 3)])
def test_markdown_ends_as_if_drawn_at_once(rows: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2_app.chat.terminal_view.LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr("dflash2_app.chat.terminal_view.DRAWING_SHARE", 1e9)
    screen = Screen(40, rows)
    reply(TerminalView(screen, screen.size), TEXT, size)
    assert screen.lines == ["", *SHOWN, "9 tokens"]
    assert screen.raw.count("First ") <= 2 + len("First *paragraph*.\n\n") / size, "a finished block is drawn once"


@pytest.mark.parametrize("size", [1, 5, 300])
@pytest.mark.parametrize("end", ["", "\n"])
def test_bare_text_is_shown_as_it_is(screen: Screen, size: int, end: str) -> None:
    text = "def f():\n    # not a title\n\n    return _a_ * b"
    reply(TerminalView(screen, screen.size), text + end, size, markdown=False)
    assert screen.lines == ["", *text.split("\n"), "", "9 tokens"]


def test_a_screen_is_updated_in_one_write_each(screen: Screen) -> None:
    reply(TerminalView(screen, screen.size), TEXT, 300)
    assert screen.raw.count("\x1b[?2026h") == screen.raw.count("\x1b[?2026l")
    assert "\x1b[2J" not in screen.raw and "\x1b[H" not in screen.raw, "the screen as a whole is never cleared"


def test_thinking_is_dimmed_or_folded(screen: Screen) -> None:
    view = TerminalView(screen, screen.size)

    def think() -> None:
        view.begin_reply(markdown=True)
        view.show("thinking", "first thought\nsecond")
        view.show("answer", "The answer.")
        view.end_reply("9 tokens")

    think()
    assert screen.lines == ["", "  first thought", "  second", "", "The answer.", "", "9 tokens"]
    assert "\x1b[2;3m  \x1b[0m" in screen.raw or "\x1b[2;3mfirst" in screen.raw, "dim and italic"
    view.fold_thinking = True
    think()
    assert "thought" not in "".join(screen.lines[7:]).replace("thought for", "")
    assert screen.lines[8].startswith("thought for 0.") and screen.lines[-3] == "The answer."


def test_a_note_amid_a_reply_stands_above_what_grows(screen: Screen) -> None:
    view = TerminalView(screen, screen.size)
    view.begin_reply(markdown=True)
    view.show("answer", "First.\n\nSecond")
    view.note("told")
    view.show("answer", " ends.")
    view.end_reply("9 tokens")
    assert screen.lines == ["", "note: told", "First.", "", "Second ends.", "", "9 tokens"]


def test_a_model_cannot_reach_the_terminal(screen: Screen) -> None:
    view = TerminalView(screen, screen.size)
    reply(view, "\x1b]0;title\x07[red]x[/red] [a](https://x\x1b\\)")
    view.note("\x1b[2Jx")
    assert "\x1b]" not in screen.raw and "\x1b[2J" not in screen.raw
    assert "[red]x[/red]" in "".join(screen.lines)


@pytest.mark.parametrize("columns", [20, 33, 80])
def test_nothing_is_wider_than_the_window(columns: int) -> None:
    screen = Screen(columns, 24)
    view = TerminalView(screen, screen.size)
    view.header("target · drafter", "hint")
    reply(view, "A line of words that is longer than any of these windows is wide.\n\n```\n" + "x" * 100 + "\n```\n")
    view.pairs([("/help", "a summary that goes on and on")])
    view.bars([0.5, 1.0, None])
    widest = max(map(cell_len, re.split("[\r\n]", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.raw))))
    assert widest <= columns


def test_no_colour(screen: Screen) -> None:
    view = TerminalView(screen, screen.size, colour=False)
    view.note("x")
    view.problem("bad", "do this")
    view.bars([0.5])
    reply(view, "# T\n\n`code`\n\n```python\nx = 1\n```\n")
    codes = {code for part in screen.raw.split("\x1b[")[1:] for code in part.split("m")[0].split(";") if code.isdigit()}
    assert codes <= {"0", "1", "2", "3", "4"}, codes


# Plain lines


def test_lines_keep_replies_apart_and_thinking_out(capsys: pytest.CaptureFixture[str]) -> None:
    with Output() as out:
        view = LinesView(out)
        for _ in range(2):
            view.begin_reply(markdown=True)
            view.show("thinking", "why")
            view.show("answer", "because")
            view.progress("ignored")
            view.end_reply("9 tokens")
        view.fold_thinking = False
        view.begin_reply(markdown=True)
        view.show("thinking", "why")
        view.show("answer", "because\n")
        view.end_reply("9 tokens")
        view.bars([0.5, None])
    captured = capsys.readouterr()
    assert captured.out == "because\n\nbecause\n\nwhy\n\nbecause\n"
    assert captured.err == "1: 50 %  2: –\n"


def test_a_chat_that_goes_on_shows_where_it_was_left(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    TerminalView(screen, screen.size).earlier("What is\x1b[2J this?", "A **list**:\n\n- one\n", markdown=True)
    assert [line for line in screen.lines if line] == ["> What is␛[2J this?", "A list:", " • one"]
    for talks in (False, True):
        with Output() as out:
            LinesView(out, talks=talks).earlier("Why?", "So *it* is.", markdown=True)
        out_err = capsys.readouterr()
        assert out_err.out == "" and out_err.err == ("> Why?\nSo *it* is.\n" if talks else ""), "nothing for scripts"

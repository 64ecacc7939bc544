"""The sink: data and messages stay apart, and a reply cannot drive the terminal."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path

import pytest

from dflash2_app.console.output import Output, printable, show_problem, use_lossy_encoding
from dflash2_app.errors import UsageError


class Terminal(io.StringIO):
    """A stream that says it is a screen."""

    def isatty(self) -> bool:
        return True


def screen(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, Terminal]:
    """Make a terminal of standard output and of standard error; called in a test, as pytest sets both before it."""
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return streams


def test_control_characters_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[2J\x07\r\x9b31m\x7f\n\tb – é") == "a␛[2J␇␍�31m␡\n\tb – é"


def test_a_pipe_gets_the_very_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output().data("\x1b[31mred\n")
    assert capsys.readouterr().out == "\x1b[31mred\n"


def test_a_terminal_gets_it_without_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    out_stream, err_stream = screen(monkeypatch)
    with Output() as out:
        out.data("\x1b[31mred")
        out.note("and a note starts on its own line")
    assert out_stream.getvalue() == "␛[31mred\n"
    assert err_stream.getvalue() == "note: and a note starts on its own line\n"


def test_a_status_line_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    _, err_stream = screen(monkeypatch)
    with Output() as out:
        out.status("loading")
        out.status("reading")
        out.data("text\n")
    written = err_stream.getvalue()
    assert written.endswith("\r\x1b[K")
    assert written.count("\r\x1b[K") == 3


def test_no_status_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Output() as out:
        out.status("loading")
    assert capsys.readouterr().err == ""


def test_json_says_null_where_there_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    Output().json({"a": -math.inf, "b": [math.nan, 1.5, {"c": (math.inf,)}], "é": None})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5, {"c": [None]}], "é": None}


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, err_stream = screen(monkeypatch)
    show_problem("bad", "better")
    assert err_stream.getvalue() == "\x1b[1;31merror:\x1b[0m bad\nhint: better\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        _, err_stream = screen(monkeypatch)
        monkeypatch.setenv(name, value)
        show_problem("bad", None)
        assert err_stream.getvalue() == "error: bad\n"


def test_an_ascii_stream_shows_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    use_lossy_encoding()
    Output().data("é\n")
    assert raw.getvalue() == b"?\n"


def test_an_unwritable_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--output: got .*, expected a writable file"):
        Output(tmp_path / "missing" / "file")


def test_a_device_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    with Output(Path("/dev/null")) as out:
        out.data("gone")
    assert capsys.readouterr().out == ""

"""`demo` on the fake library: the two runs, their verdict, and the screen as a terminal receives it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from urllib.parse import parse_qsl

import pytest
from rich.console import Console

import dflash2_mlx as d2
from dflash2_app.commands.demo_view import LEAST_PANE, Lane, Screen
from dflash2_app.console.charts import bar_chart
from dflash2_app.reports.side_by_side import Blocks, TokenTexts

from . import fake_library
from .conftest import ROOT, Run, environment
from .fake_library import REPLY, Engine, FakeLibrary, Tokenizer

STATS = d2.GenerationStats("dflash2", 4)
NOTE = "costs about as much as they do one by one: read acceptance, not speed"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_both_runs_get_the_same_request_but_for_the_mode(run: Run, library: FakeLibrary) -> None:
    assert run("demo", "x", "--max-tokens", "30", "--stop", "é", "--temperature", "0.5").code == 0
    warm, measured = library.requests[:2], library.requests[2:]
    for requests in (warm, measured):
        assert [config.mode for _, config in requests] == ["plain", "dflash2"]
        assert {prompt for prompt, _ in requests} == {"x"}
    assert {config.max_tokens for _, config in warm} == {16}
    for _, config in measured:
        assert (config.max_tokens, config.stop, config.sampling.temperature) == (30, ("é",), 0.5)
        assert (config.sampling.lossless_mode, config.sampling.seed) == ("coupled", 0)


def test_sampling_defaults_can_be_changed(run: Run, library: FakeLibrary) -> None:
    run("demo", "x", "--temperature", "1", "--lossless-mode", "rejection", "--seed", "5")
    sampling = library.requests[-1][1].sampling
    assert (sampling.lossless_mode, sampling.seed) == ("rejection", 5)


def test_the_default_prompt_suits_the_model(run: Run, library: FakeLibrary) -> None:
    run("demo")
    assert str(library.requests[-1][0]).startswith("class ")
    library.engine.tokenizer.has_chat_template = True
    run("demo")
    assert str(library.requests[-1][0]).startswith("Write ")
    run("demo", "--no-chat-template")
    assert str(library.requests[-1][0]).startswith("class ")
    run("demo", "--system", "Be brief.")
    assert [message["role"] for message in library.requests[-1][0]] == ["system", "user"]


def test_lines_without_a_terminal(run: Run, library: FakeLibrary) -> None:
    library.engine.row_cost_note = NOTE
    ran = run("demo", "x", "--max-tokens", "60")
    assert "\x1b" not in ran.out
    assert ran.out.count(REPLY[:60]) == 2
    flat = " ".join(ran.out.split())
    assert "target fake · drafter fake-drafter · block size 4 · greedy" in flat
    assert "one run after the other" in flat
    assert "identical all 60 tokens are equal" in flat
    assert "1.50x" in flat
    assert "tokens per pass, of up to 4" in flat
    assert NOTE in flat


def test_json_is_one_object_with_both_runs(run: Run, library: FakeLibrary) -> None:
    library.engine.row_cost_note = NOTE
    ran = run("demo", "x", "--max-tokens", "30", "--json")
    shown = json.loads(ran.out)
    assert list(shown) == ["plain", "dflash2", "identical", "first_difference", "speedup"]
    assert [shown[mode]["mode"] for mode in ("plain", "dflash2")] == ["plain", "dflash2"]
    assert f"note: {NOTE}" in ran.err


def test_a_difference_is_shown_and_only_check_fails(run: Run, library: FakeLibrary) -> None:
    library.differs = True
    ran = run("demo", "x")
    assert ran.code == 0
    assert "different from token 3 on: plain ' ', DFlash 2 '!', logit gap 0.0125" in " ".join(ran.out.split())
    assert run("demo", "x", "--check").code == 1
    assert run("demo", "x", "--check", "--json").code == 1
    library.differs = False
    assert run("demo", "x", "--check").code == 0


def test_a_difference_under_rejection_is_explained(run: Run, library: FakeLibrary) -> None:
    library.differs = True
    text = "note rejection keeps the distribution"
    assert text in " ".join(run("demo", "x", "--temperature", "1", "--lossless-mode", "rejection").out.split())
    assert text not in " ".join(run("demo", "x").out.split())


def test_a_block_is_cut_into_drafts_and_the_targets_own_token() -> None:
    blocks = Blocks(Engine())

    def cut(text: str, accepted: int, ids: str | None = None) -> list[tuple[str, str]]:
        token_ids = tuple(map(ord, text if ids is None else ids))
        event = d2.GenerationEvent(text, token_ids, STATS, round=d2.RoundInfo(accepted, 4, len(token_ids), ()))
        return [part for part in blocks.parts(event, "dflash2") if part[0]]

    assert cut("abcd", 3) == [("abc", "accepted"), ("d", "bonus")]
    assert cut("e", 0) == [("e", "bonus")]
    assert cut("fg", 2) == [("fg", "accepted")]  # a block that the token limit cut short
    assert cut("", 1, "hi") == []  # text that is held back
    first = d2.GenerationEvent("a", (97,), STATS)
    assert blocks.parts(first, "plain") == [("a", "plain")]
    assert [part for part in blocks.parts(first, "dflash2") if part[0]] == [("a", "bonus")]


def test_a_text_is_cut_by_token_and_nothing_is_lost() -> None:
    class Halves(Tokenizer):
        """A token above 1000 is the first or second half of the sign before it."""

        def decode(self, token_ids: list[int]) -> str:
            text = "".join(map(chr, token_ids))
            return re.sub("\u0bb8\u0bb9", "é", text).replace("\u0bb8", "\ufffd")

    texts = TokenTexts(Halves())

    def pieces(text: str, *ids: int) -> list[str]:
        return texts.pieces(d2.GenerationEvent(text, ids, STATS))

    assert pieces("ab", 97, 98) == ["a", "b"]
    assert pieces("c", 99, 0xBB8) == ["c", ""]  # half a sign is held back
    assert pieces("éd", 0xBB9, 100) == ["é", "d"]
    assert pieces("", 101) == [""]  # the start of a stop string is held back,
    assert pieces("ef", 102) == ["ef"]  # and told when it was none
    assert pieces("!") == ["!"]  # a text without a token


# The page


class Page:
    """What `demo --web` opens and serves."""

    def __init__(self) -> None:
        self.address = ""
        self.served: list[object] = []


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Page:
    page = Page()

    def open_page(address: str, out: object) -> None:
        page.address = address

    def serve(configured: object, config: d2.GenerationConfig, claimed: object, base_path: object) -> None:
        deadline = time.monotonic() + 10
        while not page.address and time.monotonic() < deadline and not page.served:
            time.sleep(0.01)
        page.served.append(config)

    monkeypatch.setattr("dflash2_app.commands.demo_web._open_browser", open_page)
    monkeypatch.setattr("dflash2_app.commands.demo_web._run", serve)
    return page


def test_the_page_opens_with_what_was_asked_for(run: Run, library: FakeLibrary, web: Page) -> None:
    ran = run("demo", "--web", "3 & 4?", "--max-tokens", "30", "--temperature", "0.5", "--seed", "7", "--top-k", "9")
    assert ran.code == 0 and ran.out == ""
    address, _, query = web.address.partition("/#/race?")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
    assert dict(parse_qsl(query)) == {
        "model": "mini", "prompt": "3 & 4?", "max_tokens": "30", "temperature": "0.5", "seed": "7", "start": "1"
    }  # fmt: skip
    assert f"side by side: {web.address}" in ran.err
    assert web.served[0].sampling.top_k == 9 and web.served[0].sampling.coupled


def test_the_address_alone(run: Run, library: FakeLibrary, web: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2_app.commands.demo_web._run", lambda configured, config, claimed, base_path: None)
    ran = run("demo", "--web", "--no-browser")
    assert ran.code == 0 and "side by side: http://127.0.0.1:" in ran.err and not web.address


@pytest.mark.parametrize(("arguments", "message"), [
    (["--web", "--json"], "--json: got it beside --web, expected one of the two"),
    (["--web", "--check"], "--check: got it beside --web"),
    (["--web", "--messages", "x.json"], "--messages: got it beside --web"),
    (["--web", "--max-tokens", "5000"], "--max-tokens: got 5000, expected at most 4096 with --web"),
    (["--web", "--temperature", "3"], "--temperature: got 3, expected at most 2 with --web"),
    (["--web", "--lossless-mode", "rejection"], "--lossless-mode: got rejection, expected coupled"),
    (["--web", "--seed", str(2**53)], "--seed: got 9007199254740992, expected at most 9007199254740991 with --web"),
    (["--web", "--drafter", "none"], "--drafter: got none"),
    (["--no-browser"], "--no-browser: got it without --web"),
])  # fmt: skip
def test_what_the_page_cannot_do_is_refused(
    run: Run, library: FakeLibrary, web: Page, arguments: list[str], message: str
) -> None:
    ran = run("demo", "x", *arguments)
    assert ran.code == 2 and ran.error.startswith(message) and not web.served


# The screen


def drawn(console: Console, screen: Screen) -> list[str]:
    with console.capture() as capture:
        console.print(screen)
    return capture.get().splitlines()


def lanes() -> list[Lane]:
    pair = [Lane("plain decoding", "waits", "def f():\n"), Lane("DFlash 2", "waits", "def f():\n")]
    pair[0].start("reading")
    for number in range(100):
        pair[0].land([(f"    x = {number}\n", "plain")], f"{number} tokens")
    return pair


@pytest.mark.parametrize(("width", "height", "panes_per_row"), [(120, 40, 2), (70, 30, 1), (40, 10, 1), (200, 60, 2)])
def test_panes_fit_every_terminal_and_show_the_newest_lines(width: int, height: int, panes_per_row: int) -> None:
    lines = drawn(Console(width=width, height=height, force_terminal=False), Screen("subject", lanes()))
    assert max(map(len, lines)) <= width
    assert any(line.count("╭") == panes_per_row for line in lines)
    assert any("x = 99" in line for line in lines)
    assert not any("x = 0 " in line for line in lines)
    assert len(lines) <= max(height, 2 + LEAST_PANE * 2)


@pytest.mark.parametrize("width", range(30, 130, 3))
def test_a_footer_drops_whole_figures_rather_than_cut_one(width: int) -> None:
    pair = lanes()
    pair[1].start("reading")
    figures = ["128 tokens", "187.1 tokens/s", "acceptance 2.31"]
    pair[1].land([("x", "accepted")], " · ".join(figures))
    shown = drawn(Console(width=width, height=40, force_terminal=False), Screen("subject", pair))
    footer = [line for line in shown if line.startswith("╰") or "╯╰" in line][-1]
    words = footer.rstrip("╯").rstrip("─ ").rsplit("─ ", 1)[1]
    seconds, *rest = words.split(" · ") if " s · " in words else ("", *words.split(" · "))
    assert rest == figures[len(figures) - len(rest) :]
    assert len(rest) == 3 or (not seconds and len(rest) >= 1)


def test_a_pane_is_drawn_anew_only_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_panes = []
    tail = Lane.tail
    monkeypatch.setattr(Lane, "tail", lambda lane, *size: [drawn_panes.append(lane), tail(lane, *size)][1])
    pair = [Lane("plain decoding", "waits"), Lane("DFlash 2", "waits")]
    screen, console = Screen("subject", pair), Console(width=120, height=40, force_terminal=False)
    for change in (None, lambda: pair[0].land([("x", "plain")], ""), None, lambda: setattr(pair[1], "waiting", "next"),
                   lambda: pair[1].start("reads"), lambda: pair[1].finish("done")):  # fmt: skip
        if change:
            change()
        lines = drawn(console, screen)
    assert drawn_panes == [pair[0], pair[1], pair[0], pair[1], pair[1], pair[1]]
    assert any("x" in line for line in lines) and "done" in "".join(lines)
    drawn(Console(width=100, height=40, force_terminal=False), screen)
    assert drawn_panes[6:] == pair, "another size"


def test_the_panes_say_what_they_wait_for() -> None:
    lane = Lane("plain", "both warm up")
    assert lane.footer() == "both warm up"
    lane.start("both warm up")
    assert re.fullmatch(r"\d\.\d s · both warm up", lane.footer()) and lane.running, "its seconds are a sign of life"
    lane.wait("waits for its turn")
    assert lane.footer() == "waits for its turn" and not lane.running


def test_model_text_cannot_reach_the_terminal() -> None:
    lane = Lane("plain", "waits")
    lane.land([("\x1b]0;title\x07[red]x[/red]\r\tend", "plain")], "")
    text = lane.tail(Console(width=80), 80, 5)[0].plain
    assert "\x1b" not in text and "\r" not in text and "\x07" not in text
    assert "[red]x[/red]" in text


def test_bars_grow_with_their_share() -> None:
    lines = bar_chart([1.0, 0.5, 0.0, None]).plain.splitlines()
    assert lines[0].split() == ["██"]
    assert lines[2].split() == ["██", "██"]
    assert lines[3].startswith("100  50  0   –")
    assert "#" in bar_chart([1.0], ascii_only=True).plain
    assert "█" not in bar_chart([1.0], ascii_only=True).plain


def in_a_terminal(columns: int, rows: int, *arguments: str, **extra: str) -> str:
    """Run the command on a pseudo-terminal and return all that it wrote."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {**environment(), "TERM": "xterm-256color", **extra}
    env.pop("COLUMNS", None)
    command = [sys.executable, fake_library.__file__, *arguments]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env, cwd=ROOT)
    os.close(follower)
    written, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end is closed: the command is done
            break
        if not chunk:
            break
        written += chunk
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return written.decode("utf-8", "replace")


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (70, 30)])
def test_the_demo_is_live_in_a_terminal(columns: int, rows: int) -> None:
    written = in_a_terminal(columns, rows, "demo", "x", "--max-tokens", "40")
    plain = ESCAPES.sub("", written)
    assert plain.count("plain decoding") > 3, "the panes are drawn again and again"
    assert "waits for its turn" in plain
    assert "identical" in plain
    assert "48;5;22" in written, "accepted drafts are tinted"
    assert "48;5;58" in written, "the target's own token has another tint"
    assert "\x1b[?25h" in written, "the cursor is shown again"


def test_no_colour_when_none_is_wanted() -> None:
    written = in_a_terminal(120, 40, "demo", "x", "--max-tokens", "12", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|38;5|48;5)[0-9;]*m", written)

#!/usr/bin/env python3
"""Make the README's pictures from real runs of the embedded pair: pages in Chromium, `demo` in a terminal.

For maintainers. Run it on a quiet machine, as the pictures show measured speeds.

    pip install '.[test]'                     # and Debian's chromium
    python tools/make_pictures.py pages terminal
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
PROGRAM = [sys.executable, "-m", "dflash2_app"]
CHROMIUM = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update".split()
)
WIDTH, HEIGHT = 1200, 860  # of a page
PATIENCE_MS = 300_000
FORGETTING_MS = 90_000  # until the machine's load average has forgotten the race and the chat
COLUMNS, LINES = 112, 30
SHORTEST_S = 0.15  # a state of the terminal's picture
QUIET_S = 0.01  # without output: the screen is drawn
LEAST_LINES = 4  # of a screen with which it begins
CELL, ROW = 8.4, 18  # of a character, in the picture's units
COLOURS = {
    "default": "#d7dae0", "black": "#20242b", "red": "#ff7b85", "green": "#8fdda6", "brown": "#f2c46d",
    "blue": "#82aaff", "magenta": "#d6a5ff", "cyan": "#7fd6e6", "white": "#e8ebf0",
}  # fmt: skip


@contextmanager
def serving(base: Path) -> Iterator[str]:
    """A server of the embedded pair; its address."""
    environment = {**os.environ, "DFLASH2_BASE_PATH": str(base), "HF_HOME": str(base / "hub"), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--port", "0", "--target-dtype", "float32"], env=environment, cwd=ROOT,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"on (http://\S+)/v1", line):
                yield found[1]
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait(30)


def pages() -> None:
    """One picture per page, and the race in the dark."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(PATIENCE_MS)
        _race(page, address)
        _chat(page, address)
        _bench(page, address)
        _settings(page, address)
        _status(page, address)
        browser.close()


def _race(page: Any, address: str) -> None:
    page.goto(f"{address}/#/race")
    page.get_by_role("button", name="Race", exact=True).click()
    page.get_by_text(re.compile(r"times as fast|× as fast|same text|identical", re.I)).first.wait_for()
    page.wait_for_timeout(8000)  # the replay runs to its end
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURES / "race.png", full_page=True)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.screenshot(path=PICTURES / "race-dark.png", full_page=True)
    page.evaluate("document.documentElement.dataset.theme = 'light'")


def _chat(page: Any, address: str) -> None:
    page.goto(f"{address}/#/chat")
    box = page.get_by_label("Your question", exact=True)
    box.fill("Write a Python function that returns the largest number of a list.")
    box.press("Enter")
    page.get_by_text(re.compile(r"tokens/s")).first.wait_for()
    page.wait_for_timeout(2000)
    page.screenshot(path=PICTURES / "chat.png")


def _bench(page: Any, address: str) -> None:
    page.wait_for_timeout(FORGETTING_MS)
    page.goto(f"{address}/#/bench")
    page.get_by_label("Samples", exact=True).fill("12")
    page.get_by_label("Max tokens", exact=True).fill("128")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_role("heading", name="Advice:").wait_for()
    page.wait_for_timeout(1000)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURES / "bench.png", full_page=True)


def _settings(page: Any, address: str) -> None:
    page.set_viewport_size({"width": WIDTH, "height": 1500})
    page.goto(f"{address}/#/models")
    page.get_by_role("button", name="Settings").first.click()
    page.get_by_role("dialog").get_by_text("Runtime block size").first.wait_for()
    page.wait_for_timeout(1000)
    page.screenshot(path=PICTURES / "models.png")


def _status(page: Any, address: str) -> None:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.goto(f"{address}/#/status")
    page.wait_for_timeout(6000)
    page.screenshot(path=PICTURES / "status.png")


def terminal() -> None:
    """`demo` as a moving picture: every line of the screen is shown in its own time."""
    frames = list(_thinned(_recorded([*PROGRAM, "demo", "--target-dtype", "float32"])))
    (PICTURES / "demo.svg").write_text(_svg(frames), encoding="utf-8")


def _recorded(command: list[str]) -> Iterator[tuple[float, list[list[Any]]]]:
    """States of a terminal's screen with the seconds since the first of them."""
    import pexpect
    import pyte

    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "", "PYTHONUNBUFFERED": "1"}
    child = pexpect.spawn(command[0], command[1:], dimensions=(LINES, COLUMNS), env=environment, cwd=str(ROOT))
    began = time.monotonic()
    drawing = ended = False
    while not ended:
        try:
            stream.feed(child.read_nonblocking(65536, timeout=QUIET_S))
            drawing = True
            continue  # a screen is redrawn in several pieces
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            ended = True
        if drawing:
            drawing = False
            yield time.monotonic() - began, [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(LINES)]


def _thinned(states: Iterator[tuple[float, list[list[Any]]]]) -> Iterator[tuple[float, list[list[Any]]]]:
    """What differs from the state before, without the wait until the two panes are there."""
    first, before, last, held = None, None, -1.0, None
    for seconds, state in states:
        lines = sum(any(cell.data.strip() for cell in line) for line in state)
        if state == before or (first is None and lines < LEAST_LINES):
            continue
        first = seconds if first is None else first
        before = held = state
        if seconds - last >= SHORTEST_S:
            last, held = seconds, None
            yield seconds - first, state
    if held is not None and first is not None:
        yield seconds - first, held


def _svg(frames: list[tuple[float, list[list[Any]]]]) -> str:
    pause = 4.0  # at the end, before it begins again
    times = [seconds for seconds, _ in frames]
    whole = times[-1] + pause
    width, height = COLUMNS * CELL + 24, LINES * ROW + 24
    style: dict[tuple[int, int], str] = {}
    drawn = []
    for row in range(LINES):
        begin = 0
        for number in range(1, len(frames) + 1):
            if number < len(frames) and frames[number][1][row] == frames[begin][1][row]:
                continue
            parts = "".join(_drawn(row, frames[begin][1][row]))
            if parts:  # a line is drawn once for as long as it stays as it is
                name = f"a{begin}-{number}"
                style[begin, number] = _shown(name, times[begin], (*times, whole)[number], whole)
                drawn.append(f'<g class="{name}">{parts}</g>')
            begin = number
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'aria-label="dflash2-mlx demo: plain decoding and DFlash 2 side by side, then the verdict">'
        "<style>text{font:14px ui-monospace,Menlo,'DejaVu Sans Mono',monospace;white-space:pre}"
        f"{''.join(style.values())}</style>"
        f'<rect width="100%" height="100%" rx="10" fill="#16191f"/>{"".join(drawn)}</svg>\n'
    )


def _shown(name: str, begin: float, end: float, whole: float) -> str:
    """The rule that shows a class between two times, again and again."""
    start, stop = f"{100 * begin / whole:.2f}%", f"{100 * end / whole:.2f}%"
    return (
        f"@keyframes {name}{{0%{{visibility:hidden}}{start}{{visibility:visible}}{stop}{{visibility:hidden}}}}"
        f".{name}{{visibility:hidden;animation:{name} {whole:.1f}s step-end infinite}}"
    )


def _drawn(row: int, line: list[Any]) -> Iterator[str]:
    """Backgrounds and texts of one line, a run of equal cells at a time."""
    begin = 0
    while begin < len(line):
        look = _look(line[begin])
        end = begin + 1
        while end < len(line) and _look(line[end]) == look:
            end += 1
        text = "".join(cell.data for cell in line[begin:end])
        x, y = 12 + begin * CELL, 12 + row * ROW
        front, back, bold = look
        if back is not None:
            yield f'<rect x="{x:.1f}" y="{y}" width="{(end - begin) * CELL:.1f}" height="{ROW}" fill="{back}"/>'
        if text.strip():
            weight = ' font-weight="700"' if bold else ""
            yield (
                f'<text x="{x:.1f}" y="{y + 13}" fill="{front}"{weight} textLength="{(end - begin) * CELL:.1f}">'
                f"{escape(text)}</text>"
            )
        begin = end


def _look(cell: Any) -> tuple[str, str | None, bool]:
    front, back = _colour(cell.fg, "default"), None if cell.bg == "default" else _colour(cell.bg, "black")
    if cell.reverse:
        front, back = back or "#16191f", front
    return front, back, cell.bold


def _colour(name: str, default: str) -> str:
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return COLOURS.get(name.removeprefix("bright"), COLOURS[default])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("pages", "terminal"))
    PICTURES.mkdir(parents=True, exist_ok=True)
    for what in parser.parse_args().what:
        {"pages": pages, "terminal": terminal}[what]()


if __name__ == "__main__":
    main()

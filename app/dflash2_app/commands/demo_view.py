"""What the demo shows: two lanes of text while they run, and the verdict after.

Owns: layout, tints and the bar chart. Knows nothing of models: it is told what was committed and by whom.
Invariant: drawing never blocks a run; the screen reads a lane under its lock and at its own pace, so that a
slow terminal does not slow the decoding that is being measured. Drawing takes time of the same machine, so a pane is
drawn anew only when something in it has changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

import dflash2_mlx as d2

from ..console.charts import BAR_LINES, bar_chart
from ..console.output import printable

Pane = list[list[Segment]]  # lines
Kind = Literal["prompt", "plain", "accepted", "bonus"]

# Foreground and background together, so that both stay readable on light and on dark terminals.
STYLES: dict[Kind, str] = {
    "prompt": "dim",
    "plain": "",
    "accepted": "bold color(194) on color(22)",
    "bonus": "color(223) on color(58)",
}
NEWEST: dict[Kind, str] = {
    "prompt": "dim",
    "plain": "reverse",
    "accepted": "bold color(16) on color(120)",
    "bonus": "bold color(16) on color(221)",
}
SIDE_BY_SIDE = 96  # columns from which two panes of code are readable next to each other
VERDICT_LINES = 14  # kept free below the panes, so that panes and verdict share one screen
LEAST_PANE = 5
SEPARATOR = " · "
SPEED_BAR = 30
_LEFT_EIGHTHS = ("", *"▏▎▍▌▋▊▉")


@dataclass(frozen=True)
class Piece:
    """Text that landed at once, and where it came from."""

    text: str
    kind: Kind
    landing: int


class Lane:
    """One run as the screen sees it."""

    def __init__(self, title: str, waiting: str, prompt: str = ""):
        self.title = title
        self.waiting = waiting
        self._lock = threading.Lock()
        self._lines: list[list[Piece]] = [[]]
        self._landings = 0
        self._started: float | None = None
        self._ended: float | None = None
        self._figures = ""
        self._append(prompt, "prompt")

    def start(self, doing: str) -> None:
        """The run begins; `doing` is shown until the first figures arrive."""
        with self._lock:
            self._started, self._figures = time.monotonic(), doing

    def wait(self, words: str) -> None:
        """Nothing of this lane runs; `words` say what it waits for."""
        with self._lock:
            self._started, self.waiting = None, words

    def land(self, parts: Sequence[tuple[str, Kind]], figures: str) -> None:
        """One pass committed these parts."""
        with self._lock:
            self._landings += 1
            for text, kind in parts:
                self._append(text, kind)
            self._figures = figures

    def finish(self, figures: str) -> None:
        """The run is over: nothing is new any more."""
        with self._lock:
            self._ended = time.monotonic()
            self._landings += 1
            self._figures = figures

    def _append(self, text: str, kind: Kind) -> None:
        first, *others = printable(text).expandtabs(4).split("\n")
        if first:
            self._lines[-1].append(Piece(first, kind, self._landings))
        for line in others:
            self._lines.append([Piece(line, kind, self._landings)] if line else [])

    @property
    def landings(self) -> int:
        """Changes with everything that lands."""
        return self._landings

    @property
    def running(self) -> bool:
        return self._started is not None and self._ended is None

    def footer(self) -> str:
        """Figures, and the seconds gone by."""
        with self._lock:
            if self._started is None:
                return self.waiting
            seconds = (self._ended or time.monotonic()) - self._started
            return f"{seconds:.1f} s{SEPARATOR}{self._figures}" if self._figures else f"{seconds:.1f} s"

    def tail(self, console: Console, width: int, height: int) -> list[Text]:
        """Wrap the last lines that fit into a pane."""
        with self._lock:
            lines = [list(line) for line in self._lines[-height:]]
            newest = self._landings
        wrapped: list[Text] = []
        for line in lines:
            text = Text()
            for piece in line:
                styles = NEWEST if piece.landing == newest else STYLES
                text.append(piece.text, styles[piece.kind])
            wrapped += text.wrap(console, width, overflow="fold") if text else [text]
        return wrapped[-height:]


class Screen:
    """Header and two panes, side by side where there is room, else one above the other."""

    def __init__(self, subject: str, lanes: Sequence[Lane]):
        self.subject = subject
        self.lanes = lanes
        self._drawn: dict[Lane, tuple[Hashable, Pane]] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.subject, style="bold", overflow="ellipsis", no_wrap=True)
        yield self._legend()
        height = console.height - VERDICT_LINES - 2
        if options.max_width >= SIDE_BY_SIDE:
            height, left = max(height, LEAST_PANE), options.max_width // 2
            widths = (left, options.max_width - left)
            panes = [self._pane(console, lane, width, height) for lane, width in zip(self.lanes, widths, strict=True)]
            for line in zip(*panes, strict=True):
                yield from chain(*line, [Segment.line()])
        else:
            height = max(height // 2, LEAST_PANE)
            for lane in self.lanes:
                for row in self._pane(console, lane, options.max_width, height):
                    yield from chain(row, [Segment.line()])

    def _legend(self) -> Text:
        legend = Text(overflow="ellipsis", no_wrap=True)
        legend.append(" accepted draft ", STYLES["accepted"])
        legend.append(" ")
        legend.append(" the target's own token ", STYLES["bonus"])
        legend.append("  one run after the other", "dim")
        return legend

    def _pane(self, console: Console, lane: Lane, width: int, height: int) -> Pane:
        looks = (lane.landings, lane.footer(), lane.running, width, height)
        before = self._drawn.get(lane)
        if before is None or before[0] != looks:
            panel = self._panel(console, lane, width, height)
            lines = console.render_lines(panel, console.options.update(width=width, height=height))
            before = self._drawn[lane] = looks, lines
        return before[1]

    def _panel(self, console: Console, lane: Lane, width: int, height: int) -> Panel:
        lines = lane.tail(console, width - 4, height - 2)
        return Panel(
            Group(*lines),
            title=Text(lane.title, style="bold not dim"),
            title_align="left",
            subtitle=Text(_fitting(lane.footer(), width - 6), style="not dim"),
            subtitle_align="left",
            border_style="cyan" if lane.running else "dim",
            height=height,
        )


def _fitting(footer: str, room: int) -> str:
    """Leave out figures from the left, where the less telling ones are, rather than cut a number in two."""
    while len(footer) > room and SEPARATOR in footer:
        footer = footer.partition(SEPARATOR)[2]
    return footer


def figures(stats: d2.GenerationStats) -> str:
    """Say how a run goes, in the room of a pane's border."""
    parts = [f"{stats.generated_tokens} tokens", speed(stats)]
    if stats.mode == "dflash2" and stats.acceptance_length is not None:
        parts.append(f"acceptance {stats.acceptance_length:.2f}")
    return SEPARATOR.join(parts)


def speed(stats: d2.GenerationStats) -> str:
    """Say how fast a run decodes; one token alone has no speed."""
    return "– tokens/s" if stats.tokens_per_second is None else f"{stats.tokens_per_second:.1f} tokens/s"


@dataclass(frozen=True)
class Outcome:
    """Both runs' figures, what their comparison found, and what the reader should know about it."""

    plain: d2.GenerationStats
    dflash2: d2.GenerationStats
    verdict: d2.Verdict
    difference: str  # where the texts part, in words; empty when they do not
    notes: Sequence[str]


def verdict_table(outcome: Outcome, *, ascii_only: bool) -> Table:
    """Lay out what the comparison found."""
    plain, dflash2, verdict = outcome.plain, outcome.dflash2, outcome.verdict
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    if verdict.identical:
        equal = f"   all {plain.generated_tokens} tokens are equal"
        table.add_row("verdict", Text.assemble(("identical", "bold green"), equal))
    else:
        table.add_row("verdict", Text.assemble(("different", "bold red"), f"   {outcome.difference}"))
    fastest = max(plain.tokens_per_second or 0.0, dflash2.tokens_per_second or 0.0)
    for name, stats, style in (("plain", plain, ""), ("DFlash 2", dflash2, "green")):
        share = (stats.tokens_per_second or 0.0) / fastest if fastest else 0.0
        line = Text.assemble((_level_bar(share, ascii_only), style), f" {speed(stats)}")
        if stats is dflash2 and verdict.speedup is not None:
            line.append(f"   {verdict.speedup:.2f}x", "bold")
        table.add_row(name, line)
    if dflash2.acceptance_length is not None:
        tokens = f"   tokens per pass, of up to {dflash2.block_size}"
        table.add_row("acceptance", Text.assemble((f"{dflash2.acceptance_length:.2f}", "bold"), tokens))
    if any(share is not None for share in dflash2.acceptance_by_position):
        label = Text("by position" + "\n" * BAR_LINES + "% accepted\nposition", style="bold")
        table.add_row(label, bar_chart(dflash2.acceptance_by_position, ascii_only=ascii_only))
    for note in outcome.notes:
        table.add_row("note", Text(note))  # as Text: a plain string would be read as markup
    return table


def _level_bar(share: float, ascii_only: bool) -> str:
    eighths = round(share * SPEED_BAR * 8)
    if ascii_only:
        return "#" * (eighths // 8)
    return "█" * (eighths // 8) + _LEFT_EIGHTHS[eighths % 8]

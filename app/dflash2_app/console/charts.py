"""Small charts of text.

Owns: the bars of acceptance by position, as `demo` and `chat` show them. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

BAR_LINES = 3
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def bar_chart(shares: Sequence[float | None], *, ascii_only: bool = False) -> Text:
    """Draw one upright bar per position, its percentage and its number below: BAR_LINES + 2 lines.

    A share is that of the rounds that had accepted everything before this position.
    """
    chart = Text(no_wrap=True, overflow="crop")
    for row in reversed(range(BAR_LINES)):
        for share in shares:
            chart.append(_cell(share or 0.0, row, ascii_only).center(4), "green")
        chart.append("\n")
    for share in shares:
        chart.append(("–" if share is None else f"{share * 100:.0f}").center(4))
    chart.append(" of those reached\n", "dim")
    for position in range(1, len(shares) + 1):
        chart.append(f"{position}".center(4), "dim")
    return chart


def _cell(share: float, row: int, ascii_only: bool) -> str:
    """The part of a bar that falls into one line, two columns wide."""
    eighths = max(0, min(8, round(share * BAR_LINES * 8) - row * 8))
    if ascii_only:
        return "##" if eighths >= 4 else "  "
    return _EIGHTHS[eighths] * 2

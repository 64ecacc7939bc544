"""Follows work that tells how far it is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from ..output import Output, is_terminal


def follow(
    out: Output,
    what: str,
    events: Iterable[tuple[int, int, str]],
    worth_a_line: Callable[[int, str], bool] | None = None,
) -> None:
    """Go through `events` and show each.

    Args:
        what: the bar's label.
        events: (done, total, text).
        worth_a_line: which events get a line away from a terminal; about every tenth part when left out.
    """
    if not is_terminal(sys.stderr):
        name = "step" if what == "training" else f"{what}:"
        for done, total, text in events:
            step = max(1, total // 10)
            wanted = worth_a_line(done, text) if worth_a_line else done % step == 0 or done == total
            if wanted:
                out.info(f"{name} {done} of {total} · {text}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    out.end_status()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        for done, total, text in events:
            progress.update(task, total=total, completed=done, description=text)

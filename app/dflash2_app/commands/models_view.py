"""How the model manager looks: tables and bars on a terminal, plain lines in a pipe."""

from __future__ import annotations

import io
import shutil
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ..console.output import Output, is_terminal, printable
from ..models.pull import gigabytes
from ..models.transfer import Job, present

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

UNKNOWN = "-"


def show_table(out: Output, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on a terminal; elsewhere one line per row, fields separated by tabs, without headers."""
    cells = [[UNKNOWN if cell is None else str(cell) for cell in row] for row in rows]
    if not cells:
        return
    if not is_terminal(sys.stdout):
        out.data("".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in cells))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=False, min_width=12 if number == 0 else None)
    for row in cells:
        table.add_row(*(Text(printable(cell)) for cell in row))
    text = io.StringIO()
    width = shutil.get_terminal_size().columns
    Console(file=text, width=width, color_system=None, legacy_windows=False).print(table)
    out.data("".join(line.rstrip() + "\n" for line in text.getvalue().splitlines() if line.strip()))


def show_facts(out: Output, facts: Sequence[tuple[str, object]]) -> None:
    """Labelled lines; what is None is left out."""
    width = max(len(label) for label, _ in facts)
    out.data("".join(f"{label:{width}}  {value}\n" for label, value in facts if value is not None))


class PullView:
    """Follows the files of a pull: bars on a terminal, a line per finished file elsewhere."""

    def __init__(self, out: Output, jobs: Sequence[Job]):
        self._out = out
        self._lock = threading.Lock()
        self._sizes = {job.blob: present(job) for job in jobs}
        self._total = sum(job.file.size for job in jobs)
        self._done: set[object] = set()
        self._bars: Progress | None = None
        self._tasks: dict[object, TaskID] = {}
        self._all: TaskID | None = None
        if is_terminal(sys.stderr) and jobs:
            self._bars = _bars()

    def __enter__(self) -> PullView:
        if self._bars is not None:
            self._bars.start()
            self._all = self._bars.add_task("all files", total=self._total, completed=sum(self._sizes.values()))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def reached(self, job: Job, size: int) -> None:
        """As `Listener`."""
        with self._lock:
            self._sizes[job.blob] = size
            finished = size >= job.file.size
            if self._bars is not None:
                self._move(job, size, finished)
            elif finished and job.blob not in self._done:
                self._out.info(f"{job.repo_id}  {job.file.name}  {gigabytes(job.file.size)}")
            if finished:
                self._done.add(job.blob)

    def _move(self, job: Job, size: int, finished: bool) -> None:
        assert self._bars is not None and self._all is not None
        task = self._tasks.get(job.blob)
        if task is None:
            task = self._tasks[job.blob] = self._bars.add_task(
                printable(job.file.name), total=job.file.size, completed=self._sizes[job.blob]
            )
        self._bars.update(task, completed=size, visible=not finished)
        self._bars.update(self._all, completed=sum(self._sizes.values()))

    def waits(self, job: Job, seconds: float, reason: str) -> None:
        """As `Listener`."""
        with self._lock:
            text = f"{reason}; trying again in {seconds:.0f} s"
            if self._bars is not None:
                self._bars.console.print(printable(f"note: {text}"), markup=False, highlight=False)
            else:
                self._out.note(text)


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        expand=True,
    )

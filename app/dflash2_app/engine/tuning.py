"""What tuning found on this machine, and tuning in the background while the server or a chat is idle.

Owns: the way from a loaded pair to its record in `tune/` of the base folder, whether anything is tuned beside replies,
and the words that `doctor` and the status page have for it. Measures nothing itself; the library does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dflash2_mlx as d2

log = logging.getLogger("dflash2.serve")


@dataclass(frozen=True)
class Tuned:
    """What a loaded pair has of tuning: notes to tell, and the job in the background, if there is one."""

    notes: tuple[str, ...] = ()
    job: d2.tuning.BackgroundTuning | None = None

    @property
    def now(self) -> dict[str, Any] | None:
        """What becomes of the job in the background: plain JSON."""
        if self.job is None:
            return None
        done = self.job.progress
        return {
            "pair": self.job.name, "state": self.job.state, "done": done and done.done, "total": done and done.total,
            "what": done and done.what, "problem": self.job.problem,
        }  # fmt: skip

    def stop(self) -> None:
        """End what is under way; the engine is about to leave memory."""
        if self.job is not None:
            self.job.stop()


def take_up(engine: d2.Engine, folder: Path | None, *, background: bool) -> Tuned:
    """Let an engine use what was found for it earlier; and find it out beside its replies where it is not known.

    Args:
        folder: of the records; None keeps and uses nothing.
        background: whether tuning may begin by itself, once nobody asks for anything.
    """
    if folder is None:
        return Tuned()

    records = d2.tuning.TuneFolder(folder)
    found = d2.tuning.attach(engine, records)
    if not background or d2.tuning.why_not(engine, found.record) is not None:
        return Tuned(found.notes)
    try:
        records.check()
    except OSError as error:
        reason = error.strerror or error
        return Tuned((*found.notes, f"nothing is tuned in the background: {folder}: {reason}"))
    job = d2.tuning.BackgroundTuning(engine, records, done=lambda line: log.info("%s", line))
    job.start()
    return Tuned(found.notes, job)


def overview(folder: Path) -> dict[str, Any]:
    """What was tuned and when, newest first; `current`: it still holds for this chip and these versions."""
    records, notes = d2.tuning.TuneFolder(folder).records()
    chip = d2.analysis.this_chip()
    return {
        "folder": str(folder),
        "records": [
            _line_of(record, current=d2.tuning.identity_of(chip, record.identity.pair) == record.identity)
            for record in records
        ],
        "notes": notes,
    }


def _line_of(record: d2.tuning.TuneRecord, *, current: bool) -> dict[str, Any]:
    won = sum(race.winner != race.stock for race in record.races)
    return {
        "target": record.target, "drafter": record.drafter, "at": record.at, "current": current, "raced": record.raced,
        "races": len(record.races), "won": won, "costs": record.costs is not None,
    }  # fmt: skip


def overview_lines(found: dict[str, Any]) -> list[str]:
    """`overview` as lines of text."""
    lines = []
    for record in found["records"]:
        pair = record["target"] if record["drafter"] is None else f"{record['target']} + {record['drafter']}"
        races = f"{record['won']} of {record['races']} races won by our kernels" if record["races"] else "no races"
        what = races if record["raced"] else "costs of passes only"
        stale = "" if record["current"] else " · of another chip or version: not used"
        lines.append(f"tuned      {pair} · {record['at']} · {what}{stale}")
    if not found["records"]:
        lines.append(
            "tuned      nothing yet: kernels run by default, costs of passes are computed or measured when needed"
        )
    return [*lines, *(f"note       {note}" for note in found["notes"])]


def plan_line(plan: d2.tuning.Plan) -> str:
    """What tuning will take, before it begins."""
    races = f"{plan.races} races of {plan.contenders} contenders, at most about {_duration(plan.race_seconds)}"
    passes = "" if plan.pass_seconds is None else f", about {_duration(plan.pass_seconds)}"
    parts = [
        f"{races} and what Metal needs to compile" if plan.races else "no races",
        f"passes of 1 to {plan.most_rows} rows{passes}",
        *([f"up to {plan.bytes / 1e9:.1f} GB beside the model"] if plan.bytes >= 5e7 else []),
        "Ctrl-C ends it and keeps nothing",
    ]
    return f"tuning: {'; '.join(parts)}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"


def race_lines(record: dict[str, Any]) -> list[str]:
    """The races of a record, as `TuneRecord.to_dict` writes it: a table, and what was left out."""
    lines = [] if record["races"] else ["races      none"]
    for race in record["races"]:
        stock = race["seconds"].get(race["stock"])
        times = ", ".join(f"{name} {1e6 * seconds:.1f} us" for name, seconds in sorted(race["seconds"].items()))
        out = "; ".join(f"{name} is out: {reason}" for name, reason in race["out"].items())
        gain = stock / race["seconds"][race["winner"]] if stock else 1.0
        lines.append(
            f"race       {race['kernel']:15} {race['key']:32} {race['winner']:8} {gain:5.2f}x   "
            + "; ".join(filter(None, (times, out)))
        )
    return [*lines, *(f"note       {note}" for note in record["notes"])]

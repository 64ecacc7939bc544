"""Measurements that are kept: one small JSON file each, in `bench` of the base folder.

Owns: names, order, and how many stay. A file holds the record that `bench --json` prints, and when it was made of
which served model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import AppError
from ..files import write_whole

MOST_RUNS = 50
_ID = re.compile(r"[0-9]{8}-[0-9]{6}(-[0-9]{1,3})?")


@dataclass(frozen=True)
class KeptRun:
    """One measurement. `model` is the name it was asked for by, `began` the time in UTC, as ISO 8601 writes it."""

    id: str
    model: str
    began: str
    seconds: float
    record: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """What a list shows of it."""
        record = self.record
        advice = record["recommendation"] or {}
        return {
            "id": self.id, "model": self.model, "began": self.began, "seconds": self.seconds,
            **{name: record[name] for name in ("drafter", "set", "prompts", "preset", "max_tokens", "repeats",
                                               "complete", "requests", "requests_planned")},
            "temperatures": [setting["temperature"] for setting in record["settings"]],
            "block_size": advice.get("block_size"), "speedup": advice.get("speedup"),
        }  # fmt: skip


class RunStore:
    """The kept measurements of one base folder; makes its folder only when something is written."""

    def __init__(self, base: Path, most: int = MOST_RUNS):
        self.folder = base / "bench"
        self._most = most

    def fresh_id(self) -> str:
        """An id from the time of day that no kept measurement has."""
        stem = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name, number = stem, 2
        while (self.folder / f"{name}.json").exists():
            name, number = f"{stem}-{number}", number + 1
        return name

    def save(self, run: KeptRun) -> list[str]:
        """Write a measurement, whole or not at all; the ids of old ones that had to go for it.

        Raises:
            AppError: it cannot be written.
        """
        file = self._file(run.id)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, json.dumps({"version": 1, **asdict(run)}, ensure_ascii=False, indent=1) + "\n")
            surplus = [name for name in self._ids()[self._most :] if name != run.id]
            for name in surplus:
                self._file(name).unlink(missing_ok=True)
        except OSError as error:
            raise AppError(f"{file}: the measurement could not be kept ({_reason(error)})") from None
        return surplus

    def all(self) -> tuple[list[KeptRun], list[str]]:
        """Every measurement that can be read, the newest first, and a line for each that cannot."""
        found, problems = [], []
        for name in self._ids():
            try:
                found.append(self.load(name))
            except AppError as error:
                problems.append(str(error))
        return found, problems

    def load(self, name: str) -> KeptRun:
        """Read one.

        Raises:
            AppError: there is none of that id, or its file is not one of ours.
        """
        file = self._file(name)
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise AppError(f"run: got {name!r}, expected a kept one") from None
        except (OSError, ValueError, RecursionError) as error:
            raise AppError(f"{file}: got an unreadable file ({error}), expected JSON") from None
        try:
            run = KeptRun(name, str(value["model"]), str(value["began"]), float(value["seconds"]), value["record"])
            run.summary()
        except (KeyError, TypeError, ValueError, AttributeError):
            raise AppError(f"{file}: got JSON of another kind, expected a kept measurement") from None
        return run

    def delete(self, name: str) -> None:
        """Remove one.

        Raises:
            AppError: there is none of that id, or it cannot be removed.
        """
        file = self._file(name)
        try:
            file.unlink()
        except FileNotFoundError:
            raise AppError(f"run: got {name!r}, expected a kept one") from None
        except OSError as error:
            raise AppError(f"{file}: cannot be removed ({_reason(error)})") from None

    def _ids(self) -> list[str]:
        """The ids of the files that are there, the newest first."""
        try:
            names = [file.stem for file in self.folder.glob("*.json")]
        except OSError:
            return []
        return sorted((name for name in names if _ID.fullmatch(name)), key=_order, reverse=True)

    def _file(self, name: str) -> Path:
        if not _ID.fullmatch(name):
            raise AppError(f"run: got {name[:80]!r}, expected a kept one")
        return self.folder / f"{name}.json"


def _order(name: str) -> tuple[str, int]:
    day, time, *number = name.split("-")
    return f"{day}-{time}", int(number[0]) if number else 1


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()

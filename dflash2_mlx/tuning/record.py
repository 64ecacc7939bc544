"""What tuning found, as a file: one for each chip, version of MLX, set of kernels and pair.

Owns: the identity of a record, its JSON form, and the folder. A file that cannot be read is passed over with a note,
never trusted in part. Knows nothing of how anything was measured.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..decode.costs import PassCosts, is_seconds
from ..device.chips import Chip
from ..errors import ConfigError
from ..kernels.dispatch import dispatcher
from ..kernels.source import all_sources
from .measure import RaceResult

VERSION = 1
MOST_BYTES = 10_000_000  # of a file: a record has some ten kilobytes
_PREFIX = "unnamed-"  # of fingerprints that hold for one process only


@dataclass(frozen=True)
class Identity:
    """What a record holds for; anything else needs a record of its own.

    `kernels` stands for the text of every kernel and for what `DFLASH2_KERNELS` says of each.
    """

    chip: str
    mlx: str
    kernels: str
    pair: str

    @property
    def lasting(self) -> bool:
        """Whether another process can meet the same pair again."""
        return not self.pair.startswith(_PREFIX)


@dataclass(frozen=True)
class TuneRecord:
    """Costs of passes and winners of races.

    `costs` None: passes were not timed. `raced` tells whether the kernels' races were run (there may be none).
    `at` is a time in UTC, ISO form. `notes` tell what was left out.
    """

    identity: Identity
    target: str
    drafter: str | None
    at: str
    seconds: float
    costs: PassCosts | None
    raced: bool
    races: tuple[RaceResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def winners(self) -> dict[tuple[str, str], str]:
        """(kernel, key) to contender, as the dispatcher takes them."""
        return {(race.kernel, race.key): race.winner for race in self.races}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "version": VERSION,
            **asdict(self),
            "costs": None if self.costs is None else self.costs.to_dict(),
            "races": [asdict(race) for race in self.races],
        }

    @classmethod
    def from_dict(cls, raw: object) -> TuneRecord:
        """Read what `to_dict` wrote.

        Raises:
            ConfigError: it was not written by this version of the format, or something in it cannot be.
        """
        if not isinstance(raw, Mapping) or raw.get("version") != VERSION:
            got = raw.get("version") if isinstance(raw, Mapping) else raw
            raise ConfigError(f"tune version: got {got!r}, expected {VERSION}")
        identity = _of(raw, "identity", Mapping)
        races = tuple(_race(one) for one in _of(raw, "races", list))
        return cls(
            Identity(*(_of(identity, name, str) for name in ("chip", "mlx", "kernels", "pair"))),
            _of(raw, "target", str),
            None if raw.get("drafter") is None else _of(raw, "drafter", str),
            _of(raw, "at", str),
            _seconds(raw.get("seconds"), "seconds"),
            None if raw.get("costs") is None else PassCosts.from_dict(_of(raw, "costs", Mapping)),
            _of(raw, "raced", bool),
            races,
            tuple(_of({"notes": note}, "notes", str) for note in _of(raw, "notes", list)) if "notes" in raw else (),
        )


def _of(raw: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = raw.get(name)
    if not isinstance(value, kind):
        raise ConfigError(f"tune {name}: got {value!r}, expected another kind of value")
    return value


def _race(raw: object) -> RaceResult:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"tune races: got {raw!r}, expected objects")
    seconds, out = _of(raw, "seconds", Mapping), _of(raw, "out", Mapping)
    kernel, key, stock, winner = (_of(raw, name, str) for name in ("kernel", "key", "stock", "winner"))
    times = {str(name): _seconds(value, "races") for name, value in seconds.items()}
    if winner != stock and not (times.get(winner) and times.get(stock)):
        raise ConfigError(f"tune winner: got {winner!r}, expected one that ran, and the stock operation beside it")
    return RaceResult(kernel, key, stock, winner, times, {str(name): str(reason) for name, reason in out.items()})


def _seconds(value: object, name: str) -> float:
    if not is_seconds(value):
        raise ConfigError(f"tune {name}: got {value!r}, expected seconds")
    return float(value)


def identity_of(chip: Chip, pair: str) -> Identity:
    """What is measured now holds for this.

    Args:
        pair: the engine's fingerprint.
    """
    text = all_sources() + repr(sorted(dispatcher().wanted.items()))
    name = f"{chip.name or 'unknown chip'}, {chip.architecture or 'no Apple GPU'}, {chip.gpu_cores or '?'} cores"
    return Identity(name, chip.mlx or "unknown", hashlib.sha256(text.encode()).hexdigest()[:16], pair)


class TuneFolder:
    """The records in one folder.

    Args:
        folder: is made when something is saved.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def file_of(self, identity: Identity) -> Path:
        """Where the record of an identity lies."""
        digest = hashlib.sha256("|".join(asdict(identity).values()).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"

    def find(self, identity: Identity) -> tuple[TuneRecord | None, str | None]:
        """The record of an identity, or None; and a note where there is a file that cannot be used."""
        file = self.file_of(identity)
        if not file.is_file():
            return None, None
        record, note = _read(file)
        if record is not None and record.identity != identity:
            return None, f"{file}: holds for another machine or pair: passed over"
        return record, note

    def records(self) -> tuple[list[TuneRecord], list[str]]:
        """Every record that can be read, newest first, and a note for each file that cannot."""
        found, notes = [], []
        for file in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []:
            record, note = _read(file)
            found += [record] if record is not None else []
            notes += [note] if note is not None else []
        return sorted(found, key=lambda record: record.at, reverse=True), notes

    def check(self) -> None:
        """Find out whether a record could be kept, before time is spent on one.

        Raises:
            OSError: the folder cannot be made, or nothing be written in it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder, prefix=".tune-"):
            pass

    @contextmanager
    def alone(self, wait_s: float = 0.0) -> Iterator[bool]:
        """Keep other processes from measuring meanwhile: False where one of them does, and goes on doing so.

        A foreground takes it for all of its time, a background for each slice: so it makes way for the other.
        """
        try:
            handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # nothing can be kept there either; that is told by whoever writes
            yield True
            return
        try:
            yield _locked(handle, time.monotonic() + wait_s)
        finally:
            os.close(handle)

    def save(self, record: TuneRecord) -> Path:
        """Write a record whole, or not at all.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.file_of(record.identity)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".tune-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(record.to_dict(), stream, indent=1)
                stream.write("\n")
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return file


def _locked(handle: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return True
        else:
            return True


def _read(file: Path) -> tuple[TuneRecord | None, str | None]:
    try:
        if not file.is_file():
            raise ConfigError("not a file")
        if file.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{file.stat().st_size} bytes, expected at most {MOST_BYTES}")
        return TuneRecord.from_dict(json.loads(file.read_text(encoding="utf-8"))), None
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        line = " ".join(str(error).split())[:200]
        return None, f"{file}: got a tune file that cannot be used ({line}): passed over"

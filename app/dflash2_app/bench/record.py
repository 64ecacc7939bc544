"""What a measurement leaves: one JSON object, and one CSV row per arm and setting.

Owns: names and order of the fields (docs/architecture.md, section 5) and the check that a file can be written before
anything slow starts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import dflash2_mlx as d2

from ..errors import UsageError

PHASES = ("draft", "select", "verify", "commit", "host_gap")
_ABOUT = ("model", "drafter", "endpoint", "set", "max_tokens", "repeats", "seed")
_ARM = """width requests rounds generated_tokens prompt_tokens tokens_per_second speedup speedup_quarter
speedup_three_quarters acceptance_length acceptance_rate expected_length prefill_s peak_memory_bytes texts_compared
texts_identical""".split()


@contextmanager
def claimed(files: Mapping[str, Path | None]) -> Iterator[None]:
    """Hold the files of some options while a measurement runs; if it fails, those that were new are taken away.

    Raises:
        UsageError: one cannot be written; names the option and the reason.
    """
    created: list[Path] = []
    kept = False
    try:
        for option, path in files.items():
            if path is not None and _open(option, path):
                created.append(path)
        yield
        kept = True
    finally:
        if not kept:
            for path in created:
                path.unlink(missing_ok=True)


def _open(option: str, path: Path) -> bool:
    """Whether opening it made the file."""
    existed = path.exists()
    try:
        with path.open("a", encoding="utf-8"):
            return not existed
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{option}: got {str(path)!r}, expected a writable file ({reason})") from None


def settings_json(reports: Sequence[d2.bench.SettingReport], *, server: bool) -> list[dict[str, Any]]:
    """The field `settings`: what was measured, as plain JSON."""
    return [
        {
            "depth": report.setting.depth,
            "temperature": report.setting.temperature,
            "arms": [_arm_json(arm, server=server) for arm in report.arms],
        }
        for report in reports
    ]


def _arm_json(arm: d2.bench.ArmReport, *, server: bool) -> dict[str, Any]:
    found = asdict(arm)
    found["mode"] = "server" if server else ("plain" if arm.width == 1 else "dflash2")
    if server:  # how it decodes, and in what memory, is its own business
        found["width"] = found["peak_memory_bytes"] = found["rounds"] = None
    return found


def write_csv(path: Path, record: Mapping[str, Any]) -> None:
    """One row per arm and setting of a record made by `settings_json`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        _write_rows(file, record)


def csv_text(record: Mapping[str, Any]) -> str:
    """What `write_csv` writes."""
    text = io.StringIO(newline="")
    _write_rows(text, record)
    return text.getvalue()


def _write_rows(file: TextIO, record: Mapping[str, Any]) -> None:
    arms = [(setting, arm) for setting in record["settings"] for arm in setting["arms"]]
    positions = max((len(arm["acceptance_by_position"]) for _, arm in arms), default=0)
    columns = [
        *_ABOUT, "depth", "temperature", "mode", *_ARM,
        *(f"acceptance_{place + 1}" for place in range(positions)), *(f"{name}_ms" for name in PHASES),
    ]  # fmt: skip
    writer = csv.DictWriter(file, columns, restval="")
    writer.writeheader()
    for setting, arm in arms:
        writer.writerow(_row(record, setting, arm))


def _row(record: Mapping[str, Any], setting: Mapping[str, Any], arm: Mapping[str, Any]) -> dict[str, Any]:
    ratios, texts = arm["speedup_by_repeat"] or {}, arm["texts"] or {}
    row = {name: record[name] for name in _ABOUT}
    row |= {"depth": setting["depth"], "temperature": setting["temperature"], "mode": arm["mode"]}
    row |= {name: arm[name] for name in _ARM if name in arm}
    row |= {"speedup_quarter": ratios.get("quarter"), "speedup_three_quarters": ratios.get("three_quarters")}
    row |= {"texts_compared": texts.get("compared"), "texts_identical": texts.get("identical")}
    row |= {f"acceptance_{place + 1}": share for place, share in enumerate(arm["acceptance_by_position"])}
    return row | {f"{name}_ms": arm["milliseconds"][name]["median"] for name in PHASES if name in arm["milliseconds"]}

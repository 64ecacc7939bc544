"""A process that writes settings again and again: `python writer.py FILE NAME TIMES`; TIMES 0 never ends."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from dflash2_app.settings.files import JsonFile


def main(path: str, name: str, times: str) -> None:
    file = JsonFile(Path(path), "models")

    def add(records: dict[str, Any]) -> None:
        record = records.setdefault(name, {"count": 0, "filler": "x" * 2000})
        record["count"] += 1
        records["shared"] = {"count": records.get("shared", {"count": 0})["count"] + 1}

    for number in itertools.count(1):
        file.update(add)
        print(number, flush=True)
        if number == int(times):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])

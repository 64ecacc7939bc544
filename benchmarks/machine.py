"""What a measurement ran on, and how benchmarks end: one line for bad input, one table, one JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import mlx.core as mx

from dflash2_mlx.device.blas import load_blas
from dflash2_mlx.errors import Dflash2Error


class BadInput(Exception):
    """The user's mistake; its text is one line."""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def run_command(main: Callable[[Sequence[str] | None], None], name: str) -> None:
    """Run a benchmark's `main`; what the user did wrong becomes one line on stderr and exit status 2."""
    try:
        main(None)
    except (BadInput, Dflash2Error) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)


def describe_machine() -> dict[str, Any]:
    """Everything that may explain a number."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cpu_cores": os.cpu_count(),
        "device": str(mx.default_device()),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "python": platform.python_version(),
        "blas": _blas(),
        "commit": _commit(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def print_machine(machine: dict[str, Any]) -> None:
    print(f"{machine['processor']}, {machine['cpu_cores']} cores, {machine['system']}, device {machine['device']}")
    print(f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, Python {machine['python']}, commit {machine['commit']}")
    print(f"BLAS: {machine['blas']}; load average {machine['load_average']}")


def write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


def check_writable(path: Path | None) -> None:
    """Refuse a bad output path before minutes are spent."""
    if path is not None and not path.absolute().parent.is_dir():
        raise BadInput(f"--json: got {str(path)!r}, expected a file in an existing folder")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return str(mx.device_info().get("device_name", platform.processor() or platform.machine()))


def _blas() -> str:
    found = load_blas()
    if found.library is None:
        return found.reason or "the system's"
    return f"{found.version or found.library}, threads {found.threads or os.environ.get('OPENBLAS_NUM_THREADS', 'all')}"


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()

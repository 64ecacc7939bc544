"""`dflash2-mlx`: assembles the commands and is the one place that catches exceptions.

Owns: the list of commands, `--version`, exit codes. Invariant: importing this module imports no MLX, so that
`--help` is quick; a command imports the library when it runs.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from .commands.bench import bench
from .commands.chat import chat
from .commands.convert import convert
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.generate import generate
from .commands.models import models
from .commands.serve import serve
from .commands.settings import settings
from .commands.train import train
from .console.output import show_problem, silence_stdout, use_lossy_encoding
from .errors import INTERRUPTED, USAGE, ReaderGone, explain

NAME = "dflash2-mlx"
COMMANDS = {
    "generate": generate, "chat": chat, "demo": demo, "serve": serve, "bench": bench, "doctor": doctor, "train": train,
    "convert": convert,
}  # fmt: skip

GROUPS = {"models": models, "settings": settings}


app = typer.Typer(name=NAME, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    versions = {name: _installed(name) for name in (NAME, "mlx", "mlx-lm")}
    print(f"{NAME} {versions[NAME]} (mlx {versions['mlx']}, mlx-lm {versions['mlx-lm']}, "
          f"Python {platform.python_version()})")  # fmt: skip
    raise typer.Exit


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from a checkout"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """DFlash 2 speculative decoding on MLX: the target model's own text, several tokens per pass."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code; the entry point of the installed command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # A caller that closed a stream (`>&-`) leaves None behind.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - for the life of the process
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    use_lossy_encoding()
    # Its warnings (a prompt longer than the context) repeat, at length, what our errors say in one line.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # our error line says what its warnings say
    try:
        code = app(arguments, prog_name=NAME, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        silence_stdout()
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - the boundary: nothing gets out as a traceback
        return _report(error, arguments)


def _report(error: BaseException, arguments: list[str]) -> int:
    problem = explain(error)
    if os.environ.get("DFLASH2_DEBUG") == "1":
        traceback.print_exception(error)
    if not problem.message:  # a group was named alone: its help is on the screen already
        return problem.exit_code
    hint = problem.hint
    if hint is None and problem.exit_code == USAGE:
        hint = f"`{' '.join([NAME, *_command_of(arguments)])} --help` lists the options"
    show_problem(problem.message, hint)
    return problem.exit_code


def _command_of(arguments: list[str]) -> list[str]:
    """The words of a command line that name its command."""
    first, second = [*arguments, "", ""][:2]
    if first in GROUPS:
        known = {command.name for command in GROUPS[first].registered_commands}
        return [first, second] if second in known else [first]
    return [first] if first in COMMANDS else []

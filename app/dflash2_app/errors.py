"""What the command line says when something goes wrong, and the exit code it leaves.

Owns: the application's own errors and the one table from an exception to a message and a hint. Does not
print. Invariant: every exception becomes one line; only `DFLASH2_DEBUG=1` shows a traceback.

Exit codes: 0 done, 1 it failed, 2 the command line was wrong, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import typer

import dflash2_mlx as d2

FAILED = 1
USAGE = 2
INTERRUPTED = 130

DEBUG_HINT = "set DFLASH2_DEBUG=1 to see the traceback"


class AppError(Exception):
    """A problem the application found itself; `hint` says what to do about it."""

    exit_code = FAILED

    def __init__(self, message: str, *, hint: str | None = None):
        super().__init__(message)
        self.hint = hint


class UsageError(AppError):
    """The command line asks for something that cannot be: options that exclude each other, a bad value."""

    exit_code = USAGE


class ReaderGone(Exception):
    """Whoever read our standard output has seen enough (`| head`): stop, there is nothing to say."""


@dataclass(frozen=True)
class Problem:
    """One exception, ready to be shown."""

    message: str
    hint: str | None
    exit_code: int


def explain(error: BaseException) -> Problem:
    """Turn an exception into one line, a hint or None, and an exit code."""
    if isinstance(error, AppError):
        return Problem(one_line(str(error)), error.hint, error.exit_code)
    if isinstance(error, typer.TyperException):
        return Problem(_reworded(error.format_message()), None, error.exit_code)
    setting = _setting(error)
    if setting is not None:
        return Problem(setting, None, USAGE)
    for kind, hint in _table():
        if isinstance(error, kind):
            return Problem(_describe(error), hint, FAILED)
    return Problem(f"unexpected {type(error).__name__}: {one_line(str(error))}", DEBUG_HINT, FAILED)


def _setting(error: BaseException) -> str | None:
    """The message of an option that does not suit the model, named as the command line names it."""

    name, colon, rest = one_line(str(error)).partition(":")
    if name == "chat_template_kwargs":
        name = "chat_template_args"
    elif not isinstance(error, d2.SettingError):
        return None
    return f"--{name.replace('_', '-')}{colon}{rest}"


def _reworded(message: str) -> str:
    """Give a message of Typer's the form of our own: `--option: got …`, no capital, no full stop."""
    message = one_line(message).removesuffix(".")
    message = re.sub(r"^Invalid value for '(.+?)': ", r"\1: ", message)
    return message[:1].lower() + message[1:]


def one_line(text: str) -> str:
    """Fold every run of blanks and line ends into one space."""
    return " ".join(text.split())


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    if isinstance(error, OSError) and error.strerror:
        return f"output: {error.strerror.lower()}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    return one_line(str(error)) or type(error).__name__


def _table() -> list[tuple[type[BaseException], str | None]]:
    """List exception types with their hints: subclasses first, the first match counts."""
    return [
        (d2.PairError, "--drafter must be made for this very --model; --drafter none decodes without one"),
        (d2.LicenceError, "--draft-bits quantizes it in memory, where it is used, without a copy"),
        (d2.CheckpointError, "--model and --drafter take a folder with config.json and weights, or a Hub id"),
        (d2.UnsupportedModelError, "this model's family has no adapter yet"),
        (d2.PromptError, None),
        (d2.ConfigError, None),
        (d2.Dflash2Error, None),
        (ImportError, "is the installation complete? On Linux: pip install 'mlx[cpu]'"),
        (MemoryError, "a smaller --model, or --draft-bits 4, needs less"),
        (OSError, None),
    ]

"""Reads a message, has it answered or obeyed, and reads the next one.

Owns: what an error means: where somebody types it is told and the chat goes on; in a pipe it ends the run, because the
lines after it were written for another state.
"""

from __future__ import annotations

import dflash2_mlx as d2

from ..errors import AppError, explain
from .app import ChatApp
from .reader import Reader
from .slash import Leave, obey


def run_chat(app: ChatApp, reader: Reader) -> None:
    """Chat until the input ends or `/exit`.

    Raises:
        AppError, Dflash2Error, OSError: in a pipe.
        KeyboardInterrupt: in a pipe, or when Ctrl-C was pressed twice during a reply.
    """
    # RuntimeError is what MLX raises when an allocation fails.
    expected = (AppError, d2.Dflash2Error, OSError, MemoryError, RuntimeError)
    while True:
        text = reader.read()
        if text is None:
            return
        if not text.strip():
            continue
        try:
            if text.startswith("/"):
                obey(app, text)
            else:
                app.ask(text)
        except Leave:
            return
        except expected as error:
            if not app.interactive:
                raise
            problem = explain(error)
            app.view.problem(problem.message, problem.hint)

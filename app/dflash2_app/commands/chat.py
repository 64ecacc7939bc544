"""`dflash2-mlx chat`: talk with a model, in a terminal or through a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import AppError, UsageError
from ..output import Output, is_terminal
from .grouping import grouped
from .options import MINI, NO_DRAFTER, BlockSize, MaxTokens, ModelOptions, SamplingOptions, valued
from .parsers import filled, path

if TYPE_CHECKING:
    import dflash2_mlx as d2

    from ..chat.app import ChatApp
    from ..chat.reader import Reader
    from ..chat.startup import PairChoice, Seams
    from ..chat.view import View

_PANEL = "Chat"
_chat = valued(_PANEL)
HINT = "/help lists the commands · Ctrl-C stops a reply · Ctrl-D leaves"


@dataclass(frozen=True)
class ChatOptions:
    """Where a chat begins and where it is kept."""

    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the chat NAME, or with the last one", rich_help_panel=_PANEL)
    ] = False
    system: Annotated[str | None, _chat("--system", "TEXT", "A system message in front", filled)] = None
    max_tokens: Annotated[int | None, MaxTokens] = None
    block_size: Annotated[int | None, BlockSize] = None
    base_path: Annotated[
        Path | None,
        _chat("--base-path", "FOLDER", "Where chats are kept", path, default="$DFLASH2_BASE_PATH or ~/.dflash2-mlx"),
    ] = None


@grouped
def chat(
    models: ModelOptions,
    sampling: SamplingOptions,
    options: ChatOptions,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="With --resume: which chat")] = None,
) -> None:
    """Chat with a model; through a pipe, every line is one message."""
    if name is not None and not options.resume:
        raise UsageError(f"NAME: got {name!r}, expected --resume before it")
    from ..chat.app import ChatApp
    from ..chat.loop import run_chat
    from ..chat.store import ChatStore, base_folder

    store = ChatStore(base_folder(options.base_path))
    resumed = _resumed(store.names(), name) if options.resume else None
    with Output() as out:
        screen = _Screen(out)
        for note in sampling.without_effect():
            out.note(note)
        engine, load = _start(models, out, interactive=screen.interactive)
        view = screen.view()
        app = ChatApp(engine, load, view, store, interactive=screen.interactive)
        out.end_status()
        _configure(app, sampling, options)
        view.header(app.describe(), HINT)
        if engine.row_cost_note and app.drafts:
            view.note(engine.row_cost_note)
        app.tell_template()
        if resumed is not None:
            app.restore(resumed)
        run_chat(app, screen.reader(app))


def _resumed(names: list[str], name: str | None) -> str:
    if name is None and not names:
        raise AppError(
            "--resume: got no saved chat, expected one", hint="a chat is saved after every turn, or by /save"
        )
    return name or names[0]


def _configure(app: ChatApp, sampling: SamplingOptions, options: ChatOptions) -> None:
    """Take over what the command line says about replies."""
    if sampling.logit_bias:
        raise UsageError("--logit-bias: got it, expected none: a chat has no such setting")
    given = {item.name: getattr(sampling, item.name) for item in fields(sampling) if item.name != "logit_bias"}
    given |= {"block_size": options.block_size, "max_tokens": options.max_tokens}
    app.settings = replace(app.settings, **{key: value for key, value in given.items() if value is not None})
    app.settings.config("auto")
    most = app.engine.block_size
    if options.block_size is not None and most is not None and options.block_size > most:
        raise UsageError(f"--block-size: got {options.block_size}, expected an integer in 2..{most}")
    if options.system is not None:
        if not app.conversation.has_template:
            raise UsageError(f"--system: got {options.system!r}, expected none: "
                             f"{app.engine.target_name} has no chat template")  # fmt: skip
        app.chat.system = options.system


# The pair.


def seams(out: Output) -> Seams:
    """The functions that know the settings and the registry; until they are there, a chat starts with the mini pair."""
    from ..chat.startup import Seams

    return Seams()


def _start(
    models: ModelOptions, out: Output, *, interactive: bool
) -> tuple[d2.Engine, Callable[[str, str | None], d2.Engine]]:
    """Load what was named, configured or chosen; returns the engine and the way to another one."""
    from ..chat.startup import decide, declined, look_around

    def load(target: str, drafter: str | None) -> d2.Engine:
        named = drafter or (NO_DRAFTER if target != MINI else None)
        bits = models.draft_bits if named != NO_DRAFTER else None
        engine = replace(models, model=target, drafter=named, draft_bits=bits).load(out)
        out.end_status()
        return engine

    if models.model is None and models.drafter is not None:
        return models.load(out), load
    known = seams(out)
    start = decide(look_around(models.model, interactive=interactive, seams=known))
    if start.action == "offer" and start.pair is not None:
        if _agreed(start.pair):
            known.download(start.pair)
            return load(start.pair.target, start.pair.drafter), load
        start = declined(start.pair)
    if start.note:
        out.note(start.note)
    if start.action == "pair" and start.pair is not None:
        return load(start.pair.target, start.pair.drafter), load
    return (load(MINI, None) if start.action == "mini" else models.load(out)), load


def _agreed(pair: PairChoice) -> bool:
    from ..chat.startup import offer_text

    return typer.confirm(offer_text(pair), default=True, err=True)


# The screen.


class _Screen:
    """Which of the two screens this is: one that can be drawn on, or plain lines."""

    def __init__(self, out: Output):
        self._out = out
        self.interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self._drawn = self.interactive and is_terminal(sys.stdout)
        self._colour = not os.environ.get("NO_COLOR")

    def view(self) -> View:
        if self._drawn:
            from ..chat.terminal_view import TerminalView, terminal_size

            return TerminalView(sys.stdout, lambda: terminal_size(sys.stdout), colour=self._colour)
        from ..chat.view import LinesView

        return LinesView(self._out, talks=self.interactive)

    def reader(self, app: ChatApp) -> Reader:
        from ..chat.reader import LineReader, TerminalReader
        from ..chat.slash import completions

        if not self._drawn:
            return LineReader(prompt="> " if self.interactive else "")
        history = app.store.history_file()
        if history is None:
            app.view.note(f"{app.store.base}: no history is kept, the folder cannot be written")
        return TerminalReader(history, lambda line: completions(app, line), colour=self._colour)

"""`dflash2-mlx chat`: talk with a model, in a terminal or through a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..chat.settings import DEFAULT_MAX_TOKENS, DEFAULTS
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
    max_tokens: Annotated[int, MaxTokens] = DEFAULT_MAX_TOKENS
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
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="With --resume: which chat")] = None,
) -> None:
    """Chat with a model; through a pipe, every line is one message."""
    if name is not None and not options.resume:
        raise UsageError(f"NAME: got {name!r}, expected --resume before it")
    from ..chat.app import ChatApp
    from ..chat.loop import run_chat
    from ..chat.store import ChatStore, base_folder

    store = ChatStore(base_folder(options.base_path))
    resumed = _resumed(store.names(), name) if options.resume else None
    own = store.load(resumed) if resumed is not None else None  # before anything slow, in case it is damaged
    with Output() as out:
        screen = _Screen(out)
        if own is not None and own.model and models.model is None and models.drafter is None:
            out.note(f"using {own.model}, as the chat did; --model takes another one")
            models = replace(models, model=own.model, drafter=own.drafter or _none_for(own.model))
        engine, load = _start(models, out, interactive=screen.interactive)
        view = screen.view()
        app = ChatApp(engine, load, view, store, interactive=screen.interactive)
        out.end_status()
        if resumed is not None:
            app.restore(resumed)
        _configure(app, sampling, options)
        view.header(app.describe(), HINT)
        if engine.row_cost_note and app.drafts:
            view.note(engine.row_cost_note)
        app.tell_template()
        run_chat(app, screen.reader(app))


def _resumed(names: list[str], name: str | None) -> str:
    if name is None and not names:
        raise AppError(
            "--resume: got no saved chat, expected one", hint="a chat is saved after every turn, or by /save"
        )
    return name or names[0]


def _configure(app: ChatApp, sampling: SamplingOptions, options: ChatOptions) -> None:
    """Put what the command line says in the place of the defaults, or of what a resumed chat was saved with."""
    given = {name: getattr(sampling, name) for name in DEFAULTS if name not in ("max_tokens", "block_size")}
    given |= {"block_size": options.block_size, "max_tokens": options.max_tokens}
    given = {name: value for name, value in given.items() if value != DEFAULTS[name]}
    most = app.engine.block_size
    if options.block_size is not None and most is not None and options.block_size > most:
        raise UsageError(f"--block-size: got {options.block_size}, expected an integer in 2..{most}")
    app.settings = replace(app.settings, logit_bias=sampling.config().logit_bias, **given)
    for name in given:
        reason = app.settings.without_effect(name, drafts=app.drafts)
        if reason:
            app.view.note(reason)
    if options.system is not None:
        if not app.conversation.has_template:
            raise UsageError(
                f"--system: got {options.system!r}, expected none: {app.engine.target_name} has no chat template"
            )
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
        named = drafter or _none_for(target)
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


def _none_for(target: str) -> str | None:
    """The drafter option of a target that goes without; the embedded pair brings its own."""
    return None if target == MINI else NO_DRAFTER


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

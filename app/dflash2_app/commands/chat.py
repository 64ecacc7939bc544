"""`dflash2-mlx chat`: talk with a model, in a terminal or through a pipe."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..chat.settings import DEFAULT_MAX_TOKENS, ReplySettings
from ..console.output import Output, is_terminal
from ..errors import AppError, UsageError
from ..reports.machine import first_use_note
from .options import MINI, NO_DRAFTER, BlockSize, ModelOptions, SamplingOptions, Tune, VerifyMode, max_tokens, valued
from .parsers import filled, grouped

if TYPE_CHECKING:
    from ..chat.app import ChatApp
    from ..chat.reader import Reader
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
    max_tokens: Annotated[int | None, max_tokens(DEFAULT_MAX_TOKENS)] = None
    block_size: Annotated[int | None, BlockSize] = None
    verify_mode: Annotated[str | None, VerifyMode] = None
    tune: Annotated[bool | None, Tune] = None


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
    from ..chat.store import ChatStore
    from ..settings.paths import find_base
    from .chat_pairs import Pairs

    store = ChatStore(find_base(models.base_path).folder)
    resumed = _resumed(store.names(), name) if options.resume else None
    own = store.load(resumed) if resumed is not None else None  # before anything slow, in case it is damaged
    with Output() as out:
        screen = _Screen(out)
        if own is not None and own.model and models.model is None and models.drafter is None:
            out.note(f"using {own.model}, as the chat did; --model takes another one")
            models = replace(models, model=own.model, drafter=_as_saved(own.model, own.drafter))
        pairs = Pairs(models, out, options.tune)
        engine = pairs.start(interactive=screen.interactive)
        view = screen.view()
        app = ChatApp(engine, pairs, view, store, rules=pairs, interactive=screen.interactive)
        assert pairs.pair is not None
        configured = pairs.pair.generation_config()
        app.settings = ReplySettings.from_config(configured)
        app.chat.template = dict(configured.chat_template_kwargs or {})
        if resumed is not None:
            app.restore(resumed)
        _configure(app, sampling, options)
        view.header(app.describe(), HINT)
        if engine.row_cost_note and app.drafts:
            view.note(engine.row_cost_note)
        if (note := first_use_note()) is not None:
            view.note(note)
        app.tell_template()
        run_chat(app, screen.reader(app))


def _resumed(names: list[str], name: str | None) -> str:
    if name is None and not names:
        raise AppError(
            "--resume: got no saved chat, expected one", hint="a chat is saved after every turn, or by /save"
        )
    return name or names[0]


def _as_saved(target: str, drafter: str | None) -> str | None:
    """The drafter option that brings a saved pair back; the embedded one brings its own."""
    return drafter or (None if target == MINI else NO_DRAFTER)


def _configure(app: ChatApp, sampling: SamplingOptions, options: ChatOptions) -> None:
    """Put what the command line says in the place of what was configured, or of what a resumed chat was saved with."""
    given = sampling.given()
    given |= {name: value for name, value in sampling.extra().items() if value is not None}
    for name in ("block_size", "max_tokens", "verify_mode"):
        if vars(options)[name] is not None:
            given[name] = vars(options)[name]
    most = app.engine.block_size
    if options.block_size is not None and most is not None and options.block_size > most:
        raise UsageError(f"--block-size: got {options.block_size}, expected an integer in 2..{most}")
    app.settings = replace(app.settings, **given)
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

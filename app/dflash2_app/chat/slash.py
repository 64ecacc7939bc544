"""The commands of a chat, `/help` to `/exit`.

Owns: their names, what they take and do, and what completes them. A command that cannot be done raises an error that
names it, what it got and what it expects.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import AppError, UsageError
from .app import AUTO, PLAIN, ChatApp
from .overview import list_chats
from .settings import DEFAULTS, NONE

NO_DRAFTER = "none"
MOST_LISTED = 20  # chats that /load shows
LEVELS = ("low", "medium", "high")
SWITCH, EFFORTS = "enable_thinking", ("reasoning_effort", "reasoning_strength")


class Leave(Exception):
    """`/exit`: the chat is over."""


@dataclass(frozen=True)
class Command:
    """One command; `run` gets the rest of the line, `words` what may stand there."""

    takes: str
    summary: str
    run: Callable[[ChatApp, str], None]
    words: Callable[[ChatApp], Iterable[str]] = lambda app: ()


def obey(app: ChatApp, line: str) -> None:
    """Carry out a line that begins with a slash.

    Raises:
        UsageError: there is no such command.
        AppError, Dflash2Error: it cannot be done.
        Leave: it was `/exit`.
    """
    name, _, rest = line.strip().partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        near = get_close_matches(name.lower(), COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
        raise UsageError(f"command: got {name!r}, expected one of those in /help", hint=hint)
    rest = rest.strip()
    if rest and not command.takes:
        raise UsageError(f"{name}: got {rest!r}, expected nothing after it")
    command.run(app, rest)


def completions(app: ChatApp, line: str) -> list[str]:
    """What may stand in place of the last word of a line that begins with a slash."""
    name, space, rest = line.partition(" ")
    if not space:
        return [known for known in COMMANDS if known.startswith(name)]
    command = COMMANDS.get(name)
    if command is None or " " in rest:
        return []
    return [word for word in command.words(app) if word.startswith(rest)]


def _help(app: ChatApp, rest: str) -> None:
    app.view.pairs([(f"{name} {command.takes}".strip(), command.summary) for name, command in COMMANDS.items()])


def _model(app: ChatApp, rest: str) -> None:
    if not rest:
        app.view.info(app.describe())
        return
    try:
        names = shlex.split(rest)
    except ValueError:
        names = []
    if not 1 <= len(names) <= 2:
        raise UsageError(
            f"/model: got {rest!r}, expected a target and perhaps a drafter, in quotes if they hold blanks"
        )
    app.switch(names[0], names[1] if len(names) == 2 else None)
    app.view.info(app.describe())


def _draft(app: ChatApp, rest: str) -> None:
    if rest == "on" and app.engine.drafter is None:
        raise AppError("/draft: got 'on', expected a drafter: none is loaded")
    if rest in ("on", "off", NO_DRAFTER):
        app.mode = AUTO if rest == "on" else PLAIN
    elif rest:
        app.switch(app.engine.target_name, rest)
        app.mode = AUTO
    app.view.info(app.describe())


def _set(app: ChatApp, rest: str) -> None:
    name, _, value = rest.replace("=", " ", 1).partition(" ")
    name, value = name.replace("-", "_"), value.strip()
    if not name:
        app.view.pairs([(key, _shown(item)) for key, item in app.settings.listed()])
        return
    if name not in DEFAULTS:
        raise UsageError(f"/set: got {name!r}, expected one of {', '.join(DEFAULTS)}")
    if value:
        changed = app.settings.changed(name, value)
        most = app.engine.block_size
        if most is not None and changed.block_size is not None and changed.block_size > most:
            raise AppError(f"block_size: got {changed.block_size}, expected an integer in 2..{most}")
        app.settings = changed
        reason = changed.without_effect(name, drafts=app.drafts)
        if reason:
            app.view.note(reason)
    app.view.pairs([(name, _shown(dict(app.settings.listed())[name]))])


def _shown(value: object) -> str:
    return NONE if value is None else str(value)


def _system(app: ChatApp, rest: str) -> None:
    if rest and not app.conversation.has_template:
        raise AppError(f"/system: got {rest!r}, expected none: {app.engine.target_name} has no chat template")
    if rest:
        app.chat.system = "" if rest == NO_DRAFTER else rest
    app.view.info(f"system text: {app.chat.system or NO_DRAFTER}")


def _think(app: ChatApp, rest: str) -> None:
    if rest in ("show", "fold"):
        app.view.fold_thinking = rest == "fold"
    elif rest in ("on", "off"):
        _need_variable(app, rest, (SWITCH,))
        app.chat.template = {**app.chat.template, SWITCH: rest == "on"}
    elif rest in LEVELS:
        name = _need_variable(app, rest, EFFORTS)
        app.chat.template = {**app.chat.template, name: rest}
    elif rest == NONE:
        app.chat.template = {}
    elif rest:
        raise UsageError(f"/think: got {rest!r}, expected {', '.join(_think_words(app))}")
    told = ", ".join(f"{name} {value}" for name, value in app.chat.template.items()) or "as the model's template has it"
    app.view.info(f"thinking: {told}; {'folded' if app.view.fold_thinking else 'shown'}")


def _need_variable(app: ChatApp, given: str, names: tuple[str, ...]) -> str:
    known = app.conversation.template_variables
    for name in names:
        if name in known:
            return name
    raise AppError(
        f"/think: got {given!r}, expected a model whose chat template knows {' or '.join(names)}: "
        f"that of {app.engine.target_name} does not"
    )


def _think_words(app: ChatApp) -> tuple[str, ...]:
    return ("on", "off", *LEVELS, NONE, "show", "fold")


def _undo(app: ChatApp, rest: str) -> None:
    question = app.chat.drop_turn()
    if question is None:
        raise AppError("/undo: got a chat without messages, expected one to take back")
    app.autosave()
    line = " ".join(question.split())
    app.view.info(f"taken back: {line[:60]}{'…' if len(line) > 60 else ''}")


def _retry(app: ChatApp, rest: str) -> None:
    app.retry()


def _save(app: ChatApp, rest: str) -> None:
    name = app.save(rest or None)
    app.view.info(f"saved as {name}")


def _load(app: ChatApp, rest: str) -> None:
    if rest:
        app.restore(rest)
        return
    found = list_chats(app.store)[:MOST_LISTED]
    app.view.info("\n".join(f"{one.id}  {one.problem or one.heading}".rstrip() for one in found) or "no saved chats")


def _stats(app: ChatApp, rest: str) -> None:
    rows = app.totals.rows()
    if not rows:
        app.view.info("no reply yet")
        return
    app.view.pairs(rows)
    if app.totals.by_position:
        app.view.bars(app.totals.by_position)


def _reset(app: ChatApp, rest: str) -> None:
    app.reset()
    app.view.info("a new chat")


def _exit(app: ChatApp, rest: str) -> None:
    raise Leave


COMMANDS = {
    "/help": Command("", "This list", _help),
    "/model": Command("[TARGET [DRAFTER]]", "Show the pair, or load another one", _model),
    "/draft": Command("[on|off|DRAFTER]", "Switch drafting, or load another drafter", _draft,
                      lambda app: ("on", "off")),
    "/set": Command("[NAME [VALUE]]", "Show or change a setting; 'default' takes it back", _set,
                    lambda app: DEFAULTS),
    "/system": Command("[TEXT|none]", "Show or change the system text", _system),
    "/think": Command("[on|off|LEVEL|show|fold]", "How much the model thinks, and whether it is shown", _think,
                      _think_words),
    "/undo": Command("", "Take the last turn back", _undo),
    "/retry": Command("", "Reply once more to the last message", _retry),
    "/save": Command("[NAME]", "Save the chat under a name", _save),
    "/load": Command("[NAME]", "List saved chats, or go on with one", _load, lambda app: app.store.names()),
    "/stats": Command("", "Speed, reused tokens and acceptance by position", _stats),
    "/reset": Command("", "Begin a new chat", _reset),
    "/exit": Command("", "Leave, as Ctrl-D does", _exit),
}  # fmt: skip

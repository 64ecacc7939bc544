"""A chat with the embedded pair: replies, commands, and what stays after things went wrong."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_app.chat.app import ChatApp
from dflash2_app.chat.loop import run_chat
from dflash2_app.chat.record import Chat, Message
from dflash2_app.chat.settings import ReplySettings
from dflash2_app.chat.slash import COMMANDS, Leave, completions, obey
from dflash2_app.chat.store import ChatStore
from dflash2_app.errors import AppError, UsageError
from tests.pairs import BOOTSTRAP

from .conftest import RecordingView

QUESTION = "def add(a, b):"


def roles(app: ChatApp) -> list[str]:
    return [message.role for message in app.chat.messages]


def press_after(pieces: int, view: RecordingView) -> Callable[[], None]:
    """Ctrl-C once so many pieces of a reply were shown."""

    def press() -> None:
        if len(view.shown) == pieces:
            time.sleep(0.3)  # meanwhile the session goes ahead of its reader
            signal.raise_signal(signal.SIGINT)

    return press


def test_turns_reuse_what_was_read(app: ChatApp, view: RecordingView) -> None:
    app.ask(QUESTION)
    first = app.chat.messages[1].content
    assert first and view.reply == first
    assert view.endings[-1].startswith("8 tokens · ") and " of 8 · cut at max_tokens 8" in view.endings[-1]
    app.ask("again")
    stats = app.totals.last
    assert stats is not None
    assert stats.cached_tokens > stats.prompt_tokens // 2
    assert stats.prompt_tokens - stats.cached_tokens < 16
    view.said.clear()
    obey(app, "/stats")
    said = "\n".join(view.said)
    assert f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens reused" in said
    assert "2 replies, 16 tokens" in said
    assert len(view.charts[-1]) == 7


def test_a_reply_that_ends_just_at_the_limit_was_not_cut(engine: d2.Engine, view: RecordingView, base: Path) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    ids = d2.generate(engine, messages, d2.GenerationConfig(max_tokens=8)).token_ids
    at = next(at for at in range(7, 0, -1) if ids[at] not in ids[:at])
    ending = dataclasses.replace(engine, stop_token_ids=frozenset({ids[at]}))
    app = ChatApp(ending, lambda *_: ending, view, ChatStore(base), settings=ReplySettings(max_tokens=at + 1))
    app.ask(QUESTION)
    assert app.chat.messages[1].finish_reason == "stop" and "cut at" not in view.endings[-1]


def test_a_reply_is_that_of_generate(app: ChatApp, engine: d2.Engine) -> None:
    app.ask(QUESTION)
    app.ask("more")
    messages = [message.for_template() for message in app.chat.messages]
    for turn in (1, 3):
        alone = d2.generate(engine, messages[:turn], d2.GenerationConfig(max_tokens=8))
        assert alone.text == messages[turn]["content"]


def test_undo_and_retry(app: ChatApp, view: RecordingView) -> None:
    app.ask("one")
    app.ask("two")
    second = app.chat.messages[-1].content
    obey(app, "/retry")
    assert app.chat.messages[-1].content == second and roles(app) == ["user", "assistant"] * 2
    assert "note: greedy decoding writes the same reply again" in "\n".join(view.said)
    obey(app, "/set temperature 1.5")
    obey(app, "/retry")
    assert app.chat.messages[-1].content != second
    obey(app, "/undo")
    assert [message.content for message in app.chat.messages][:1] == ["one"] and len(app.chat.messages) == 2
    assert view.said[-1] == "taken back: two"
    obey(app, "/undo")
    for command in ("/undo", "/retry"):
        with pytest.raises(AppError, match=f"{command}: got a chat without messages"):
            obey(app, command)


def test_a_stopped_reply_is_kept_and_gone_on_from(app: ChatApp, view: RecordingView) -> None:
    app.settings = app.settings.changed("max_tokens", "200")
    view.on_show = press_after(3, view)
    app.ask(QUESTION)
    reply = app.chat.messages[-1]
    assert reply.partial and reply.content == view.reply == app.conversation.reply_text()
    assert view.endings[-1].endswith("stopped")
    first = app.totals.last
    assert first is not None and first.generated_tokens < 100
    view.on_show = lambda: None
    app.settings = app.settings.changed("max_tokens", "4")
    app.ask("go on")
    # All that stood there was known, also what the session had written ahead of its reader.
    assert app.totals.last.cached_tokens >= first.prompt_tokens + first.generated_tokens - 1
    assert not app.chat.messages[-1].partial
    saved = json.loads(app.store.path(app.name or "").read_text(encoding="utf-8"))
    assert saved["messages"][1]["partial"] is True and "partial" not in saved["messages"][3]


def test_a_second_ctrl_c_interrupts(app: ChatApp, view: RecordingView) -> None:
    app.settings = app.settings.changed("max_tokens", "200")
    view.on_show = lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)] and None
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        app.ask(QUESTION)
    assert signal.getsignal(signal.SIGINT) is before
    assert roles(app) == ["user", "assistant"] and app.chat.messages[-1].partial, "what was shown is kept"


def test_a_reply_that_fails_keeps_what_was_shown(app: ChatApp, view: RecordingView) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    view.on_show = fail
    with pytest.raises(OSError, match="Input/output"):
        app.ask(QUESTION)
    assert roles(app) == ["user", "assistant"] and view.endings == ["failed"]
    view.on_show = lambda: None
    app.ask("go on")
    assert roles(app) == ["user", "assistant"] * 2


def test_a_question_that_is_refused_is_not_kept(app: ChatApp) -> None:
    app.ask("short")
    with pytest.raises(AppError, match=r"context: got a chat of \d+ tokens, expected fewer than the model's 2048"):
        app.ask("x = 1\n" * 700)
    assert roles(app) == ["user", "assistant"]
    app.settings = app.settings.changed("temperature", "1")
    with pytest.raises(AppError, match="context: got"):
        app.chat.messages[0].content = "x = 1\n" * 700
        obey(app, "/retry")
    assert roles(app) == ["user", "assistant"], "the old reply is back"


def test_the_end_of_the_context(app: ChatApp, view: RecordingView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d2.Engine, "context_length", property(lambda engine: 30))
    app.settings = app.settings.changed("max_tokens", "4096")
    app.ask("x = 1")
    assert view.endings[-1].endswith("the context is full") and not app.chat.messages[-1].partial
    with pytest.raises(AppError, match="context: got a chat of"):
        app.ask("more")


def test_save_load_and_reset(app: ChatApp, view: RecordingView) -> None:
    obey(app, "/system Be brief.")
    obey(app, "/set seed 5")
    app.ask(QUESTION)
    obey(app, "/save first")
    assert view.said[-1] == "saved as first"
    kept = app.chat.messages
    obey(app, "/reset")
    assert app.chat.messages == [] and app.chat.system == "Be brief." and app.name != "first"
    obey(app, "/system none")
    obey(app, "/set seed default")
    obey(app, "/load first")
    assert app.chat.messages == kept and app.chat.system == "Be brief." and app.settings.seed == 5
    assert view.said[-2:] == [f"> {QUESTION}", kept[1].content], "one sees where it was left"
    assert view.said[-3] == f"first: 1 turn, begun {app.chat.begun}"
    app.ask("more")
    assert len(app.store.load("first").messages) == 4, "a loaded chat goes on being saved"
    obey(app, "/load")
    assert f"first  {QUESTION}" in view.said[-1].split("\n")
    with pytest.raises(AppError, match="chat: got 'other'"):
        obey(app, "/load other")
    assert len(app.chat.messages) == 4


def test_every_turn_is_saved(app: ChatApp, base: Path) -> None:
    app.ask(QUESTION)
    (name,) = app.store.names()
    assert len(app.store.load(name).messages) == 2
    app.ask("more")
    assert app.store.names() == [name] and len(app.store.load(name).messages) == 4


def test_a_folder_that_cannot_be_written_is_told_once(app: ChatApp, base: Path, view: RecordingView) -> None:
    base.write_text("a file in the folder's place", encoding="utf-8")
    app.ask("one")
    app.ask("two")
    assert sum("could not be saved" in line for line in view.said) == 1
    assert roles(app) == ["user", "assistant"] * 2


def test_drafting_is_switched(app: ChatApp, view: RecordingView) -> None:
    app.ask(QUESTION)
    drafted = app.chat.messages[-1].content
    obey(app, "/draft off")
    assert "switched off, plain decoding" in view.said[-1]
    obey(app, "/retry")
    assert "plain decoding" in view.endings[-1] and app.chat.messages[-1].content == drafted
    obey(app, "/draft on")
    assert "block size 8" in view.said[-1]
    obey(app, "/set block-size 4")
    assert "block size 4" in app.describe()
    obey(app, "/retry")
    assert " of 4" in view.endings[-1] and app.chat.messages[-1].content == drafted


def test_another_pair_and_one_that_is_not_there(app: ChatApp, view: RecordingView, pair: Path) -> None:
    app.ask(QUESTION)
    obey(app, f"/model {pair / 'target'}")
    assert "no drafter, plain decoding" in view.said[-1]
    with pytest.raises(AppError, match="/draft: got 'on', expected a drafter"):
        obey(app, "/draft on")
    obey(app, f"/draft {pair / 'drafter'}")
    assert "block size 8" in view.said[-1]
    app.ask("more")
    assert roles(app) == ["user", "assistant"] * 2
    with pytest.raises(d2.CheckpointError, match="missing"):
        obey(app, "/model missing")
    app.ask("still there")
    assert " of 8" in view.endings[-1]


def test_a_block_size_that_the_pair_does_not_have(app: ChatApp, view: RecordingView) -> None:
    with pytest.raises(AppError, match=r"block_size: got 9, expected an integer in 2\.\.8"):
        obey(app, "/set block_size 9")
    app.settings = app.settings.changed("block_size", "16")
    app.fit_settings()
    assert app.settings.block_size is None and "block_size: 16 was taken back" in view.said[-1]


def test_thinking_is_told_to_the_template(app: ChatApp, view: RecordingView) -> None:
    before = app.conversation.prompt([{"role": "user", "content": "x"}])
    obey(app, "/think on")
    obey(app, "/think high")
    assert app.chat.template == {"enable_thinking": True, "reasoning_effort": "high"}
    assert app.conversation.prompt([{"role": "user", "content": "x"}], app.chat.template) != before
    obey(app, "/think fold")
    assert view.fold_thinking and view.said[-1] == "thinking: enable_thinking True, reasoning_effort high; folded"
    obey(app, "/think default")
    assert app.chat.template == {}
    with pytest.raises(UsageError, match="/think: got 'hard', expected on, off"):
        obey(app, "/think hard")


def test_a_target_without_a_template(app: ChatApp, view: RecordingView) -> None:
    app.switch(str(BOOTSTRAP / "target"), None)
    assert view.said[-1].startswith("note: the target has no chat template")
    app.ask(QUESTION)
    app.ask(QUESTION)
    first, second = app.chat.messages[1], app.chat.messages[3]
    assert first.content == second.content, "a message is continued without those before it"
    with pytest.raises(AppError, match=r"/system: got 'x', expected none: .*target has no chat template"):
        obey(app, "/system x")
    with pytest.raises(AppError, match="/think: got 'on'"):
        obey(app, "/think on")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/", "command: got '/'"),
        ("/modle x", "command: got '/modle'"),
        ("/exit now", "/exit: got 'now', expected nothing after it"),
        ("/set heat 3", "/set: got 'heat', expected one of temperature"),
        ("/set temperature hot", "temperature: got 'hot'"),
        ("/save a/b", "name: got 'a/b'"),
    ],
)
def test_wrong_commands_are_told_and_change_nothing(app: ChatApp, view: RecordingView, line: str, message: str) -> None:
    before = app.settings
    lines = iter([line, "/exit"])
    run_chat(app, Script(lines.__next__))
    assert view.said[-1].startswith(f"error: {message}")
    assert app.settings == before
    app.interactive = False
    with pytest.raises(AppError, match="got"):
        obey(app, line)


class Script:
    """A reader of given lines."""

    def __init__(self, read: Callable[[], str]):
        self.read = read


def test_settings_without_effect_are_told(app: ChatApp, view: RecordingView) -> None:
    obey(app, "/set top_p=0.5")
    assert view.said[-2:] == ["note: top_p has no effect at temperature 0", "top_p: 0.5"]
    obey(app, "/set")
    assert "max_tokens: 8" in view.said


def test_every_command_is_in_the_help_and_completed(app: ChatApp, view: RecordingView) -> None:
    obey(app, "/help")
    assert [line.split(":")[0].split()[0] for line in view.said] == list(COMMANDS)
    assert completions(app, "/s") == ["/set", "/system", "/save", "/stats"]
    assert completions(app, "/set te") == ["temperature"]
    assert completions(app, "/think o") == ["on", "off"]
    assert completions(app, "/set temperature 0") == completions(app, "/nope x") == []
    with pytest.raises(Leave):
        obey(app, "/EXIT")


def test_a_chat_that_was_changed_elsewhere_is_not_overwritten(app: ChatApp, view: RecordingView) -> None:
    app.ask(QUESTION)
    first = app.name
    assert first is not None
    theirs = app.store.load(first)
    theirs.messages += [Message("user", "from the browser"), Message("assistant", "yes")]
    app.store.save(first, theirs)
    with pytest.raises(AppError, match="it was changed elsewhere"):
        obey(app, "/save")
    app.ask("more")
    assert app.name != first and f"this one goes on as {app.name}, {first} stays as it is there" in " ".join(view.said)
    assert app.store.load(first).messages[2].content == "from the browser"
    assert [message.content for message in app.store.load(app.name or "").messages][2] == "more"
    app.ask("and more")
    assert len(app.store.names()) == 2, "it goes on under its new name"


def test_what_the_web_app_keeps_stays_with_the_chat(app: ChatApp, view: RecordingView) -> None:
    reply = Message("assistant", "yes", numbers={"ttft_s": 0.5}, finish_reason="stop")
    theirs = Chat([Message("user", "a"), reply, Message("user", "b")], title="Web", server={"stop": ["END"]})
    app.store.save("web", theirs)
    obey(app, "/load web")
    said = "\n".join(view.said)
    assert "web “Web”: 2 turns" in said and "stop: kept with the chat, without effect in the terminal" in said
    assert "its last question has no reply yet" in said
    app.settings = app.settings.changed("max_tokens", "8")
    app.ask("c")
    assert "the question without a reply was taken back" in "\n".join(view.said)
    saved = app.store.load("web")
    assert (saved.title, saved.server, saved.messages[1]) == ("Web", {"stop": ["END"]}, reply)
    assert [message.content for message in saved.messages[:3]] == ["a", "yes", "c"]
    assert saved.messages[3].numbers["mode"] == "dflash2" and saved.messages[3].finish_reason == "length"
    obey(app, "/load")
    assert "web  Web" in view.said[-1].split("\n")

"""One running chat: a pair, the messages, and replies.

Owns: making a reply and keeping what came of it, changing the pair, and saving. What is typed is read by `loop`, the
commands are in `slash`. Invariant: after any error or Ctrl-C the messages take turns, and every word that was shown of
a reply is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Protocol

import dflash2_mlx as d2

from ..engine.thinking import ThinkingSplitter
from ..errors import AppError
from .figures import SEPARATOR, Totals, counted, figures, numbers
from .reader import Stop, interrupts_ask
from .record import Chat, Message
from .settings import ReplySettings
from .store import ANY, ChangedElsewhere, ChatStore
from .view import View

Loader = Callable[[str, str | None], "d2.Engine"]


class Rules(Protocol):
    """What is configured for the loaded pair."""

    @property
    def context_window(self) -> int | None: ...

    @property
    def prefix_cache(self) -> d2.PrefixCache | None: ...

    def plain_reason(self, tokens: int) -> str | None: ...


NO_TEMPLATE = "the target has no chat template: each message is continued as bare text, without those before it"
PLAIN, AUTO = "plain", "auto"


class ChatApp:
    """A chat in progress.

    Args:
        engine: the loaded pair.
        load: makes an engine of a target and a drafter (None for none).
        view: where it is shown.
        store: where it is saved.
        rules: what the settings say of prompts of this pair.
        interactive: whether somebody types; a script's chat is saved only when asked, and Ctrl-C ends it.
    """

    def __init__(
        self,
        engine: d2.Engine,
        load: Loader,
        view: View,
        store: ChatStore,
        *,
        settings: ReplySettings | None = None,
        rules: Rules | None = None,
        interactive: bool = True,
    ):
        self.view, self.store, self.interactive = view, store, interactive
        self.settings = settings or ReplySettings()
        self.chat = Chat()
        self.name: str | None = store.fresh_name() if interactive else None
        self._revision: str | None = None  # of the file under this name; None before there is one
        self.mode = AUTO
        self._load, self._rules = load, rules
        self._told: set[str] = set()
        self._adopt(engine)

    # The pair.

    def _adopt(self, engine: d2.Engine) -> None:
        self.engine = engine
        cache = self._rules.prefix_cache if self._rules is not None else None
        self.conversation = d2.Conversation(engine, prefix_cache=cache)
        self.totals = Totals()
        self.fit_settings()

    @property
    def drafts(self) -> bool:
        """Whether replies are drafted."""
        return self.engine.drafter is not None and self.mode == AUTO and self.settings.verify_mode != "off"

    def fit_settings(self) -> None:
        """Take back a block size that this pair does not have, and say so."""
        size, most = self.settings.block_size, self.engine.block_size
        if size is not None and most is not None and size > most:
            self.settings = self.settings.changed("block_size", "default")
            self.view.note(f"block_size: {size} was taken back, this drafter has {most}")

    def describe(self) -> str:
        """The pair and how it decodes, in one line."""
        parts = [self.engine.target_name]
        if self.engine.drafter is None:
            parts.append("no drafter, plain decoding")
        elif not self.drafts:
            parts.append(f"drafter {self.engine.drafter_name} switched off, plain decoding")
        else:
            parts.append(f"drafter {self.engine.drafter_name}")
            parts.append(f"block size {self.settings.block_size or self.engine.block_size}")
        temperature = self.settings.temperature
        parts.append(f"temperature {temperature:g}" if temperature else "greedy")
        return SEPARATOR.join(parts)

    def switch(self, target: str, drafter: str | None) -> None:
        """Load another pair in place of this one; when that fails, the old one is loaded again.

        Raises:
            whatever loading raises: the old pair is back by then.
        """
        before = (self.engine.target_name, self.engine.drafter_name)
        # Two pairs may not fit into memory together, so the old one goes first.
        del self.engine, self.conversation
        try:
            engine = self._load(target, drafter)
        except BaseException:
            self._adopt(self._load(*before))
            raise
        self._adopt(engine)
        self.tell_template()

    def tell_template(self) -> None:
        """Say when the target knows no chats."""
        if not self.conversation.has_template:
            self.view.note(NO_TEMPLATE)

    # Replies.

    def ask(self, text: str) -> None:
        """Reply to a message."""
        if self.chat.messages and self.chat.messages[-1].role == "user":  # as the web app may leave one
            self.chat.messages.pop()
            self.view.note("the question without a reply was taken back")
        self.chat.messages.append(Message("user", text))
        try:
            self._reply()
        finally:
            if self.chat.messages[-1].role == "user":  # nothing came of it
                self.chat.messages.pop()

    def retry(self) -> None:
        """Reply once more to the last message.

        Raises:
            AppError: there is none.
        """
        if not self.chat.messages:
            raise AppError("/retry: got a chat without messages, expected one to reply to")
        old = self.chat.messages[-1] if self.chat.messages[-1].role == "assistant" else None
        self.chat.drop_reply()
        if self.settings.temperature == 0 or self.settings.seed is not None:
            why = "greedy decoding" if self.settings.temperature == 0 else "a fixed seed"
            self.view.note(f"{why} writes the same reply again; /set temperature or seed for another one")
        try:
            self._reply()
        finally:
            if old is not None and self.chat.messages[-1].role == "user":
                self.chat.messages.append(old)

    def _reply(self) -> None:
        """Write a reply to the last message and keep it, unless nothing came of it."""
        prompt = self.conversation.prompt(
            self.chat.for_template(), self.chat.template if self.conversation.has_template else None
        )
        config = self.settings.config(self._mode_for(len(prompt)), self._room(len(prompt)))
        splitter = ThinkingSplitter(self.conversation.thinking, inside=self.conversation.opens_thinking(prompt))
        message = Message("assistant", "", partial=True)
        self.view.begin_reply(markdown=self.conversation.has_template)
        ending = "failed"
        try:
            with interrupts_ask(self.interactive) as stop:
                stats = self._stream(prompt, config, splitter, message, stop)
            self._land(message, splitter, None)
            ending = self._ending(stats, config, message)
            message.numbers = numbers(stats)
        finally:
            # Also after an error or a second Ctrl-C: what was shown is kept.
            message.thinking = message.thinking.strip("\n")
            self.view.end_reply(ending)
            if message.content or message.thinking:
                self.chat.messages.append(message)
        self.totals.add(stats)
        self.autosave()

    def _stream(
        self, prompt: list[int], config: d2.GenerationConfig, splitter: ThinkingSplitter, message: Message, stop: Stop
    ) -> d2.GenerationStats:
        raw, stopped = "", False
        with closing(self.conversation.stream(prompt, config)) as events:
            for event in events:
                self._tell(event.stats.notices)
                raw += event.text
                self._land(message, splitter, event.text)
                self.view.progress(_progress(event, stop))
                message.partial = event.finish_reason is None
                message.finish_reason = event.finish_reason or ""
                stopped = stop.pressed and message.partial
                if stopped:
                    break
        if stopped:
            # The session may be a round ahead of what was read: show that too, then nothing need be read again.
            whole = self.conversation.reply_text()
            self._land(message, splitter, whole[len(raw) :] if whole.startswith(raw) else "")
        return event.stats

    def _land(self, message: Message, splitter: ThinkingSplitter, text: str | None) -> None:
        """Show and keep a piece of the reply; None is its end."""
        for kind, part in splitter.finish() if text is None else splitter.push(text):
            if kind == "thinking":
                message.thinking += part
            else:
                message.content += part
            self.view.show(kind, part)

    def _mode_for(self, prompt_tokens: int) -> str:
        """Drafting or not: what was asked for, and what the settings say of a prompt of this length."""
        reason = self._rules.plain_reason(prompt_tokens) if self._rules is not None and self.drafts else None
        if reason is None:
            return self.mode
        self._tell([f"plain decoding: {reason}"])
        return PLAIN

    def _room(self, prompt_tokens: int) -> int | None:
        """Tokens the model's context leaves for the reply.

        Raises:
            AppError: none.
        """
        window = self._rules.context_window if self._rules is not None else None
        limits = [limit for limit in (self.engine.context_length, window) if limit is not None]
        if not limits:
            return None
        limit = min(limits)
        if prompt_tokens >= limit:
            raise AppError(
                f"context: got a chat of {prompt_tokens} tokens, expected fewer than the model's {limit}",
                hint="/undo takes the last turn away, /reset begins a new chat",
            )
        return limit - prompt_tokens

    def _tell(self, notices: list[str]) -> None:
        for notice in notices:
            if notice not in self._told:
                self._told.add(notice)
                self.view.note(notice)

    def _ending(self, stats: d2.GenerationStats, config: d2.GenerationConfig, message: Message) -> str:
        parts = [figures(stats)]
        if message.partial:
            parts.append("stopped")
        elif message.finish_reason == "length":
            cut = config.max_tokens < self.settings.max_tokens
            parts.append("the context is full" if cut else f"cut at max_tokens {config.max_tokens}")
        if not (message.content or message.thinking):
            parts.append("nothing was written, so this turn is not kept")
        return SEPARATOR.join(parts)

    # Saving.

    def save(self, name: str | None) -> str:
        """Write the chat under a name, or under the one it has; returns the name.

        Raises:
            ChangedElsewhere: it was changed in a browser or another terminal since it was read or saved here.
            AppError: it cannot be written.
        """
        own = name is None or name == self.name
        name = name or self.name or self.store.fresh_name()
        self.chat.settings = self.settings.saved()
        self.chat.model, self.chat.drafter = self.engine.target_name, self.engine.drafter_name
        self._revision = self.store.write(name, self.chat, replaces=self._revision if own else ANY)
        self.name = name
        return name

    def autosave(self) -> None:
        """Save after a turn where chats are saved; a full disk is told once and ends nothing.

        A chat that was changed elsewhere meanwhile goes on under a new name, so that both versions stay.
        """
        if self.name is None:
            return
        try:
            try:
                self.save(None)
            except ChangedElsewhere as error:
                old, self.name, self._revision = self.name, self.store.fresh_name(), None
                self.view.note(f"{error}; this one goes on as {self.name}, {old} stays as it is there")
                self.save(None)
        except AppError as error:
            self._tell([str(error)])

    def restore(self, name: str) -> None:
        """Go on with a saved chat.

        Raises:
            AppError: there is none, or it is damaged; the running chat stays.
        """
        chat, revision = self.store.read(name)
        self.settings = ReplySettings.restored(chat.settings)
        self.chat, self.name, self._revision = chat, name, revision
        self.conversation.reset()
        self.totals = Totals()
        self.fit_settings()
        turns = counted(chat.turns, "turn")
        title = f" “{chat.heading}”" if chat.title else ""
        self.view.info(f"{name}{title}: {turns}, begun {chat.begun}")
        if len(chat.messages) > 1 and chat.messages[-1].role == "assistant":
            question, reply = chat.messages[-2:]
            self.view.earlier(question.content, reply.content, markdown=self.conversation.has_template)
        if chat.messages and chat.messages[-1].role == "user":
            self.view.note("its last question has no reply yet; /retry writes one")
        if chat.server:
            self.view.note(f"{', '.join(chat.server)}: kept with the chat, without effect in the terminal")
        if chat.model and chat.model != self.engine.target_name:
            self.view.note(f"it was written with {chat.model}; /model {chat.model} goes back to that")

    def reset(self) -> None:
        """Begin a new chat; the system text and the settings stay."""
        self.chat = Chat(system=self.chat.system, template=self.chat.template)
        self.name = self.store.fresh_name() if self.interactive else None
        self._revision = None
        self.conversation.reset()
        self.totals = Totals()


def _progress(event: d2.GenerationEvent, stop: Stop) -> str:
    if stop.pressed:
        return "stopping"
    if event.stats.generated_tokens:
        return figures(event.stats)
    known = event.stats.cached_tokens
    return f"reading {event.prefilled - known} of {counted(event.prompt_tokens - known, 'new token')}"

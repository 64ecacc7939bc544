"""What a chat is made of, and its form as JSON.

Owns: messages, system text and settings of one chat, undoing turns, and the strict reading of a saved one. Knows
nothing of models, files or screens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..errors import AppError
from .figures import SEPARATOR, counted

VERSION = 1


ROLES = ("user", "assistant")


MOST_STOPS = 16


MOST_HEADING = 80  # characters


@dataclass
class Message:
    """One message. `thinking` is what the model wrote before its answer; `partial` marks a reply that was stopped.

    Of a reply also: `finish_reason` ("stop" or "length"), `error`, the line that ended it half-way, and `numbers`, how
    it went, by the names of the server's `usage.dflash2`. Each may be missing.
    """

    role: str
    content: str
    thinking: str = ""
    partial: bool = False
    finish_reason: str = ""
    error: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)

    def for_template(self) -> dict[str, str]:
        """As chat templates expect it; whether earlier thinking is shown to the model is the template's affair."""
        message = {"role": self.role, "content": self.content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        return message


@dataclass
class Chat:
    """One chat, as it is saved.

    `server` holds what only the web app's chat knows: "stop" and "thinking_budget".
    """

    messages: list[Message] = field(default_factory=list)
    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)  # variables for the chat template, as /think sets them
    model: str = ""
    drafter: str | None = None
    created_at: str = field(default_factory=lambda: now())
    updated_at: str = ""  # when it was saved last; empty before
    title: str = ""
    server: dict[str, Any] = field(default_factory=dict)

    def for_template(self) -> list[dict[str, str]]:
        """All messages, the system text in front."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(message.for_template() for message in self.messages)]

    @property
    def turns(self) -> int:
        return sum(message.role == "user" for message in self.messages)

    @property
    def begun(self) -> str:
        """When it was begun, in this machine's time; what stands in the file where that is no time."""
        try:
            return datetime.fromisoformat(self.created_at).astimezone().strftime("%Y-%m-%d %H:%M")
        except ValueError:
            return self.created_at

    @property
    def heading(self) -> str:
        """What to call it: the title, else how the first question begins."""
        first = self.messages[0].content if self.messages else ""
        line = " ".join((self.title or first).split())
        return line if len(line) <= MOST_HEADING else f"{line[: MOST_HEADING - 1]}…"

    def drop_reply(self) -> bool:
        """Take the last reply away; False when the last message is none."""
        if not self.messages or self.messages[-1].role != "assistant":
            return False
        self.messages.pop()
        return True

    def drop_turn(self) -> str | None:
        """Take the last question and its reply away; returns the question, None when there is none."""
        self.drop_reply()
        return self.messages.pop().content if self.messages else None

    def to_dict(self, *, touch: bool = True) -> dict[str, Any]:
        """The saved form; `touch` says that it was changed now."""
        if touch:
            self.updated_at = now()
        return {
            "version": VERSION,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "model": self.model,
            "drafter": self.drafter,
            **({"title": self.title} if self.title else {}),
            "system": self.system,
            "settings": self.settings,
            "template": self.template,
            **({"server": self.server} if self.server else {}),
            "messages": [_message_dict(message) for message in self.messages],
        }

    @classmethod
    def from_dict(cls, value: Any) -> Chat:
        """Read the saved form.

        Raises:
            AppError: names what is wrong and where.
        """
        if not isinstance(value, dict):
            raise AppError(f"chat: got a JSON {type(value).__name__}, expected an object")
        if value.get("version") != VERSION:
            raise AppError(f"version: got {value.get('version')!r}, expected {VERSION}")
        messages = value.get("messages")
        if not isinstance(messages, list):
            raise AppError(f"messages: got {messages!r}, expected a list")
        drafter = value.get("drafter")
        if drafter is not None and not isinstance(drafter, str):
            raise AppError(f"drafter: got {drafter!r}, expected text or null")
        return cls(
            messages=[_read_message(number, item) for number, item in enumerate(messages)],
            title=_typed(value, "title", str, ""),
            system=_typed(value, "system", str, ""),
            settings=_typed(value, "settings", dict, {}),
            template=_typed(value, "template", dict, {}),
            server=_server(_typed(value, "server", dict, {})),
            model=_typed(value, "model", str, ""),
            drafter=drafter,
            created_at=_typed(value, "created_at", str, now()),
            updated_at=_typed(value, "updated_at", str, ""),
        )


def now() -> str:
    """The time as ISO text, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _message_dict(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        shown["reasoning_content"] = message.thinking
    if message.partial:
        shown["partial"] = True
    for name in ("finish_reason", "error", "numbers"):
        if getattr(message, name):
            shown[name] = getattr(message, name)
    return shown


def _read_message(number: int, item: Any) -> Message:
    where = f"messages[{number}]"
    if not isinstance(item, dict):
        raise AppError(f"{where}: got {item!r}, expected an object with role and content")
    role = ROLES[number % 2]  # a chat takes turns, and begins with the user
    if item.get("role") != role:
        raise AppError(f"{where}.role: got {item.get('role')!r}, expected {role!r}")
    return Message(
        role,
        _typed(item, "content", str, None, where),
        _typed(item, "reasoning_content", str, "", where),
        _typed(item, "partial", bool, False, where),
        _typed(item, "finish_reason", str, "", where),
        _typed(item, "error", str, "", where),
        _typed(item, "numbers", dict, {}, where),
    )


def _server(value: dict[str, Any]) -> dict[str, Any]:
    for name, given in value.items():
        if name == "stop":
            texts = isinstance(given, list) and all(isinstance(item, str) and item for item in given)
            if not texts or len(given) > MOST_STOPS:
                raise AppError(f"server.stop: got {given!r}, expected a list of at most {MOST_STOPS} texts")
        elif name == "thinking_budget":
            if isinstance(given, bool) or not isinstance(given, int) or given < 0:
                raise AppError(f"server.thinking_budget: got {given!r}, expected an integer >= 0")
        else:
            raise AppError(f"server.{name}: got {given!r}, expected 'stop' and 'thinking_budget' only")
    return value


def _typed(value: dict[str, Any], key: str, kind: type, default: Any, where: str = "") -> Any:
    """The value under a key, or the default where there is none; None as default means that there must be one."""
    found = value.get(key, default)
    if not isinstance(found, kind):
        name = f"{where}.{key}" if where else key
        words = {str: "text", dict: "an object", bool: "true or false"}
        raise AppError(f"{name}: got {found!r}, expected {words[kind]}")
    return found


def to_markdown(chat: Chat) -> str:
    """The whole chat: what was said, thought, and how each reply went."""
    head = [f"# {chat.heading or 'Chat'}", _facts(chat)]
    if chat.system:
        head += ["## System", chat.system]
    parts = [text for message in chat.messages for text in _parts(message)]
    return "\n\n".join(text.strip("\n") for text in [*head, *parts] if text) + "\n"


def _facts(chat: Chat) -> str:
    facts = [f"model {chat.model}" if chat.model else "", f"begun {chat.created_at}"]
    facts += [f"{name} {value}" for name, value in {**chat.settings, **chat.template, **chat.server}.items()]
    return f"*{SEPARATOR.join(fact for fact in facts if fact)}*"


def _parts(message: Message) -> list[str]:
    if message.role == "user":
        return ["## Question", message.content]
    thinking = "\n".join(f"> {line}".rstrip() for line in message.thinking.splitlines())
    return ["## Reply", f"> *Thinking*\n>\n{thinking}" if thinking else "", message.content, _ending(message)]


def _ending(message: Message) -> str:
    """How a reply went, and why it ends where it does."""
    numbers, facts = message.numbers, []
    if isinstance(numbers.get("generated_tokens"), int):
        facts.append(counted(numbers["generated_tokens"], "token"))
    for name, words in (("tokens_per_second", "{:.1f} tokens/s"), ("acceptance_length", "acceptance {:.2f}")):
        if isinstance(numbers.get(name), (int, float)):
            facts.append(words.format(numbers[name]))
    if numbers.get("fallback_reason"):
        facts.append(f"plain decoding: {numbers['fallback_reason']}")
    if message.error:
        facts.append(message.error)
    elif message.partial:
        facts.append("stopped")
    elif message.finish_reason == "length":
        facts.append("cut at max_tokens")
    return f"*{SEPARATOR.join(facts)}*" if facts else ""

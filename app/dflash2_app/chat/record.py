"""What a chat is made of, and its form as JSON.

Owns: messages, system text and settings of one chat, undoing turns, and the strict reading of a saved one. Knows
nothing of models, files or screens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..errors import AppError

VERSION = 1
ROLES = ("user", "assistant")


@dataclass
class Message:
    """One message. `thinking` is what the model wrote before its answer; `partial` marks a reply that was stopped."""

    role: str
    content: str
    thinking: str = ""
    partial: bool = False

    def for_template(self) -> dict[str, str]:
        """As chat templates expect it; whether earlier thinking is shown to the model is the template's affair."""
        message = {"role": self.role, "content": self.content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        return message


@dataclass
class Chat:
    """One chat, as it is saved."""

    messages: list[Message] = field(default_factory=list)
    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)  # variables for the chat template, as /think sets them
    model: str = ""
    drafter: str | None = None
    created_at: str = field(default_factory=lambda: now())

    def for_template(self) -> list[dict[str, str]]:
        """All messages, the system text in front."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(message.for_template() for message in self.messages)]

    @property
    def turns(self) -> int:
        return sum(message.role == "user" for message in self.messages)

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

    def to_dict(self) -> dict[str, Any]:
        """The saved form."""
        return {
            "version": VERSION,
            "created_at": self.created_at,
            "updated_at": now(),
            "model": self.model,
            "drafter": self.drafter,
            "system": self.system,
            "settings": self.settings,
            "template": self.template,
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
            system=_typed(value, "system", str, ""),
            settings=_typed(value, "settings", dict, {}),
            template=_typed(value, "template", dict, {}),
            model=_typed(value, "model", str, ""),
            drafter=drafter,
            created_at=_typed(value, "created_at", str, now()),
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
    )


def _typed(value: dict[str, Any], key: str, kind: type, default: Any, where: str = "") -> Any:
    """The value under a key, or the default where there is none; None as default means that there must be one."""
    found = value.get(key, default)
    if not isinstance(found, kind):
        name = f"{where}.{key}" if where else key
        words = {str: "text", dict: "an object", bool: "true or false"}
        raise AppError(f"{name}: got {found!r}, expected {words[kind]}")
    return found

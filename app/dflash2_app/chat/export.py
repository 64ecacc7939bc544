"""A chat as a document to read.

Owns: its Markdown form. The other form of an export is the saved file itself.
"""

from __future__ import annotations

from .figures import SEPARATOR, counted
from .record import Chat, Message


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

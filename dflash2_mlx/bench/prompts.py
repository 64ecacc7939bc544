"""The prompts of a measurement: reading them, drawing a sample, and putting text in front of them.

Owns: what a prompt is here (a first message and, for a conversation, the user's later turns), the files it is read
from, and the embedded set. Knows nothing of the Hub.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoints.files import MINI_PROMPTS
from ..errors import PromptError
from ..generation.text import Prompt, Tokenizer

T = TypeVar("T")
SELECTION_SEED = 42  # of the authors' runner
_EXPECTED = '{"prompt": text}, {"messages": [...]} or {"turns": [text, ...]}'


@dataclass(frozen=True)
class BenchPrompt:
    """One item: `first` starts the conversation, `follow_ups` are the user's later turns, each a request of its own.

    `family` names the kind of item, where the file does.
    """

    first: Prompt
    follow_ups: tuple[str, ...] = ()
    family: str | None = None

    @property
    def requests(self) -> int:
        """Replies that are asked for: one, and one for each follow-up."""
        return 1 + len(self.follow_ups)

    def answered(self, asked: Prompt, reply: str, turn: int) -> Prompt:
        """The conversation after turn number `turn`: what was asked, the model's own reply, the user's next turn."""
        return [
            *as_messages(asked),
            {"role": "assistant", "content": reply},
            {"role": "user", "content": self.follow_ups[turn]},
        ]


def as_messages(prompt: Prompt) -> list[Mapping[str, Any]]:
    """A text as one user message; messages as they are."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [message for message in prompt if isinstance(message, Mapping)]


def mini_prompts() -> list[BenchPrompt]:
    """The embedded set, made for the embedded pair; needs no network."""
    return read_prompts(MINI_PROMPTS)


def draw(items: Sequence[T], samples: int | None) -> list[T]:
    """The first `samples` of a shuffled list, by the authors' rule; None, or more than there are, gives all."""
    order = list(range(len(items)))
    random.Random(SELECTION_SEED).shuffle(order)
    return [items[place] for place in order[:samples]]


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read a file of prompts: JSON lines, or plain text with one prompt per line.

    JSON lines begin with `{`; each is `{"prompt": text}`, `{"messages": [...]}` or `{"turns": [text, ...]}`, with an
    optional "family". Other keys are left alone. Blank lines are skipped.

    Raises:
        PromptError: naming file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PromptError(f"prompts: got {str(path)!r}, expected a readable file ({reason})") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: got a byte that is not UTF-8 at {error.start}, expected UTF-8 text") from None
    return parse_prompts(text, str(path))


def parse_prompts(text: str, where: str) -> list[BenchPrompt]:
    """The prompts of a text, in the forms of `read_prompts`; `where` begins the error message.

    Raises:
        PromptError: naming the line.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise PromptError(f"{where}: got no prompts, expected at least one line")
    if not lines[0][1].lstrip().startswith("{"):
        return [BenchPrompt(line.rstrip("\r")) for _, line in lines]
    return [_parse(line, f"{where}:{number}") for number, line in lines]


def _parse(line: str, where: str) -> BenchPrompt:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        item = None
    if not isinstance(item, dict):
        raise PromptError(f"{where}: got {line[:60]!r}, expected a JSON object: {_EXPECTED}")
    return prompt_from(item, where)


def prompt_from(item: Mapping[str, Any], where: str) -> BenchPrompt:
    """One prompt from a parsed JSON object; `where` begins the error message.

    Raises:
        PromptError: none or several of the known keys, or a value of the wrong kind.
    """
    given = [key for key in ("prompt", "messages", "turns") if key in item]
    if len(given) != 1:
        raise PromptError(f"{where}: got {' and '.join(given) or 'none of them'}, expected exactly one of {_EXPECTED}")
    key, value, family = given[0], item[given[0]], item.get("family")
    if family is not None and not isinstance(family, str):
        raise PromptError(f"{where}: got family {family!r}, expected text")
    if key == "prompt" and isinstance(value, str) and value.strip():
        return BenchPrompt(value, family=family)
    if key == "turns" and _texts(value):
        return BenchPrompt(value[0], tuple(value[1:]), family)
    if key == "messages" and isinstance(value, list) and value and all(map(_is_message, value)):
        return BenchPrompt(value, family=family)
    raise PromptError(f"{where}: got {key} {json.dumps(value)[:60]}, expected {_EXPECTED}")


def _texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) and text.strip() for text in value)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def filler(prompts: Sequence[BenchPrompt], place: int, tokens: int, tokenizer: Tokenizer) -> str:
    """About `tokens` tokens of text from the other prompts of the set, repeated as often as needed.

    The prompt's own text comes in only where it is the only one: a model would copy it.

    Raises:
        PromptError: no prompt has text.
    """
    if not tokens:
        return ""
    others = [*prompts[place + 1 :], *prompts[:place]] or list(prompts)
    texts = [_text_of(prompt.first) for prompt in others]
    ids: list[int] = []
    for text in cycle(filter(None, texts)):
        ids.extend(tokenizer.encode(text + "\n\n"))
        if len(ids) >= tokens:
            return tokenizer.decode(ids[:tokens])
    raise PromptError("prompts: got messages without text, expected text to fill the context with")


def deepen(prompt: BenchPrompt, text: str) -> BenchPrompt:
    """Put a text in front of the first user message.

    Raises:
        PromptError: there is no such message.
    """
    if not text:
        return prompt
    if isinstance(prompt.first, str):
        return replace(prompt, first=f"{text}\n\n{prompt.first}")
    messages = [dict(message) for message in as_messages(prompt.first)]
    for message in messages:
        if message["role"] == "user" and isinstance(message["content"], str):
            message["content"] = f"{text}\n\n{message['content']}"
            return replace(prompt, first=messages)
    raise PromptError("prompts: got messages without a user's text, expected one to put the context in front of")


def _text_of(prompt: Prompt) -> str:
    contents = (message["content"] for message in as_messages(prompt))
    return "\n\n".join(content for content in contents if isinstance(content, str))

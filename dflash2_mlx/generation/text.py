"""Prompts in, text out.

Owns: rendering a prompt to token ids, detokenizing committed tokens piece by piece, and stop strings. Knows
nothing of models. Invariants: the pieces joined equal one decode of all tokens, and no piece ends inside a
character or inside what may become a stop string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jinja2

from ..errors import PromptError

REPLACEMENT = "\ufffd"  # what decoding gives for bytes that are not (yet) a character
Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]

# What chat templates raise at messages they do not like.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, LookupError, ValueError, AttributeError, ArithmeticError)
_BROKEN_BYTE = "<0x80>"  # as byte-fallback tokenizers write a byte
_MARK_TOKENS = 16  # no mark of thinking, with the line ends around it, is longer
NO_TEMPLATE = "the target has no chat template: the raw prompt was used"


class Tokenizer(Protocol):
    """What turns text into tokens and back."""

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Sequence[int], **kwargs: Any) -> str:
        """Text of token ids; U+FFFD for bytes that are no character."""


class ChatTokenizer(Tokenizer, Protocol):
    """What is used of an engine's tokenizer, mlx-lm's `TokenizerWrapper`."""

    has_chat_template: bool
    has_thinking: bool
    think_end: str

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **kwargs: Any
    ) -> list[int]:
        """Token ids of messages as the model's template writes them."""


@dataclass(frozen=True)
class RenderedPrompt:
    """Token ids, and what the user should know about how they came to be.

    `boundaries` are lengths at which other prompts will part from this one: after the system prompt, and before what
    the chat template adds to have the reply begin (which it may leave out, or write differently, once there is one).
    """

    ids: list[int]
    notices: list[str]
    boundaries: tuple[int, ...] = ()


def render_prompt(
    tokenizer: ChatTokenizer,
    prompt: Prompt,
    *,
    chat_template: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
    find_boundaries: bool = False,
) -> RenderedPrompt:
    """Turn text, chat messages or token ids into token ids, once for all that need them.

    Args:
        tokenizer: an engine's.
        prompt: a string (one user message when there is a chat template), messages with `role` and `content`, or ids.
        chat_template: False feeds a string as it is.
        template_kwargs: passed to the chat template (`enable_thinking`, ...).
        find_boundaries: also find `boundaries`, where a chat template is used; renders the messages again for each.
            `stream_generate` with a prefix cache wants them.
    Raises:
        PromptError: empty, malformed, or messages without a chat template to render them.
    """
    if not isinstance(prompt, (str, Sequence, Mapping)) or isinstance(prompt, bytes):
        raise PromptError(f"prompt: got {prompt!r}, expected text, chat messages or token ids")
    if not isinstance(prompt, str) and all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        ids = [int(item) for item in prompt if isinstance(item, int)]
        return RenderedPrompt(_not_empty(ids), [])
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError("prompt: got an empty string, expected text")
        if not (chat_template and tokenizer.has_chat_template):
            notices = [NO_TEMPLATE] if chat_template else []
            _refuse_template_kwargs(template_kwargs)
            return RenderedPrompt(_not_empty(list(tokenizer.encode(prompt))), notices)
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": prompt}]
    else:
        messages = _checked_messages(prompt)
    if not tokenizer.has_chat_template or not chat_template:
        _refuse_template_kwargs(template_kwargs)
        return _without_template(tokenizer, messages, chat_template)
    try:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **(template_kwargs or {}))
    except _TEMPLATE_ERRORS as error:
        line = " ".join(str(error).split())
        raise PromptError(
            f"messages: got what the chat template refuses ({line}), expected other roles or content"
        ) from None
    boundaries = _boundaries(tokenizer, messages, template_kwargs, ids) if find_boundaries else ()
    return RenderedPrompt(_not_empty(list(ids)), [], boundaries)


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Tokens, or characters, that two sequences begin with alike."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(left), len(right)))


def prompt_end(tokenizer: ChatTokenizer, ids: Sequence[int]) -> str:
    """The text at a prompt's end, without trailing blanks: enough of it to find a mark that opens or ends thinking.

    Args:
        tokenizer: an engine's.
        ids: of the prompt.
    """
    return str(tokenizer.decode(list(ids[-_MARK_TOKENS:]), skip_special_tokens=False)).rstrip()


def _boundaries(
    tokenizer: ChatTokenizer,
    messages: list[Mapping[str, Any]],
    template_kwargs: Mapping[str, Any] | None,
    ids: Sequence[int],
) -> tuple[int, ...]:
    """Tokens that the whole prompt has in common with the system prompt alone, and with the messages alone."""
    found = set()
    for part in ([messages[:1]] if messages[0]["role"] == "system" else []) + [messages]:
        try:
            alone = tokenizer.apply_chat_template(part, add_generation_prompt=False, **(template_kwargs or {}))
        except _TEMPLATE_ERRORS:
            continue  # a template may insist on a question; the prompt itself was rendered
        found.add(common_length(alone, ids))
    return tuple(sorted(found - {0}))


def _refuse_template_kwargs(template_kwargs: Mapping[str, Any] | None) -> None:
    if template_kwargs:
        raise PromptError(f"chat_template_kwargs: got {dict(template_kwargs)}, expected none: no chat template is used")


def _without_template(tokenizer: ChatTokenizer, messages: list[Mapping[str, Any]], wanted: bool) -> RenderedPrompt:
    if len(messages) != 1 or not wanted:
        raise PromptError(f"messages: got {len(messages)} messages, expected a plain prompt: no chat template is used")
    content = messages[0]["content"]
    if not isinstance(content, str):
        raise PromptError(f"messages[0].content: got {content!r}, expected text: no chat template is used")
    return RenderedPrompt(_not_empty(list(tokenizer.encode(content))), [NO_TEMPLATE])


def _checked_messages(prompt: Sequence[Any]) -> list[Mapping[str, Any]]:
    messages = list(prompt)
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f"messages[{number}]: got {message!r}, expected an object with role and content")
        if "content" not in message:
            raise PromptError(f"messages[{number}].content: got nothing, expected text")
    return messages


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise PromptError("prompt: got no tokens, expected at least one")
    return ids


class TextStream:
    """Detokenizes token by token and looks for stop strings, across token borders.

    Args:
        tokenizer: decodes ids.
        stops: strings that end the reply; they are kept out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._broken_byte = _broken_byte(tokenizer)
        self._ids: list[int] = []
        self._settled = 0  # tokens before this are printed and no longer needed as left context
        self._printed = 0  # tokens before this are printed
        self._held = ""  # decoded, but may be the beginning of a stop string
        self.stopped = False

    def push(self, token: int) -> str:
        """Add one token; returns the text that is now certain. Sets `stopped` when a stop string is complete."""
        self._ids.append(token)
        before, after = self._decode()
        fresh = after[len(before) :]
        if not fresh or after.endswith(REPLACEMENT) or self._may_change(after):
            # A stop string ends the reply here, so that no later token can change the text it stands in.
            return self._before_stop(self._held + fresh.rstrip(REPLACEMENT)) or ""
        self._settled, self._printed = self._printed, len(self._ids)
        return self._release(fresh, final=False)

    def finish(self) -> str:
        """The rest, when no more tokens come. Sets `stopped` when the rest completes a stop string."""
        if self.stopped:
            return ""
        before, after = self._decode()
        self._settled = self._printed = len(self._ids)
        return self._release(after[len(before) :], final=True)

    def _decode(self) -> tuple[str, str]:
        """Text of the piece printed last, and of that piece with all that follows it.

        Decoding with the last printed piece as left context keeps spaces that depend on it.
        """
        before = self._tokenizer.decode(self._ids[self._settled : self._printed])
        return before, self._tokenizer.decode(self._ids[self._settled :])

    def _may_change(self, text: str) -> bool:
        """Whether a later byte can change this text of whole characters.

        Where unknown characters are written as one token per byte, all bytes in a row are decoded together: one
        invalid byte makes U+FFFD of the valid characters in front of it too.
        """
        if self._broken_byte is None:
            return False
        return not self._tokenizer.decode([*self._ids[self._settled :], self._broken_byte]).startswith(text)

    def _before_stop(self, text: str) -> str | None:
        """The text in front of the first stop string in it, and nothing is held any more; None without one."""
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if not found:
            return None
        self.stopped = True
        self._held = ""
        return text[: min(found)]

    def _release(self, fresh: str, *, final: bool) -> str:
        text = self._held + fresh
        cut = self._before_stop(text)
        if cut is not None:
            return cut
        keep = 0 if final else self._possible_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0


def _broken_byte(tokenizer: Tokenizer) -> int | None:
    """The token of a byte that no character begins with, where bytes have tokens of their own; else None."""
    find = getattr(tokenizer, "convert_tokens_to_ids", None)
    token = find(_BROKEN_BYTE) if find is not None else None
    return token if isinstance(token, int) and token != getattr(tokenizer, "unk_token_id", None) else None

"""A chat of many turns with one engine, of which every token is read once.

Owns: the session that remembers what was read, and how a list of messages becomes a prompt that begins with it.
Knows nothing of screens or files; the caller keeps the messages. Invariant: a prompt's text is exactly what the
chat template makes of the messages. Only how the earlier part is cut into tokens may differ: it is the cut the model
itself made when it wrote that part, since encoding a reply's text again can give other tokens, and then nothing after
the first of them could be reused.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.meta

from ..decode.session import Session
from ..engine import Engine
from ..errors import PromptError
from ..prefix_cache import PrefixCache
from .config import GenerationConfig
from .cuts import Cut, continued, cut_text, cut_tokens, joined, with_reply
from .generate import new_session, stream_generate
from .results import GenerationEvent
from .text import REPLACEMENT, RenderedPrompt, common_length, prompt_end, render_prompt

_TRAINING_TAG = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # marks a reply for training; not jinja2's own


@dataclass(frozen=True)
class ThinkingMarks:
    """What a model writes around its thinking."""

    start: str
    end: str


class Conversation:
    """One chat: give it all messages at every turn, and it reads only what is new of them.

    Args:
        prefix_cache: what other chats and earlier runs read need not be read again either.

    Not for two replies at once: the library refuses a session that is busy.
    """

    def __init__(self, engine: Engine, *, prefix_cache: PrefixCache | None = None):
        self.engine = engine
        self._cache = prefix_cache
        self._rendered: RenderedPrompt | None = None  # of the last prompt
        self._cut: Cut | None = None  # where its tokens end in its text
        self._read: Cut | None = None  # of the prompt that the session replied to last
        self._session: Session | None = None
        self._mode = ("", False)
        self._prompt_length = 0

    @property
    def has_template(self) -> bool:
        """Whether the model knows what a chat is; without a template a turn is the last message's bare text."""
        return bool(self.engine.tokenizer.has_chat_template)

    @property
    def thinking(self) -> ThinkingMarks | None:
        """The marks around this model's thinking, by its tokenizer; None when it has none."""
        tokenizer = self.engine.tokenizer
        if not self.has_template or not tokenizer.has_thinking:
            return None
        return ThinkingMarks(tokenizer.think_start, tokenizer.think_end)

    @property
    def template_variables(self) -> frozenset[str]:
        """What the chat template can be told, such as `enable_thinking`; empty when its text cannot be read."""
        template = self.engine.tokenizer.chat_template if self.has_template else None
        if isinstance(template, Mapping):  # several, by purpose
            template = template.get("default")
        if not isinstance(template, str):
            return frozenset()
        try:
            tree = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_TRAINING_TAG.sub("", template))
        except jinja2.TemplateError:
            return frozenset()
        return frozenset(jinja2.meta.find_undeclared_variables(tree))

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of the prompt for the next reply, as much as possible of it in tokens already read.

        Args:
            messages: the whole chat, `role` and `content` each; the last is what to reply to.
            template_kwargs: passed to the chat template.
        Raises:
            PromptError: no messages, or some that the template refuses.
        """
        if not messages:
            raise PromptError("messages: got none, expected at least one")
        shown = messages if self.has_template else messages[-1:]
        plain = render_prompt(
            self.engine.tokenizer,
            list(shown),
            template_kwargs=template_kwargs,
            find_boundaries=self._cache is not None and self.has_template,
        )
        self._cut = self._recut(plain.ids, messages, template_kwargs) if self.has_template else None
        ids = self._cut.ids if self._cut is not None else plain.ids
        self._rendered = RenderedPrompt(ids, plain.notices, _moved(plain.boundaries, plain.ids, ids))
        return ids

    def _recut(
        self, ids: list[int], messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any] | None
    ) -> Cut | None:
        """The text of `ids`, with its beginning in the tokens that were read; None when the text's ends are unknown."""
        tokenizer = self.engine.tokenizer
        text = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **(template_kwargs or {})
        )
        plain = cut_text(tokenizer, text, ids)
        read = self._session.tokens if self._session is not None else []
        if plain is None or not read or common_length(ids, read) == len(ids):
            return plain
        best = plain
        for known in self._known(read):
            for found in (joined(known, plain), continued(tokenizer, known, text)):
                if found is not None and common_length(found.ids, read) > common_length(best.ids, read):
                    best = found
        return best

    def _known(self, read: list[int]) -> list[Cut]:
        """What was read, with each text that it may stand for."""
        prompt, tokenizer = self._read, self.engine.tokenizer
        if prompt is None:
            return [cut_tokens(tokenizer, read)]
        shared = common_length(prompt.ids, read)
        if shared < len(prompt.ids):  # cancelled while the prompt was being read
            return [prompt.first(shared)]
        return with_reply(tokenizer, prompt, read[shared:])

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt's end has already opened a block of thinking, so that the reply begins inside it."""
        marks = self.thinking
        return marks is not None and prompt_end(self.engine.tokenizer, prompt).endswith(marks.start)

    def stream(
        self, prompt: Sequence[int], config: GenerationConfig | None = None
    ) -> Generator[GenerationEvent, None, None]:
        """Reply to a prompt made by `prompt`; the last event's `stats.cached_tokens` tell what was not read again.

        Raises:
            ConfigError, PromptError: before anything runs; the conversation stays as it was.

        Closing the iterator cancels the reply; what was written of it stays known.
        """
        config = config or GenerationConfig()
        mode = (config.mode, config.verify_mode == "off")  # what a session can change to by itself is no reason
        if self._session is None or self._mode != mode:
            self._session, self._mode = new_session(self.engine, config), mode
        ids = list(prompt)
        known = self._rendered is not None and self._rendered.ids == ids
        events = stream_generate(
            self.engine,
            self._rendered if known and self._rendered is not None else ids,
            config,
            session=self._session,
            prefix_cache=self._cache,
        )
        return self._follow(events, ids, self._cut if known else None)

    def reply_text(self) -> str:
        """The last reply as far as the session holds it, without its stop token.

        After a reply was cancelled this can be a few tokens more than its reader has seen.
        """
        if self._session is None:
            return ""
        ids = self._session.tokens[self._prompt_length :]
        if ids and ids[-1] in self.engine.stop_token_ids:
            ids = ids[:-1]
        return self._decode(ids).rstrip(REPLACEMENT)

    def reset(self) -> None:
        """Forget what was read."""
        self._session, self._read, self._prompt_length = None, None, 0

    def _follow(
        self, events: Generator[GenerationEvent, None, None], prompt: list[int], cut: Cut | None
    ) -> Generator[GenerationEvent, None, None]:
        self._prompt_length, self._read = len(prompt), cut
        try:
            yield from events
        finally:
            events.close()

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.engine.tokenizer.decode(list(ids), skip_special_tokens=False))


def _moved(boundaries: Sequence[int], ids: Sequence[int], recut: Sequence[int]) -> tuple[int, ...]:
    """Boundaries of `ids` in a prompt of the same text whose beginning is cut otherwise."""
    found = set()
    for boundary in boundaries:
        after = ids[boundary:]
        if ids[:boundary] == recut[:boundary]:
            found.add(boundary)
        elif after and recut[-len(after) :] == after:
            found.add(len(recut) - len(after))
    return tuple(sorted(found))

"""OpenAI's text completions: the prompt goes to the model as it is, without a chat template."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.token_text import REPLACEMENT
from ..http.errors import ApiError, refuse
from ..http.fields import Fields
from ..http.wire import Frame
from ..serving.parts import Part
from ..serving.reply import Outcome
from ..serving.request import Ask
from ..serving.source import Served
from . import openai
from .request import MOST_LOGPROBS, Draft, read_length, read_sampling, read_stop

if TYPE_CHECKING:
    import dflash2_mlx as d2


class Completions:
    """The interface."""

    def read(self, body: object) -> CompletionCall:
        return CompletionCall(Fields(body))

    def error(self, error: ApiError) -> Mapping[str, Any]:
        return error.openai()


class CompletionCall:
    """One request."""

    def __init__(self, fields: Fields):
        self._fields = fields
        self.model = fields.required_text("model")
        self.wish = openai.read_stream(fields)
        self.stream = self.wish.stream
        self.prompt = _read_prompt(fields.take("prompt"))
        self.logprobs = fields.integer("logprobs", 0, MOST_LOGPROBS)
        fields.only("n", [1], "one reply per request")
        fields.only("best_of", [1], "one reply per request")
        fields.only("echo", [False], "the prompt is not repeated")
        fields.only("suffix", [""], "text is only continued, not filled in")
        fields.accept(*openai.WITHOUT_EFFECT)

    def ask(self, served: Served) -> Ask:
        fields, draft = self._fields, Draft(served)
        read_sampling(fields, draft)
        read_length(fields, draft, "max_tokens")
        if "max_tokens" not in draft.config and not served.pair.effective.given("max_tokens"):
            draft.config["max_tokens"] = 16  # OpenAI's default
        read_stop(fields, draft)
        draft.config["logprobs"] = self.logprobs
        draft.config["chat_template"] = False
        fields.finish()
        return draft.finish(self.prompt)

    def whole(self, served: Served, outcome: Outcome) -> dict[str, Any]:
        logprobs = None if self.logprobs is None else _Logprobs(served, self.logprobs).add(outcome.logprobs)
        choice = {"index": 0, "text": outcome.content, "logprobs": logprobs, "finish_reason": outcome.finish_reason}
        return {
            **openai.head("text_completion", "cmpl-", self.model),
            "choices": [choice],
            "usage": openai.usage(outcome),
            "system_fingerprint": None,
        }

    def writer(self, served: Served) -> CompletionWriter:
        return CompletionWriter(self, served)


def _read_prompt(raw: object) -> str | list[int]:
    """Text or token ids; a list of one text counts as that text."""
    if isinstance(raw, list) and len(raw) == 1 and isinstance(raw[0], (str, list)):
        raw = raw[0]
    if isinstance(raw, str) and raw:
        return raw
    if isinstance(raw, list) and raw and all(type(item) is int for item in raw):
        return raw
    if isinstance(raw, list) and len(raw) > 1:
        raise refuse("prompt", raw, "one prompt per request")
    raise refuse("prompt", raw, "text, or a list of token ids")


class _Logprobs:
    """The old form of log-probabilities, with places in the text."""

    def __init__(self, served: Served, top: int):
        self._tokens, self._top = served.token_reader, top
        self._place, self._decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, items: Sequence[d2.TokenLogprob]) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for item in items:
            found["tokens"].append(self._name(item.token))
            found["token_logprobs"].append(openai.shown_logprob(item.logprob))
            top = {self._name(token): openai.shown_logprob(value) for token, value in item.top}
            found["top_logprobs"].append(top if self._top else None)
            found["text_offset"].append(self._place)
            data = self._tokens.data(item.token)
            self._place += len(self._tokens.text(item.token) if data is None else self._decoder.decode(data))
        return found

    def _name(self, token: int) -> str:
        """The token's text, or its bytes where it is part of a character, as OpenAI writes them here."""
        text, data = self._tokens.text(token), self._tokens.data(token)
        if REPLACEMENT not in text or data is None:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionWriter:
    """Makes chunks."""

    def __init__(self, call: CompletionCall, served: Served):
        self._call = call
        self._head = openai.head("text_completion", "cmpl-", call.model)
        self._logprobs = None if call.logprobs is None else _Logprobs(served, call.logprobs)
        self._outcome: Outcome | None = None

    def start(self, outcome: Outcome) -> list[Frame]:
        self._outcome = outcome
        return []

    def parts(self, parts: Sequence[Part], logprobs: Sequence[d2.TokenLogprob]) -> list[Frame]:
        text = "".join(part.content for part in parts)
        shown = self._logprobs.add(logprobs) if self._logprobs is not None and logprobs else None
        return [self._chunk(text, shown)] if text or shown else []

    def finish(self, outcome: Outcome) -> list[Frame]:
        frames = [self._chunk("", None, outcome.finish_reason)]
        if self._call.wish.usage:
            frames.append(Frame({**self._head, "choices": [], "usage": openai.usage(outcome)}))
        return [*frames, Frame("[DONE]")]

    def failed(self, error: ApiError) -> list[Frame]:
        return [Frame(error.openai())]

    def _chunk(self, text: str, logprobs: dict[str, Any] | None, reason: str | None = None) -> Frame:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}
        chunk = {**self._head, "choices": [choice]}
        if self._call.wish.usage:
            told = self._outcome if self._call.wish.each else None
            chunk["usage"] = None if told is None else openai.usage(told)
        return Frame(chunk)

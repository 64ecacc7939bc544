"""The output items of a response, and the events that build them up one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..http.errors import ApiError
from ..http.wire import Frame
from ..serving.parts import Part, ToolCall
from ..serving.reply import LENGTH, Outcome
from .openai import new_id

if TYPE_CHECKING:
    import dflash2_mlx as d2

REASONING, MESSAGE = "reasoning", "message"
Homes = Mapping[str, tuple[str, str]]  # what a model calls a function in a namespace -> the namespace, its own name
BEGUN, DONE, CUT = "in_progress", "completed", "incomplete"


def output_items(outcome: Outcome, logprobs: Sequence[dict[str, Any]], homes: Homes) -> list[dict[str, Any]]:
    """Thinking, answer and calls of a whole reply."""
    items, status = [], CUT if outcome.finish_reason == LENGTH else DONE
    has_message = outcome.content or not (outcome.calls or outcome.reasoning)
    if outcome.reasoning:
        items.append(_reasoning_item(new_id("rs_"), outcome.reasoning, DONE if has_message else status))
    if has_message:
        items.append(_message_item(new_id("msg_"), outcome.content, logprobs, status))
    return [*items, *(_call_item(call, homes) for call in outcome.calls)]


def _reasoning_item(item_id: str, text: str, status: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": item_id, "type": REASONING, "summary": [], "content": content, "status": status}


def _message_item(
    item_id: str, text: str, logprobs: Sequence[dict[str, Any]] = (), status: str = DONE
) -> dict[str, Any]:
    content = [] if status == BEGUN else [_text_part(text, logprobs)]
    return {"id": item_id, "type": MESSAGE, "role": "assistant", "status": status, "content": content}


def _text_part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _call_item(call: ToolCall, homes: Homes) -> dict[str, Any]:
    space, name = homes.get(call.name, (None, call.name))
    return {"id": "fc_" + call.id.removeprefix("call_"), "type": "function_call", "call_id": call.id, "name": name,
            **({} if space is None else {"namespace": space}), "arguments": call.arguments, "status": DONE}  # fmt: skip


class ResponsesWriter:
    """Makes the events.

    Args:
        head: the response object of a status, without what only the end knows.
        whole: the response object of an outcome.
        logprob: one entry of log-probabilities; None when they were not asked for.
        homes: of functions in namespaces.
    """

    def __init__(
        self, head: Callable[[str], dict[str, Any]], whole: Callable[[Outcome], dict[str, Any]],
        logprob: Callable[[d2.TokenLogprob], dict[str, Any]] | None, homes: Homes,
    ):  # fmt: skip
        self._head, self._whole, self._logprob, self._homes = head, whole, logprob, homes
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._kind: str | None = None  # of the item under way
        self._id, self._text = "", ""
        self._entries: list[dict[str, Any]] = []

    def start(self, outcome: Outcome) -> list[Frame]:
        state = self._head("in_progress")
        return [self._event("response.created", response=state), self._event("response.in_progress", response=state)]

    def parts(self, parts: Sequence[Part], logprobs: Sequence[d2.TokenLogprob]) -> list[Frame]:
        frames: list[Frame] = []
        fresh = [self._logprob(item) for item in logprobs] if self._logprob is not None else []
        for part in parts:
            if part.call is not None:
                frames += [*self._end(), *self._call(part.call)]
            elif part.reasoning:
                frames += self._begin(REASONING)
                self._text += part.reasoning
                frames.append(self._at("response.reasoning_text.delta", delta=part.reasoning))
            else:
                frames += self._begin(MESSAGE)
                self._text += part.content
                self._entries += fresh
                frames.append(self._at("response.output_text.delta", delta=part.content, logprobs=fresh))
                fresh = []
        self._entries += fresh  # their text is still held back
        return frames

    def finish(self, outcome: Outcome) -> list[Frame]:
        cut = outcome.finish_reason == LENGTH
        frames = self._end(CUT if cut else DONE)
        if not self._items:
            frames += [*self._begin(MESSAGE), *self._end(CUT if cut else DONE)]
        response = {**self._whole(outcome), "output": self._items}
        return [*frames, self._event("response.incomplete" if cut else "response.completed", response=response)]

    def failed(self, error: ApiError) -> list[Frame]:
        state = {**self._head("failed"), "error": {"code": "server_error", "message": error.message}}
        return [self._event("response.failed", response=state)]

    def _begin(self, kind: str) -> list[Frame]:
        if self._kind == kind:
            return []
        frames = self._end()
        self._kind, self._text = kind, ""
        self._id = new_id("rs_" if kind == REASONING else "msg_")
        make = _reasoning_item if kind == REASONING else _message_item
        item = make(self._id, "", status=BEGUN)
        part = {"type": "reasoning_text", "text": ""} if kind == REASONING else _text_part("")
        added = self._event("response.output_item.added", output_index=len(self._items), item=item)
        return [*frames, added, self._at("response.content_part.added", part=part)]

    def _end(self, status: str = DONE) -> list[Frame]:
        kind, text = self._kind, self._text
        if kind is None:
            return []
        if kind == REASONING:
            item, part = _reasoning_item(self._id, text, status), {"type": "reasoning_text", "text": text}
            done = self._at("response.reasoning_text.done", text=text)
        else:
            entries, self._entries = self._entries, []
            item, part = _message_item(self._id, text, entries, status), _text_part(text, entries)
            done = self._at("response.output_text.done", text=text, logprobs=entries)
        frames = [done, self._at("response.content_part.done", part=part), self._done(item)]
        self._kind = None
        return frames

    def _call(self, call: ToolCall) -> list[Frame]:
        item = _call_item(call, self._homes)
        at = {"output_index": len(self._items), "item_id": item["id"]}
        empty = {**item, "arguments": "", "status": BEGUN}
        return [
            self._event("response.output_item.added", output_index=len(self._items), item=empty),
            self._event("response.function_call_arguments.delta", delta=call.arguments, **at),
            self._event("response.function_call_arguments.done", arguments=call.arguments, name=item["name"], **at),
            self._done(item),
        ]

    def _done(self, item: dict[str, Any]) -> Frame:
        self._items.append(item)
        return self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _at(self, kind: str, **fields: Any) -> Frame:
        return self._event(kind, item_id=self._id, output_index=len(self._items), content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Frame:
        self._number += 1
        return Frame({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

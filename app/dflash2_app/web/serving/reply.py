"""From an Ask to the parts of a reply.

Owns: what is set up before a reply may run (constraint, prompt check), the reading of its events into parts, and the
outcome with its reason and counts. Knows no interface and no HTTP.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...engine.model import INSIDE, NO_THINKING
from ...errors import AppError
from ..http.errors import from_library, refuse
from .grammars import CALL_FORMS
from .parts import CallReader, Marks, Part, PartReader, ToolCall
from .request import AUTO, REQUIRED, Ask
from .rules import (  # fmt: skip
    Anything,
    BeforeThinking,
    Ending,
    Forced,
    Grammar,
    ReplyRules,
    Stage,
    Thinking,
    ThinkingMarks,
    Vocabulary,
)
from .source import Served

if TYPE_CHECKING:
    import dflash2_mlx as d2

STOP, LENGTH, TOOL_CALLS = "stop", "length", "tool_calls"


@dataclass
class Outcome:
    """A finished reply.

    `finish_reason` is "stop", "length" or "tool_calls"; `stop_text` the stop string that ended it, if one did.
    `logprobs` are those of the answer's tokens.
    """

    finish_reason: str
    stats: d2.GenerationStats
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    reasoning_tokens: int = 0
    stop_text: str | None = None
    logprobs: list[d2.TokenLogprob] = field(default_factory=list)


class Reply:
    """One reply, ready to run: its events, and what to make of them.

    Made in a worker thread, since rendering a long prompt or building a grammar takes its time.

    Raises:
        ApiError: the request asks for what this model cannot do, or its prompt cannot be used.
    """

    def __init__(self, served: Served, ask: Ask):
        import dflash2_mlx as d2

        self.served, self.ask = served, ask
        try:
            vocabulary = Vocabulary(served.vocab_size, served.engine.stop_token_ids)
            prompt = served.render(ask.prompt, ask.config)
            begins = served.thinking_state(prompt, ask.config)
            opened = begins == INSIDE
            marks = None if begins == NO_THINKING else _thinking_marks(served)
            rules = _rules(served, ask, vocabulary, marks, opened)
            constraint = None if rules is None else ReplyRules(rules)
            config = ask.config if ask.names_length else served.within_context(prompt, ask.config)
            self.events: Generator[d2.GenerationEvent, None, None] = served.stream(prompt, config, constraint)
        except (d2.Dflash2Error, AppError) as error:
            raise from_library(error) from None
        self._place = None if marks is None else _thinking(vocabulary, marks, opened, None, Anything(vocabulary))
        self._reader = _part_reader(served, ask, marks is not None, opened)
        self._ids: list[int] = []
        self._text: list[str] = []
        self.outcome = Outcome("", d2.GenerationStats("", None))
        self.finished = False

    def take(self, event: d2.GenerationEvent) -> tuple[list[Part], list[d2.TokenLogprob]]:
        """What an event adds: parts of the reply, and the answer tokens' log-probabilities."""
        self._ids += event.token_ids
        self._text.append(event.text)
        parts = self._reader.push(event.text)
        if event.finish_reason is not None:
            parts += self._reader.finish()
        logprobs = self._place_tokens(event)
        out = self.outcome
        out.stats = event.stats
        out.stats.notices[:0] = [*self.served.notes, *self.ask.notes]
        out.logprobs += logprobs
        kept = []
        for part in parts:
            if out.calls and not self.ask.parallel_calls:
                break  # one call was asked for: what follows it is not written
            kept.append(part)
            out.content += part.content
            out.reasoning += part.reasoning
            out.calls += [part.call] if part.call is not None else []
        if event.finish_reason is not None or (out.calls and not self.ask.parallel_calls):
            self._finish(event.finish_reason)
        return kept, logprobs

    def _place_tokens(self, event: d2.GenerationEvent) -> list[d2.TokenLogprob]:
        """Tell the answer's tokens from those of thinking."""
        if self._place is None:
            return list(event.logprobs)
        answer = []
        for at, token in enumerate(event.token_ids):
            before, self._place = self._place, self._place.after(token)
            if isinstance(before, (Thinking, Forced)) or isinstance(self._place, (Thinking, Forced)):
                self.outcome.reasoning_tokens += 1
            elif event.logprobs:
                answer.append(event.logprobs[at])
        return answer

    def _finish(self, reason: str | None) -> None:
        out = self.outcome
        self.finished = True
        out.finish_reason = LENGTH if reason == LENGTH else TOOL_CALLS if out.calls else STOP
        if reason == STOP and self.ask.config.stop:
            whole, told = self.served.tokenizer.decode(self._ids), "".join(self._text)
            rest = whole[len(told) :]
            out.stop_text = next((stop for stop in self.ask.config.stop if rest.startswith(stop)), None)


def _thinking_marks(served: Served) -> ThinkingMarks:
    return ThinkingMarks(tuple(served.tokenizer.think_start_tokens), tuple(served.tokenizer.think_end_tokens))


def _part_reader(served: Served, ask: Ask, may_think: bool, opened: bool) -> PartReader:
    thinking = calls = None
    if may_think:
        thinking = Marks(served.tokenizer.think_start, served.tokenizer.think_end)
    if ask.tools:
        marks = Marks(served.tokenizer.tool_call_start, served.tokenizer.tool_call_end)
        calls = CallReader(marks, served.tokenizer.tool_parser, ask.tools)
    return PartReader(thinking, inside=opened, calls=calls)


def _rules(served: Served, ask: Ask, vocabulary: Vocabulary, marks: ThinkingMarks | None, opened: bool) -> Stage | None:
    """The reply's stages; None when nothing is restricted, so that its rounds need not wait for the host."""
    answer = _answer_rules(served, ask, vocabulary, after_thinking=marks is not None)
    if answer is None and ask.thinking_budget is None:
        return None
    if marks is None:
        return answer
    return _thinking(vocabulary, marks, opened, ask.thinking_budget, answer or Anything(vocabulary), answer is None)


def _thinking(
    vocabulary: Vocabulary, marks: ThinkingMarks, opened: bool, budget: int | None, answer: Stage, may_stop: bool = True
) -> Stage:
    inside = Thinking(vocabulary, marks, answer, budget, may_stop)
    return inside if opened else BeforeThinking(vocabulary, marks, inside, answer)


def _answer_rules(served: Served, ask: Ask, vocabulary: Vocabulary, *, after_thinking: bool) -> Stage | None:
    """Stages of what follows the thinking; None when it is free."""
    forced = bool(ask.tools) and ask.tool_choice != AUTO
    call = _call_rules(served, ask, vocabulary, forced) if ask.tools else None
    if forced or ask.schema is None:
        return call
    matcher = served.grammars.schema(ask.schema, ask.schema_param, lead=after_thinking)
    answer = Grammar(vocabulary, matcher, Ending(vocabulary))
    if not ask.tools:
        return answer
    # Either a call or an answer of the schema: the mark that opens a call decides, behind line ends too.
    marks = ThinkingMarks(_tokens(served.tokenizer.tool_call_start_tokens), ())
    layout = {token for text in ("\n", "\n\n") for token in served.tokenizer.encode(text, add_special_tokens=False)}
    return BeforeThinking(vocabulary, marks, _one_call(served, ask, vocabulary), answer, frozenset(layout))


def _call_rules(served: Served, ask: Ask, vocabulary: Vocabulary, forced: bool) -> Stage | None:
    start = _tokens(served.tokenizer.tool_call_start_tokens)
    if forced:
        _demand_call_form(served, ask)
        return Forced(vocabulary, start, _one_call(served, ask, vocabulary))
    if not any(tool["function"].get("strict") for tool in ask.tools):
        return None
    _demand_call_form(served, ask)

    def free() -> Stage:
        return Anything(vocabulary, start, lambda: _one_call(served, ask, vocabulary, free()))

    return free()


def _one_call(served: Served, ask: Ask, vocabulary: Vocabulary, then: Stage | None = None) -> Stage:
    """The inside of a call and its end mark; free text where there is no grammar for it."""
    form = _call_form(served)
    if form not in CALL_FORMS:
        return Anything(vocabulary)
    tools = [tool for tool in ask.tools if ask.tool_choice in (AUTO, REQUIRED, tool["function"]["name"])]
    end = _tokens(served.tokenizer.tool_call_end_tokens)
    return Grammar(
        vocabulary, served.grammars.tool_call(form, tools), Forced(vocabulary, end, then or Ending(vocabulary))
    )


def _tokens(ids: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(ids or ())


def _call_form(served: Served) -> str:
    """mlx-lm's name for the way this model writes calls."""
    return str(served.tokenizer.tool_parser.__module__).rpartition(".")[2]


def _demand_call_form(served: Served, ask: Ask) -> None:
    """Refuse what needs a grammar of calls where there is none."""
    form = _call_form(served)
    if form in CALL_FORMS:
        return
    if ask.tool_choice != AUTO:
        raise refuse("tool_choice", ask.tool_choice, f"'auto' or 'none': calls in the form {form} cannot be forced")
    at = next(at for at, tool in enumerate(ask.tools) if tool["function"].get("strict"))
    param = f"tools[{at}].function.strict"
    raise refuse(param, True, f"false: calls in the form {form} cannot be held to a schema")


def usage_details(stats: d2.GenerationStats) -> dict[str, Any]:
    """The `dflash2` block of a usage object."""
    return {
        "mode": stats.mode,
        "fallback_reason": stats.fallback_reason,
        "rounds": stats.rounds,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "acceptance_length": stats.acceptance_length,
        "acceptance_by_position": stats.acceptance_by_position,
        "width": stats.block_size,
        "verify_mode": stats.verify_mode,
        "synchronous_rounds": stats.synchronous_rounds,
        "prefill_s": stats.prefill_s,
        "decode_s": stats.decode_s,
        "tokens_per_second": stats.tokens_per_second,
        "seed": stats.seed,
        "notices": stats.notices,
    }

"""One request in the words of no interface, and the fields that several interfaces share.

Owns: `Ask`, and the way from sampling, length, thinking and tool fields to it. Every interface reads its own form of
messages and calls what stands here for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dflash2_mlx.sampling.fields import INTEGERS, LOGIT_BIAS, LOSSLESS_MODE, NUMBERS, TEMPERATURE

from ...engine.model import Prompt
from ..http.errors import ApiError, from_library, refuse
from ..http.fields import Fields
from ..serving.request import AUTO, NONE, REQUIRED, Ask
from ..serving.source import Served

if TYPE_CHECKING:
    import dflash2_mlx as d2

MOST_STOPS, MOST_LOGPROBS, MOST_TOOLS = 16, 20, 128


# Tokens of thinking for an effort, where the chat template has no such variable of its own.
EFFORT_BUDGETS = {"minimal": 512, "low": 2048, "medium": 8192, "high": None, "xhigh": None}


EFFORTS = (NONE, *EFFORT_BUDGETS)


THINKING_SWITCHES = ("enable_thinking", "thinking")  # what chat templates call the variable


TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


# Options of the renderer, which share their place with a template's variables.
NO_VARIABLES = ("tools", "tokenize", "add_generation_prompt", "return_dict", "conversation", "chat_template",
                "continue_final_message", "documents", "padding", "truncation", "max_length", "return_tensors",
                "tokenizer_kwargs", "return_assistant_tokens_mask")  # fmt: skip


MODES = ("auto", "plain", "dflash2")


MOST_STOP_CHARACTERS = 1000


@dataclass
class Draft:
    """An Ask being put together from a request's fields."""

    served: Served
    sampling: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    ask: dict[str, Any] = field(default_factory=dict)

    def finish(self, prompt: Prompt) -> Ask:
        """The whole request.

        Raises:
            ApiError: a value the library refuses.
        """
        import dflash2_mlx as d2

        defaults = self.served.defaults
        template = {**(defaults.chat_template_kwargs or {}), **self.template}
        if self.ask.get("tools"):
            template["tools"] = list(self.ask["tools"])
        if not self.config.get("chat_template", True):
            template = {}
        forced = self.served.forced_sampling
        try:
            replace(defaults.sampling, **self.sampling)  # a value that does not count has to be a right one, too
            sampling = replace(
                defaults.sampling, **{name: value for name, value in self.sampling.items() if name not in forced}
            )
            config = replace(defaults, sampling=sampling, chat_template_kwargs=template or None, **self.config)
        except d2.ConfigError as error:
            raise from_library(error) from None
        notes = tuple(self._overruled(sampling))
        return Ask(prompt, config, **self.ask, names_length="max_tokens" in self.config, notes=notes)

    def _overruled(self, sampling: d2.SamplingConfig) -> Iterator[str]:
        """What the settings have taken from the request."""
        for name in sorted(self.served.forced_sampling & self.sampling.keys()):
            counts = getattr(sampling, name)
            if self.sampling[name] != counts:
                yield f"{name}: {self.sampling[name]:g} was asked for, the settings' {counts:g} counts (Force sampling)"


def read_sampling(fields: Fields, draft: Draft, *, most_temperature: float = TEMPERATURE.request_most) -> None:
    """The fields that say how the next token is drawn."""
    draft.sampling |= _read_numbers(fields, most_temperature)
    bias = fields.mapping(LOGIT_BIAS.name)
    if bias:
        draft.sampling[LOGIT_BIAS.name] = _logit_bias(bias, fields.name(LOGIT_BIAS.name))
    drafting = fields.inner("dflash2")
    if drafting is not None:
        _read_drafting(drafting, draft)


def _read_numbers(fields: Fields, most_temperature: float) -> dict[str, Any]:
    """The numbers of sampling that are given; the library refuses the ends of ranges that do not count to them."""
    given: dict[str, Any] = {}
    for number in NUMBERS:
        most = most_temperature if number is TEMPERATURE else number.request_most
        given[number.name] = fields.number(number.name, number.least, most)
    for count in INTEGERS:
        given[count.name] = fields.integer(count.name, count.least, count.request_most)
    return {name: value for name, value in given.items() if value is not None}


def _logit_bias(raw: Mapping[str, Any], name: str) -> dict[int, float]:
    biases, most = {}, LOGIT_BIAS.request_most
    for token, value in raw.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise refuse(name, token, "token ids as keys")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -most <= value <= most:
            raise refuse(f"{name}.{token}", value, f"a number in [-{most}, {most}]")
        biases[int(token)] = float(value)
    return biases


def _read_drafting(fields: Fields, draft: Draft) -> None:
    """Our own field: how this reply is drafted. It never changes the text of a greedy or seeded reply."""
    mode = fields.one_of("mode", *MODES)
    if mode is not None:
        draft.config["mode"] = mode
    size = fields.integer("block_size", 2)
    if size is not None:
        draft.config["block_size"] = size
    lossless = fields.one_of(LOSSLESS_MODE.name, *LOSSLESS_MODE.choices)
    if lossless is not None:
        draft.sampling[LOSSLESS_MODE.name] = lossless
    fields.finish()


def read_stop(fields: Fields, draft: Draft, name: str = "stop") -> None:
    """Texts that end the reply."""
    value = fields.take(name)
    if value is None:
        return
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise refuse(fields.name(name), value, f"text or a list of at most {MOST_STOPS}")
    if not all(isinstance(stop, str) and 0 < len(stop) <= MOST_STOP_CHARACTERS for stop in stops):
        raise refuse(fields.name(name), value, f"texts of 1 to {MOST_STOP_CHARACTERS} characters")
    draft.config["stop"] = tuple(stops)


def read_length(fields: Fields, draft: Draft, *names: str) -> None:
    """The most tokens of a reply; several names may be given, with one value."""
    found = {name: fields.integer(name, 1, draft.served.most_tokens) for name in names}
    given = {name: value for name, value in found.items() if value is not None}
    if len(set(given.values())) > 1:
        raise refuse(fields.name(names[0]), given, "one value")
    for value in given.values():
        draft.config["max_tokens"] = value


def read_template(fields: Fields, draft: Draft) -> None:
    """Variables of the chat template, and thinking switched on or off."""
    variables = fields.mapping("chat_template_kwargs") or {}
    for name in NO_VARIABLES:
        if name in variables:
            raise refuse(f"chat_template_kwargs.{name}", variables[name], "a variable of the template, not an option")
    switch = fields.boolean("enable_thinking")
    if switch is not None:
        variables = {**variables, "enable_thinking": switch}
    for name, value in variables.items():
        switched = switch is not None and name == "enable_thinking"
        _check_forced(draft, name, value, fields.name(name if switched else f"chat_template_kwargs.{name}"))
    draft.template.update(variables)
    budget = fields.integer("thinking_budget", 0)
    if budget is not None:
        read_budget(draft, budget, fields.name("thinking_budget"))


def _check_forced(draft: Draft, name: str, value: object, param: str) -> None:
    """Refuse another value for a variable of the template that the settings fix."""
    forced = draft.served.forced_template
    if name in forced and forced[name] != value:
        raise refuse(param, value, f"{forced[name]!r} or nothing: the model's settings fix {name}")


def read_budget(draft: Draft, budget: int, param: str) -> None:
    """At most so many tokens of thinking."""
    if not thinks(draft.served):
        raise refuse(param, budget, f"nothing: {draft.served.name} does not think")
    draft.ask["thinking_budget"] = budget


def read_effort(draft: Draft, effort: str | None, param: str) -> None:
    """How much to think: the template's own variable where it has one, else a switch and a budget."""
    if effort is None:
        return
    if effort not in EFFORTS:
        raise refuse(param, effort, " or ".join(map(repr, EFFORTS)))
    template = draft.served.template_text
    if "reasoning_effort" in template:
        _check_forced(draft, "reasoning_effort", effort, param)
        draft.template["reasoning_effort"] = effort
    elif not thinks(draft.served):
        if effort != NONE:
            raise refuse(param, effort, f"'none': {draft.served.name} does not think")
    elif effort == NONE:
        set_thinking(draft, False, param)
    else:
        set_thinking(draft, True, param)
        if EFFORT_BUDGETS[effort] is not None:
            draft.ask["thinking_budget"] = EFFORT_BUDGETS[effort]


def set_thinking(draft: Draft, wanted: bool, param: str) -> None:
    """Switch thinking by the template's variable, where it has one."""
    name = next((word for word in THINKING_SWITCHES if word in draft.served.template_text), None)
    if name is not None:
        _check_forced(draft, name, wanted, param)
        draft.template.setdefault(name, wanted)
    elif not wanted:
        raise refuse(param, wanted, "thinking: the chat template has no switch for it")


def thinks(served: Served) -> bool:
    return bool(served.tokenizer.has_chat_template and served.tokenizer.has_thinking)


def read_schema(draft: Draft, schema: object, param: str) -> None:
    """The answer must be JSON of a schema."""
    if not isinstance(schema, Mapping):
        raise refuse(param, schema, "a JSON schema")
    draft.ask["schema"], draft.ask["schema_param"] = schema, param


def set_tools(draft: Draft, tools: Sequence[dict[str, Any]], choice: str, *, parallel: bool = True) -> None:
    """The tools a reply may or must call; `choice` as in Ask, or "none" to leave them out."""
    names = [tool["function"]["name"] for tool in tools]
    for at, name in enumerate(names):
        if not TOOL_NAME.fullmatch(name):
            raise refuse(f"tools[{at}].name", name, "1 to 128 of A-Z a-z 0-9 _ -")
        if name in names[:at]:
            raise refuse(f"tools[{at}].name", name, "a name no other tool has")
    if len(tools) > MOST_TOOLS:
        raise refuse("tools", len(tools), f"at most {MOST_TOOLS}")
    if choice not in (AUTO, REQUIRED, NONE, *names):
        raise refuse("tool_choice", choice, f"one of the tools: {', '.join(names) or 'none are given'}")
    if choice == REQUIRED and not tools:
        raise refuse("tool_choice", choice, "tools to choose from")
    if not tools or choice == NONE:
        return
    if not draft.served.tokenizer.has_chat_template or not draft.served.tokenizer.has_tool_calling:
        raise ApiError(
            f"tools: got {len(tools)}, expected none: {draft.served.name} has no way to call tools", param="tools"
        )
    draft.ask.update(tools=tuple(tools), tool_choice=choice, parallel_calls=parallel)

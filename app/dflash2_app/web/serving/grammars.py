"""Grammars over the tokens of one model: JSON, a JSON schema, and tool calls as the model writes them.

Owns: everything about llguidance, and the two forms of tool calls for which there is a grammar. Knows no request.
Building the token table takes a second or two, once per model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..http.errors import ApiError
from .rules import Matcher

if TYPE_CHECKING:
    import llguidance

ANY_OBJECT: dict[str, Any] = {"type": "object"}
JSON_CALLS, XML_CALLS = "json_tools", "qwen3_coder"  # mlx-lm's names of the two parsers
CALL_FORMS = (JSON_CALLS, XML_CALLS)


class Grammars:
    """Makes grammars for one tokenizer."""

    def __init__(self, tokenizer: Any, stops: frozenset[int]):
        self._tokenizer = tokenizer
        self._stops = sorted(stops)

    @functools.cached_property
    def _table(self) -> llguidance.LLTokenizer:
        import llguidance

        try:
            text = self._tokenizer.backend_tokenizer.to_str()
        except AttributeError:
            raise ApiError("response_format: got a grammar, expected none: the tokenizer has no fast form") from None
        raw = json.loads(text)
        raw["padding"] = raw["truncation"] = None  # would cut or fill what the grammar tokenizes
        return llguidance.LLTokenizer(json.dumps(raw), eos_token=self._stops or None)

    def schema(self, schema: Mapping[str, Any] | bool, param: str, *, lead: bool = False) -> Matcher:
        """Text that is JSON of a schema.

        Args:
            param: the request's field, for the message of a schema that cannot be enforced.
            lead: whether line ends may come first, as they do after thinking.
        """
        fault = self._fault(_json_grammar(schema))
        if fault:
            raise ApiError(
                f"{param}: got a schema that cannot be enforced ({fault}), expected one this server knows", param=param
            )
        return self._matcher(f"start: {_LEAD if lead else ''} value\nvalue: %json {_json_text(schema)}\n")

    def tool_call(self, form: str, tools: Sequence[Mapping[str, Any]]) -> Matcher:
        """What stands between the marks of a tool call: one call of one of the tools.

        Raises:
            ApiError: a strict tool's parameters cannot be enforced.
        """
        functions = [tool["function"] for tool in tools]
        schemas = [self._parameters(function, f"tools[{at}].function") for at, function in enumerate(functions)]
        names = [function["name"] for function in functions]
        make = _json_calls if form == JSON_CALLS else _xml_calls
        return self._matcher(make(names, schemas))

    def _parameters(self, function: Mapping[str, Any], param: str) -> Mapping[str, Any]:
        """The schema to hold a call to; a tool that is not strict and cannot be enforced may get any object."""
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        fault = self._fault(_json_grammar(schema))
        if not fault:
            return schema
        if not function.get("strict"):
            return ANY_OBJECT
        raise ApiError(
            f"{param}.parameters: got a schema that cannot be enforced ({fault}), expected one this server knows",
            param=f"{param}.parameters",
        )

    def _fault(self, grammar: str) -> str:
        from llguidance import LLMatcher

        wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, self._table)
        return " ".join(" ".join(messages).split())[:300] if wrong or messages else ""

    def _matcher(self, lark: str) -> Matcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._table, LLMatcher.grammar_from_lark(lark), log_level=0)
        if matcher.is_error():
            raise ApiError(f"the grammar of this request cannot be built: {matcher.get_error()[:300]}")
        return matcher


_LEAD = r"/\n{0,2}/"
# Between the parts of a JSON text: nothing, a blank, or a line end and its indentation. Where it may, a small model
# writes line end after line end, and its reply is cut before the JSON is whole.
_BLANKS = r"( |\n {0,32})?"


def _json_text(schema: Mapping[str, Any] | bool) -> str:
    """A schema as the grammar takes it."""
    if isinstance(schema, Mapping) and "x-guidance" not in schema:
        schema = {**schema, "x-guidance": {"whitespace_pattern": _BLANKS}}
    return json.dumps(schema)


def _json_grammar(schema: Mapping[str, Any] | bool) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def _json_calls(names: Sequence[str], schemas: Sequence[Mapping[str, Any]]) -> str:
    rules = []
    for at, (name, schema) in enumerate(zip(names, schemas, strict=True)):
        head = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
        rules.append(f'call{at}: {head} arguments{at} "}}"\narguments{at}: %json {_json_text(schema)}')
    choices = " | ".join(f"call{at}" for at in range(len(names)))
    return f'start: "\\n" one "\\n"\none: {choices}\n' + "\n".join(rules) + "\n"


def _xml_calls(names: Sequence[str], schemas: Sequence[Mapping[str, Any]]) -> str:
    """Parameters in the schema's order: those it requires, and any of the others."""
    rules = ['text[suffix="\\n</parameter>\\n"]: /(?s:.*)/']
    for at, (name, schema) in enumerate(zip(names, schemas, strict=True)):
        parts = []
        for number, (key, inner) in enumerate(schema.get("properties", {}).items()):
            rule = f"p{at}_{number}"
            optional = "" if key in schema.get("required", ()) else "?"
            parts.append(rule + optional)
            head = json.dumps(f"<parameter={key}>\n")
            if isinstance(inner, Mapping) and inner.get("type") not in (None, "string"):
                rules.append(f'{rule}: {head} v{rule} "\\n</parameter>\\n"\nv{rule}: %json {_json_text(inner)}')
            elif isinstance(inner, Mapping) and all(isinstance(word, str) for word in inner.get("enum", [0])):
                words = " | ".join(json.dumps(word) for word in inner["enum"])
                rules.append(f'{rule}: {head} ({words}) "\\n</parameter>\\n"')
            else:
                rules.append(f"{rule}: {head} text")
        rules.append(f'call{at}: {json.dumps(f"<function={name}>" + chr(10))} {" ".join(parts)} "</function>"')
    choices = " | ".join(f"call{at}" for at in range(len(names)))
    return f'start: "\\n" one "\\n"\none: {choices}\n' + "\n".join(rules) + "\n"

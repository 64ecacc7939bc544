"""Small words to write JSON schemas with, and what one endpoint is.

Owns: how optional, refused and unknown fields look in the description. A field that is null counts as absent, so every
optional one may be null, and so may one that nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
NULL: Schema = {"type": "null"}
OPENAI, ANTHROPIC = "OpenAIError", "AnthropicError"


@dataclass(frozen=True)
class Operation:
    """One endpoint.

    Args:
        name: `operationId`.
        reply: schema of a 200 answer; None when it is text of `media`.
        body: schema of the request; None when there is none.
        event: schema of what the events of a streamed reply carry.
        statuses: beyond 200 and those of every endpoint, with what they mean.
        errors: the form of its errors.
        replies: schemas of statuses that do not answer in the form of errors.
    """

    method: str
    path: str
    name: str
    group: str
    summary: str
    reply: Schema | None
    body: Schema | None = None
    body_needed: bool = True
    event: Schema | None = None
    media: str = "application/json"
    statuses: Mapping[int, str] | None = None
    errors: str = OPENAI
    about: str = ""
    replies: Mapping[int, Schema] | None = None
    headers: Mapping[str, str] | None = None


def _typed(kind: str, about: str, more: Mapping[str, Any]) -> Schema:
    return {"type": kind, **({"description": about} if about else {}), **more}


def text(about: str = "", **more: Any) -> Schema:
    return _typed("string", about, more)


def filled(about: str = "", **more: Any) -> Schema:
    """Text that is not empty."""
    return text(about, minLength=1, **more)


def boolean(about: str = "") -> Schema:
    return _typed("boolean", about, {})


def integer(about: str = "", low: int | None = None, high: int | None = None) -> Schema:
    return _typed("integer", about, _range(low, high))


def number(about: str = "", low: float | None = None, high: float | None = None) -> Schema:
    return _typed("number", about, _range(low, high))


def _range(low: float | None, high: float | None) -> Schema:
    return {name: limit for name, limit in (("minimum", low), ("maximum", high)) if limit is not None}


def array(items: Schema, about: str = "", **more: Any) -> Schema:
    return _typed("array", about, {"items": items, **more})


def mapping(about: str = "", **more: Any) -> Schema:
    """An object whose fields are the client's own."""
    return _typed("object", about, more)


def choice(*values: Any, about: str = "") -> Schema:
    """One of these values and nothing else."""
    return {**({"description": about} if about else {}), "enum": list(values)}


def anything(about: str) -> Schema:
    """A field that is accepted whatever it holds."""
    return {"description": about}


def nothing(about: str) -> Schema:
    """A field that is known and refused."""
    return {"type": "null", "description": about}


def either(*schemas: Schema, about: str = "") -> Schema:
    return {**({"description": about} if about else {}), "anyOf": list(schemas)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    if "$ref" in schema:
        return {"anyOf": [schema, NULL]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], NULL]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema and schema["type"] != "null":
        return {**schema, "type": [schema["type"], "null"]}
    return schema


def request(needed: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, about: str = "") -> Schema:
    """An object of a request: every field is named here or refused."""
    fields = {**needed, **{name: nullable(schema) for name, schema in (optional or {}).items()}}
    more = {"properties": fields, "required": list(needed), "additionalProperties": NULL}
    return _typed("object", about, more if needed else {key: more[key] for key in more if key != "required"})


def reply(fields: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, about: str = "") -> Schema:
    """An object of a reply: these fields and no others."""
    more = {"properties": {**fields, **(optional or {})}, "required": list(fields), "additionalProperties": False}
    return _typed("object", about, more)

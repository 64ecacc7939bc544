"""What several interfaces have in common: drawing and drafting, tools, errors, and what drafting did."""

from __future__ import annotations

from collections.abc import Mapping

from dflash2_mlx.sampling.fields import INTEGERS, LOGIT_BIAS, LOSSLESS_MODE, NUMBERS, TEMPERATURE

from ..api.request import (
    EFFORTS,
    MODES,
    MOST_STOP_CHARACTERS,
    MOST_STOPS,
    NO_VARIABLES,
    TOOL_NAME,
)
from ..http.errors import ANTHROPIC_TYPES, OPENAI_TYPES, OTHERWISE
from .schema import (
    ANTHROPIC,
    OPENAI,
    Schema,
    anything,
    array,
    boolean,
    choice,
    either,
    filled,
    integer,
    mapping,
    nullable,
    number,
    ref,
    reply,
    request,
    text,
)

IGNORED = "Accepted; it cannot change the text."
MODEL = filled("A name of `/v1/models`; `model:profile` where profiles are offered.")
BUSY = {404: "No such model.", 429: "The line is full; try later.", 503: "The model cannot be loaded, or a reply "
        "stands still, or the server is about to end."}  # fmt: skip
_SAYS = {
    "temperature": "0 takes the likeliest token; from 0 on, differences are flattened.",
    "top_p": "Draw from the likeliest tokens that have this mass together; above 0.",
    "min_p": "Leave out tokens less likely than this share of the likeliest.",
    "presence_penalty": "Taken off the logit of every token the reply holds already.",
    "frequency_penalty": "Taken off as many times as the reply holds the token.",
    "repetition_penalty": "Logits of tokens seen are divided by this; above 0, 1 changes nothing.",
    "top_k": "Draw from so many of the likeliest tokens; 0 from all.",
    "seed": "The same seed gives the same text, with a drafter and without.",
}
ERRORS: dict[str, Schema] = {
    OPENAI: reply({"error": reply({
        "message": text("One line: the field's name, what came, what was expected."),
        "type": choice(*sorted({*OPENAI_TYPES.values(), OTHERWISE})),
        "param": nullable(text("The field at fault, where one is.")),
        "code": nullable(text("A word for programs, such as model_not_found.")),
    })}, about="An error in OpenAI's form."),
    ANTHROPIC: reply({"type": choice("error"), "error": reply({
        "type": choice(*sorted({*ANTHROPIC_TYPES.values(), OTHERWISE})),
        "message": text("One line: the field's name, what came, what was expected."),
    })}, about="An error in Anthropic's form."),
}  # fmt: skip


def sampling(most_temperature: float = TEMPERATURE.request_most) -> dict[str, Schema]:
    """The fields that say how the next token is drawn."""
    numbers = {field.name: number(_SAYS[field.name], field.least, field.request_most) for field in NUMBERS}
    return {
        **numbers,
        TEMPERATURE.name: number(_SAYS[TEMPERATURE.name], TEMPERATURE.least, most_temperature),
        **{field.name: integer(_SAYS[field.name], field.least, field.request_most) for field in INTEGERS},
        LOGIT_BIAS.name: mapping(
            "Added to the logits of tokens, by token id.", propertyNames={"pattern": "^[0-9]{1,9}$"},
            additionalProperties=number(low=-LOGIT_BIAS.request_most, high=LOGIT_BIAS.request_most)),
        "dflash2": ref("Drafting"),
    }  # fmt: skip


def template() -> dict[str, Schema]:
    """Thinking, and other variables of the chat template."""
    return {
        "chat_template_kwargs": mapping(
            "Variables of the chat template.", propertyNames={"not": {"enum": list(NO_VARIABLES)}}),
        "enable_thinking": boolean("The template's variable of this name."),
        "thinking_budget": integer("Most tokens of thinking; only where the model thinks.", 0),
    }  # fmt: skip


def ignored(*names: str) -> dict[str, Schema]:
    return {name: anything(IGNORED) for name in names}


def length(about: str = "Most tokens of the reply.") -> Schema:
    return integer(about, 1)


def stop_texts() -> Schema:
    return array(filled(maxLength=MOST_STOP_CHARACTERS), "Texts that end the reply.", maxItems=MOST_STOPS)


def stop() -> Schema:
    return either(filled(maxLength=MOST_STOP_CHARACTERS), stop_texts(), about="Texts that end the reply.")


def effort(about: str = "How much to think: a variable of the template, or a budget.") -> Schema:
    return choice(*EFFORTS, about=about)


def tool_fields(parameters: str) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """A function the model may call: needed and optional fields."""
    return {"name": text("Unlike the other tools' names.", pattern=f"^{TOOL_NAME.pattern}$")}, {
        "description": text(), parameters: mapping("JSON schema of its arguments."),
        "strict": boolean("Hold every call to the schema."),
    }  # fmt: skip


def json_schema() -> Schema:
    return mapping("JSON schema the answer is held to.")


SHARED: Mapping[str, Schema] = {
    **ERRORS,
    "Drafting": request({}, {
        "mode": choice(*MODES, about="`plain` decodes without the drafter; `dflash2` insists on it."),
        "block_size": integer("Rows of a block, at most the drafter's own.", 2),
        "lossless_mode": choice(*LOSSLESS_MODE.choices, about="How sampled drafts are accepted."),
    }, "How this reply is drafted; the text of a greedy or seeded reply does not depend on it."),
    "DraftingUsage": reply({
        "mode": choice("plain", "dflash2", about="What ran."),
        "fallback_reason": nullable(text("Why it was plain though a drafter was asked for.")),
        "rounds": integer(low=0),
        "drafted_tokens": integer("Tokens proposed.", 0),
        "accepted_tokens": integer("Tokens proposed and accepted.", 0),
        "acceptance_length": nullable(number("Tokens per round, mean.", 0)),
        "acceptance_by_position": array(nullable(number(low=0, high=1)), "Share of accepted drafts, by place."),
        "width": nullable(integer("Rows of a full block.", 1)),
        "verify_mode": nullable(choice("dflash", "adaptive", about="How many rows are verified; null: none.")),
        "synchronous_rounds": integer("Rounds that waited for the host, as grammars and budgets make them.", 0),
        "prefill_s": number(low=0),
        "decode_s": number(low=0),
        "tokens_per_second": nullable(number(low=0)),
        "seed": nullable(integer()),
        "notices": array(text()),
    }, about="What drafting did; part of every usage object."),
}  # fmt: skip

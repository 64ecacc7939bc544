"""Every face of sampling says what the table of the library says (`dflash2_mlx/sampling/fields.py`)."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

import dflash2_app
import dflash2_mlx as d2
from dflash2_app.bench.serving import request_options
from dflash2_app.chat.settings import DEFAULTS, ReplySettings
from dflash2_app.commands.bench_options import DrawOptions, MeasureOptions
from dflash2_app.commands.options import SamplingOptions
from dflash2_app.settings.keys import EXTRAS, KEYS
from dflash2_app.settings.resolve import FORCED, GLOBAL_KEYS
from dflash2_app.settings.schema import BadValue
from dflash2_app.web.api.anthropic import MOST_TEMPERATURE as ANTHROPIC_TEMPERATURE
from dflash2_app.web.api.request import Draft, read_sampling
from dflash2_app.web.http.errors import ApiError
from dflash2_app.web.http.fields import Fields
from dflash2_app.web.openapi import shared
from dflash2_app.web.pages.bench_request import read_bench
from dflash2_app.web.pages.chats_api import DRAWN
from dflash2_mlx.bench import defaults
from dflash2_mlx.sampling.fields import (
    FIELDS,
    IDLE_AT_ZERO,
    LOGIT_BIAS,
    LOSSLESS_MODE,
    NAMES,
    SETTINGS,
    TEMPERATURE,
    Field,
    Integer,
    Number,
)

STATIC = Path(dflash2_app.__file__).parent / "web" / "static" / "js"
RANGED = [field for field in FIELDS if isinstance(field, (Number, Integer))]
WITH_SETTING = [field for field in RANGED if field.settings]
# What a measurement sets itself: it varies the temperature, and counts the seeds of its requests up from one.
OF_THE_MEASUREMENT = {"temperature", "seed"}


def named(fields: list[Any]) -> Any:
    return pytest.mark.parametrize("field", fields, ids=[field.name for field in fields])


def values(field: Number | Integer, *, request: bool = False) -> tuple[list[float], list[float]]:
    """Numbers at the ends of the range that are taken, and numbers beyond that are not."""
    most = field.request_most if request else field.most
    step = 1 if isinstance(field, Integer) else 1e-6
    good, bad = [field.least + step], [field.least - step]
    if most is None:
        good.append(10**9)
    else:
        good.append(most)
        bad.append(most + step)
    closed = not (isinstance(field, Number) and field.open_least)
    if not request:  # a reader leaves an open end to the library
        (good if closed else bad).append(field.least)
    return good, bad


# The command line


def option(options: type, field: Field) -> typer.models.OptionInfo:
    return get_type_hints(options, include_extras=True)[field.name].__metadata__[0]


def test_commands_have_an_option_for_every_field_and_no_other() -> None:
    assert [item.name for item in dataclasses.fields(SamplingOptions)] == list(NAMES)
    drawn = {item.name for item in dataclasses.fields(DrawOptions)}
    assert drawn == set(NAMES) - OF_THE_MEASUREMENT
    measured = {item.name for item in dataclasses.fields(MeasureOptions)}
    assert {"temperatures", "seed"} <= measured


@named(list(FIELDS))
@pytest.mark.parametrize("options", [SamplingOptions, DrawOptions])
def test_an_option_has_the_fields_name_words_and_neutral_value(options: type, field: Field) -> None:
    if options is DrawOptions and field.name in OF_THE_MEASUREMENT:
        return
    found = option(options, field)
    assert found.default == "--" + field.name.replace("_", "-")
    assert found.help == field.about
    if field.settings:
        assert found.show_default == f"{field.default:g}, or as configured"


@named(RANGED)
def test_an_option_takes_the_range(field: Number | Integer) -> None:
    parse = option(SamplingOptions, field).parser
    good, bad = values(field)
    for value in good:
        assert parse(repr(value)) == value
    for value in bad:
        with pytest.raises(typer.BadParameter):
            parse(repr(value))


def test_what_does_nothing_at_temperature_0_is_told() -> None:
    given = {"top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 4, "lossless_mode": "coupled"}
    assert tuple(given) == IDLE_AT_ZERO
    others = {"presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 2.0}
    told = SamplingOptions(**given, **others).without_effect()
    assert told == [f"--{name.replace('_', '-')} has no effect at --temperature 0" for name in given]
    chat = ReplySettings()
    assert [name for name in NAMES if chat.without_effect(name, drafts=True) is not None] == list(IDLE_AT_ZERO)


# Settings and the terminal's chat


def test_settings_hold_what_the_table_says() -> None:
    assert set(KEYS) & set(NAMES) == set(SETTINGS)
    assert set(FORCED) == {field.name for field in FIELDS if "forced" in field.settings}
    assert set(GLOBAL_KEYS) & set(NAMES) == {field.name for field in FIELDS if "global" in field.settings}
    assert {key.name for key in EXTRAS} & set(NAMES) == {field.name for field in FIELDS if "extra" in field.settings}
    forced = [name.strip() for name in re.split(",|and", KEYS["force_sampling"].hint.split("configured")[1])]
    assert [name.removesuffix(" win over a request's") for name in forced] == list(FORCED)


@named(WITH_SETTING)
def test_a_key_has_the_fields_range_words_and_neutral_value(field: Number | Integer) -> None:
    key = KEYS[field.name]
    assert (key.default, key.hint, key.extra) == (field.default, field.about, "extra" in field.settings)
    good, bad = values(field)
    for value in good:
        assert key.normalise(value, typed=True) == value
    for value in bad:
        with pytest.raises(BadValue):
            key.normalise(value, typed=True)


def test_the_chat_knows_every_field_with_its_neutral_value() -> None:
    assert {name: DEFAULTS[name] for name in NAMES if name != LOGIT_BIAS.name} == {
        field.name: field.default for field in FIELDS if field is not LOGIT_BIAS
    }
    assert ReplySettings().sampling() == d2.SamplingConfig()
    assert ReplySettings.from_config(d2.GenerationConfig()).sampling() == d2.SamplingConfig()


# The server


def read(body: dict[str, Any]) -> dict[str, Any]:
    """What the interfaces' reader makes of a request's sampling."""
    draft, fields = Draft(served=None), Fields(body)
    read_sampling(fields, draft)
    fields.finish()
    return draft.sampling


@named(RANGED)
def test_a_request_may_give_the_range(field: Number | Integer) -> None:
    good, bad = values(field, request=True)
    for value in good:
        assert read({field.name: value}) == {field.name: value}
    for value in bad:
        with pytest.raises(ApiError, match=f"^{field.name}: got"):
            read({field.name: value})


def test_a_request_may_give_biases_and_a_mode_of_drafting() -> None:
    most = LOGIT_BIAS.request_most
    assert read({"logit_bias": {"3": most, "4": -most}}) == {"logit_bias": {3: most, 4: -most}}
    with pytest.raises(ApiError):
        read({"logit_bias": {"3": most + 1}})
    for word in LOSSLESS_MODE.choices:
        assert read({"dflash2": {"lossless_mode": word}}) == {"lossless_mode": word}


def test_the_description_states_the_ranges_of_requests() -> None:
    found = shared.sampling()
    assert found.keys() == {*NAMES, "dflash2"} - {LOSSLESS_MODE.name}
    for field in RANGED:
        assert (found[field.name]["minimum"], found[field.name]["maximum"]) == (field.least, field.request_most)
    assert shared.sampling(ANTHROPIC_TEMPERATURE)[TEMPERATURE.name]["maximum"] == 1
    biases = found[LOGIT_BIAS.name]["additionalProperties"]
    assert (biases["minimum"], biases["maximum"]) == (-LOGIT_BIAS.request_most, LOGIT_BIAS.request_most)
    modes = shared.SHARED["Drafting"]["properties"][LOSSLESS_MODE.name]["enum"]
    assert modes == [*LOSSLESS_MODE.choices, None]


@named([field for field in RANGED if field.name not in OF_THE_MEASUREMENT])
def test_a_measurement_takes_what_a_request_does(field: Number | Integer) -> None:
    body = {"model": "m", "prompts": "one"}
    good, bad = values(field, request=True)
    for value in good:
        assert read_bench({**body, field.name: value}).sampling == {field.name: value}
    for value in bad:
        with pytest.raises(ApiError, match=f"^{field.name}: got"):
            read_bench({**body, field.name: value})


def test_a_measured_server_is_sent_what_is_not_neutral() -> None:
    def sent(**sampling: Any) -> dict[str, Any]:
        plan = d2.bench.Plan(widths=(1,), temperatures=(1.0,), max_tokens=8, sampling=d2.SamplingConfig(**sampling))
        return request_options(plan, plan.settings[0], 0, None)

    always = sent()
    assert always.keys() == {"max_tokens", "temperature", "seed"}
    given = {field.name: values(field, request=True)[0][0] for field in WITH_SETTING if field is not TEMPERATURE}
    assert sent(**given) == {**always, **given}


# The pages, which are not written in Python, and the file of a model's makers


def test_the_chat_page_offers_the_ranges_of_requests() -> None:
    assert tuple(field.name for field in RANGED) == DRAWN
    source = (STATIC / "chat" / "controls.js").read_text(encoding="utf-8")
    source = source.replace("Number.MAX_SAFE_INTEGER", "2 ** 53 - 1")
    number = r"-?[\d.]+(?: \*\* \d+ - 1)?"
    rows = {
        name: (eval(least), eval(most))
        for name, least, most in re.findall(rf'^  \["(\w+)", .*, ({number}), ({number}), [\d.]+\],$', source, re.M)
    }
    assert rows.keys() == {field.name for field in RANGED} | {"max_tokens"}
    for field in RANGED:
        least, most = rows[field.name]
        assert least == (field.least if field.name != "repetition_penalty" else 0.01), "0 is too small; a step above"
        assert most == min(field.request_most, 2**53 - 1), "no page can state a larger integer"
    direct = re.search(r"const DIRECT = \[(.*?)\]", (STATIC / "chat" / "request.js").read_text(encoding="utf-8"), re.S)
    assert set(re.findall(r'"(\w+)"', direct[1])) == rows.keys()


def test_the_bench_page_has_a_field_for_what_a_measurement_takes() -> None:
    source = (STATIC / "bench" / "form.js").read_text(encoding="utf-8")
    table = re.search(r"const SAMPLING = \[\n(.*?)\n\];", source, re.S)
    names = re.findall(r'\["(\w+)", "', table[1])
    assert names == [name for name in SETTINGS if name != TEMPERATURE.name]


def test_what_a_models_makers_recommend_are_fields() -> None:
    assert set(defaults._TAKEN) < set(SETTINGS)

"""The table of sampling and the library's class say the same; tests/app/test_sampling_fields.py compares the rest."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import FIELDS, LOGIT_BIAS, NAMES, NUMBERS, Integer, Number, Word


def test_the_class_has_the_fields_of_the_table_with_their_neutral_values() -> None:
    attributes = {item.name: item.default for item in dataclasses.fields(d2.SamplingConfig)}
    assert list(attributes.items()) == [(field.name, field.default) for field in FIELDS]
    assert [type(value) for value in attributes.values()] == [type(field.default) for field in FIELDS]


@pytest.mark.parametrize("field", FIELDS, ids=NAMES)
def test_the_class_takes_the_range_of_the_table_and_no_more(field: Any) -> None:
    good, bad = [field.default], ["a text", True]
    if isinstance(field, (Number, Integer)):
        step = 1 if isinstance(field, Integer) else 1e-9
        open_least = isinstance(field, Number) and field.open_least
        (bad if open_least else good).append(field.least)
        good.append(field.least + step)
        bad.append(field.least - step)
        if field.most is None:
            good.append(10**12)
        else:
            good.append(field.most)
            bad.append(field.most + step)
    elif isinstance(field, Word):
        good += field.choices
    else:
        good += [{}, {0: -1e9, 7: 1e9}]
        bad += [{-1: 0.0}, {0: float("inf")}, {"a": 0.0}]
    for value in good:
        assert getattr(d2.SamplingConfig(**{field.name: value}), field.name) == value
    for value in bad:
        with pytest.raises(d2.ConfigError, match=f"^{field.name}: got "):
            d2.SamplingConfig(**{field.name: value})


def test_a_request_may_not_ask_for_more_than_the_library_takes() -> None:
    for field in FIELDS:
        if isinstance(field, (Number, Integer)) and field.most is not None:
            assert field.request_most <= field.most
    assert LOGIT_BIAS.request_most == 100


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temperature", ">= 0"),
        ("top_p", "in (0, 1]"),
        ("presence_penalty", "in [-2, 2]"),
        ("repetition_penalty", "> 0"),
    ],
)
def test_ranges_in_words(name: str, words: str) -> None:
    (field,) = (field for field in NUMBERS if field.name == name)
    assert field.range == words
    with pytest.raises(d2.ConfigError, match=f"expected a number {words}".replace("(", r"\(").replace("[", r"\[")):
        d2.SamplingConfig(**{name: -3.0})


def test_the_table_needs_no_mlx() -> None:
    probe = "import sys, dflash2_mlx.sampling.fields; print([m for m in sys.modules if m.startswith('mlx')])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr

"""Ranges of the two settings records: every wrong value is refused by name, every edge is accepted."""

from __future__ import annotations

import math

import pytest

from dflash2_mlx import ConfigError, GenerationConfig, SamplingConfig
from tests.messages import says

SAMPLING_RANGES = [
    ("temperature", [0, 0.0, 0.7, 2], [-0.1, math.nan, math.inf, "1", None, True, 10**400], "a number >= 0"),
    ("top_p", [1, 0.01], [0, -0.5, 1.01, "0.9", None], "a"),
    ("top_k", [0, 1, 10**6], [-1, 1.5, "20", True, None], "an integer >= 0"),
    ("min_p", [0, 0.5, 1], [-0.1, 1.1, None], "a"),
    ("presence_penalty", [-2, 0, 2.0], [-2.1, 2.1, "1"], "a"),
    ("frequency_penalty", [-2, 0, 2.0], [-2.1, 2.1, None], "a"),
    ("repetition_penalty", [0.5, 1, 1.3], [0, -1, math.nan, None], "a number > 0"),
    ("seed", [None, 0, 2**64 - 1], [-1, 2**64, 1.0, "7", True], "an integer in 0..18446744073709551615"),
    ("lossless_mode", [None, "rejection", "coupled"], ["exact", "", 1], "'rejection' or 'coupled'"),
]
GENERATION_RANGES = [
    ("max_tokens", [1, 10**6], [0, -1, 1.0, None, True], "an integer >= 1"),
    ("sampling", [SamplingConfig(temperature=1)], [None, {"temperature": 1}], "a SamplingConfig"),
    ("stop", [(), ("a", "bc"), ["a"]], ["a", ("",), (1,), 5, None], "a tuple of non-empty strings"),
    ("block_size", [None, 2, 16], [1, 0, "8"], "an integer >= 2"),
    ("mode", ["auto", "plain", "dflash2"], ["fast", "", None], "'auto', 'plain' or 'dflash2'"),
    ("logprobs", [None, 0, 20], [-1, 21, True], "an integer in 0..20"),
    ("prefill_chunk", [1, 4096], [0, "512"], "an integer >= 1"),
    ("chat_template", [True, False], [None, "yes"], "true or false"),
    ("chat_template_kwargs", [None, {}, {"enable_thinking": False}], [1, ["a"]], "a mapping"),
]


@pytest.mark.parametrize(
    ("record", "name", "good", "bad", "expected"),
    [
        *((SamplingConfig, *row) for row in SAMPLING_RANGES),
        *((GenerationConfig, *row) for row in GENERATION_RANGES),
    ],
)
def test_settings_ranges(record, name, good, bad, expected):
    for value in good:
        assert vars(record(**{name: value}))[name] == value
    for value in bad:
        with pytest.raises(ConfigError) as caught:
            record(**{name: value})
        says(caught.value, name, value, expected)


@pytest.mark.parametrize(
    ("name", "value", "received"),
    [
        ("logit_bias", {-1: 1.0}, -1),
        ("logit_bias", {"5": 1.0}, "5"),
        ("logit_bias", {5: math.inf}, math.inf),
        ("logit_bias", {5: "1"}, "1"),
        ("logit_bias", [(5, 1.0)], [(5, 1.0)]),
    ],
)
def test_logit_bias_entries(name, value, received):
    with pytest.raises(ConfigError) as caught:
        SamplingConfig(**{name: value})
    says(caught.value, name, received)
    assert SamplingConfig(logit_bias={5: -100, 6: 0.5}).logit_bias == {5: -100, 6: 0.5}


@pytest.mark.parametrize(("value", "received"), [((-1,), -1), ((1, "2"), "2"), (7, 7)])
def test_stop_token_ids(value, received):
    with pytest.raises(ConfigError) as caught:
        GenerationConfig(stop_token_ids=value)
    says(caught.value, "stop_token_ids", received)
    assert GenerationConfig(stop_token_ids=()).stop_token_ids == ()


def test_settings_are_frozen_and_hashable():
    for record in (SamplingConfig(logit_bias={1: 2.0}), GenerationConfig(chat_template_kwargs={"a": 1})):
        with pytest.raises(AttributeError):
            record.max_tokens = 3
        hash(record)


def test_greedy_and_coupled_are_derived():
    assert SamplingConfig().greedy and SamplingConfig(temperature=0.9e-5).greedy
    assert not SamplingConfig(temperature=1e-5).greedy
    assert not SamplingConfig().coupled
    assert SamplingConfig(seed=0).coupled
    assert SamplingConfig(lossless_mode="coupled").coupled
    assert not SamplingConfig(seed=0, lossless_mode="rejection").coupled
    assert not SamplingConfig(temperature=1, top_k=3, logit_bias={1: 1.0}).needs_history
    for name, value in (("presence_penalty", 0.1), ("frequency_penalty", -0.1), ("repetition_penalty", 1.1)):
        assert SamplingConfig(**{name: value}).needs_history

"""Precedence, by a brute-force reference over every combination of levels; and what a level may not say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dflash2_app.errors import UsageError
from dflash2_app.settings.paths import Base
from dflash2_app.settings.resolve import ORDER, environment_values, model_layers, resolve
from dflash2_app.settings.store import Settings

WRITTEN = "request", "command line", "environment", "profile", "model", "global", "default"


def test_the_order_is_the_documented_one() -> None:
    assert ORDER == WRITTEN


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=len(WRITTEN) - 1)))
def test_the_first_level_that_speaks_counts(present: tuple[bool, ...]) -> None:
    """top_k is the level's own number; null, and what clean-up makes null, is silence."""
    layers: dict[str, dict[str, Any]] = {
        level: {"top_k": number if there else None, "dflash_block_size": number + 1 if there else 0}
        for number, (level, there) in enumerate(zip(WRITTEN, present, strict=False))
    }
    found = resolve(layers, {"top_k": 77})
    speaking = [level for level, there in zip(WRITTEN, present, strict=False) if there]
    assert found.origin("top_k") == found.origin("dflash_block_size") == (speaking[0] if speaking else "default")
    assert found["top_k"] == (WRITTEN.index(speaking[0]) if speaking else 77)
    assert found.given("top_k") == bool(speaking)
    assert found.chosen_now("top_k") == (bool(speaking) and speaking[0] in ("request", "command line"))


def test_force_sampling_takes_three_values_from_the_request() -> None:
    request = {"temperature": 0.1, "top_p": 0.2, "top_k": 3, "max_tokens": 4, "min_p": 0.5}
    model = {"force_sampling": True, "temperature": 1.0, "top_p": 0.9, "max_tokens": 99, "min_p": 0.1}
    found = resolve({"request": request, "model": model})
    assert (found["temperature"], found["top_p"]) == (1.0, 0.9)
    assert found["top_k"] == 3, "nothing is configured that could be forced"
    assert (found["max_tokens"], found["min_p"]) == (4, 0.5), "not among the three"
    by_hand = resolve({"command line": request, "model": model})
    assert by_hand["temperature"] == 0.1, "what is typed is no request"


def test_a_bad_value_in_a_file_is_told_and_passed_over() -> None:
    found = resolve({"model": {"top_k": "many", "dflash_block_size": 2.5}, "global": {"top_k": 7}})
    assert (found["top_k"], found.origin("top_k"), found["dflash_block_size"]) == (7, "global", None)
    assert found.problems == (
        "dflash_block_size (model): got 2.5, expected an integer >= 1",
        "top_k (model): got 'many', expected an integer >= 0",
    )


def test_the_environment() -> None:
    assert environment_values({"DFLASH2_BLOCK_SIZE": "4", "DFLASH2_TOP_K": "", "PATH": "/"}) == {
        "dflash_block_size": 4, "top_k": None,
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"^DFLASH2_BLOCK_SIZE: got 'x', expected an integer >= 1$"):
        environment_values({"DFLASH2_BLOCK_SIZE": "x"})
    assert environment_values({"DFLASH2_IS_DEFAULT": "true"}) == {}, "which model it is cannot depend on this"


def test_the_levels_of_the_files(tmp_path: Any) -> None:
    settings = Settings(
        Base(tmp_path, "default"),
        models={"a": {"top_k": 1}},
        extras={"a": {"frequency_penalty": 0.5}},
        profiles={"a": {"p": {"settings": {"top_k": 2, "is_default": True}}}},
        shared={"sampling": {"top_p": 0.9, "min_p": 0.9}, "auth": {"api_key": "secret"}},
    )
    layers = model_layers(settings, "a", "p")
    assert layers == {
        "profile": {"top_k": 2},
        "model": {"top_k": 1, "frequency_penalty": 0.5},
        "global": {"top_p": 0.9},
    }
    found = resolve(layers)
    assert (found["top_k"], found["top_p"], found["frequency_penalty"]) == (2, 0.9, 0.5)

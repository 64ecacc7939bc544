"""What a part costs is what its absence saves."""

from __future__ import annotations

import json

import pytest

import dflash2_mlx as d2
from dflash2_mlx.analysis import CostShare, measure_shares
from dflash2_mlx.analysis.cost_shares import shares_of
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.device.timing import time_in_turns
from tests.drafters.test_model import V1
from tests.engines import tiny_engine
from tests.tiny import make_tiny_drafter


def test_shares_by_hand():
    # Rounds of 10; without the part 1, 2 and 0 less, which is 0.1, 0.2 and 0 of the round.
    seconds = {"verify": [6.0, 6.0, 8.0], "draft": [4.0, 4.0, 2.0], "conv": [3.0, 2.0, 2.0], "slow": [5.0, 5.0, 3.0]}
    found = shares_of(seconds)
    assert list(found) == ["conv", "slow"]
    assert found["conv"].share == pytest.approx(0.1)
    assert (found["conv"].quarter, found["conv"].three_quarters) == (pytest.approx(0.05), pytest.approx(0.15))
    assert found["conv"].visible
    assert found["slow"].share == pytest.approx(-0.1) and found["slow"].visible
    assert not CostShare(0.01, -0.01, 0.03).visible


def test_each_turn_is_compared_within_itself():
    # The second turn met a busy machine: all its times are tenfold, its share is not.
    seconds = {"verify": [6.0, 60.0], "draft": [4.0, 40.0], "conv": [3.0, 30.0]}
    assert shares_of(seconds)["conv"].share == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [({}, ["selector off", "convolution off", "both off"]), (V1, [])],
    ids=["v2", "v1"],
)
def test_a_measurement(changes, parts):
    engine = tiny_engine("qwen3", owner().call(lambda: make_tiny_drafter(compiled=True, **changes)))
    found = measure_shares(engine, width=4, repeats=2).to_dict()
    json.dumps(found, allow_nan=False)
    assert list(found["parts"]) == parts
    assert found["verify_ms"] > 0 and found["draft_ms"] > 0 and 0 < found["draft_share"] < 1
    assert (found["width"], found["repeats"]) == (4, 2) and "timed in turns" in found["method"]


def test_turns_go_round():
    asked: list[str] = []

    def chain(name):
        import mlx.core as mx

        def build(passes):
            asked.append(name)
            return mx.zeros((1,))

        return build

    seconds = time_in_turns({name: chain(name) for name in "ab"}, 3)
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}
    assert asked[-6:] == ["a", "b", "b", "a", "a", "b"], "every turn begins with another"


def test_nothing_to_measure():
    with pytest.raises(d2.ConfigError, match="drafter: got none"):
        measure_shares(tiny_engine())
    with pytest.raises(d2.ConfigError, match="repeats: got 1, expected an integer >= 2"):
        measure_shares(tiny_engine("qwen3", owner().call(make_tiny_drafter)), repeats=1)

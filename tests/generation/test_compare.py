"""The verdict on two replies: identical, where they part and how narrowly, or one ended earlier."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from tests.engines import scripted_engine, tiny_engine
from tests.runs import PROMPT, lively_model, lively_reply, rounding
from tests.scripted import RIGHT

CONFIG = d2.GenerationConfig(max_tokens=20, prefill_chunk=8)
FAMILY = "qwen3_5"


def reply(tokens: list[int], *, mode: str = "plain", tokens_per_second: float | None = None) -> d2.GenerationResult:
    stats = d2.GenerationStats(mode=mode, block_size=None, generated_tokens=len(tokens))
    if tokens_per_second is not None:
        stats.decode_s = (len(tokens) - 1) / tokens_per_second
    return d2.GenerationResult("", tokens, "length", stats, "tiny", None)


def logits_after(ids: list[int], family: str = FAMILY) -> mx.array:
    """By mlx-lm's own model, in one pass."""
    return lively_model(family)(mx.array([ids]))[0, -1]


def verdict(plain: list[int], dflash2: list[int], config: d2.GenerationConfig = CONFIG) -> d2.Verdict:
    return d2.compare_runs(tiny_engine(FAMILY), PROMPT, config, reply(plain), reply(dflash2, mode="dflash2"))


def test_equal_replies_are_identical() -> None:
    engine = scripted_engine(FAMILY, RIGHT)
    plain = d2.generate(engine, PROMPT, replace(CONFIG, mode="plain"))
    dflash2 = d2.generate(engine, PROMPT, CONFIG)
    found = d2.compare_runs(engine, PROMPT, CONFIG, plain, dflash2)
    assert (found.identical, found.first_difference) == (True, None)
    assert found.speedup == dflash2.stats.tokens_per_second / plain.stats.tokens_per_second
    assert found.to_dict() == {"identical": True, "first_difference": None, "speedup": found.speedup}


@pytest.mark.parametrize("index", [0, 1, 7, 19])
def test_the_first_difference_is_judged_by_the_targets_logits(index: int) -> None:
    plain = list(lively_reply(FAMILY))[:20]
    row = logits_after([*PROMPT, *plain[:index]])
    assert mx.argmax(row).item() == plain[index]
    second = mx.argsort(row)[-2].item()
    # What follows the difference does not matter, so it is all different.
    other = [*plain[:index], second, *[token ^ 1 for token in plain[index + 1 :]]]
    found = verdict(plain, other)
    assert not found.identical
    difference = found.first_difference
    assert (difference["index"], difference["plain_token"], difference["dflash2_token"]) == (
        index,
        plain[index],
        second,
    )
    gap = (row[plain[index]] - row[second]).item()
    assert gap > 0
    assert difference["logit_gap"] == pytest.approx(gap, abs=1e-4)


def test_the_gap_is_negative_where_the_target_prefers_the_other_token() -> None:
    best = list(lively_reply(FAMILY))[:5]
    worse = [*best[:3], (best[3] + 1) % 200, best[4]]
    found = verdict(worse, best)
    assert found.first_difference["logit_gap"] < 0
    assert found.first_difference["logit_gap"] == pytest.approx(
        -verdict(best, worse).first_difference["logit_gap"], abs=1e-5
    )


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_the_gap_does_not_depend_on_the_chunks(chunk: int) -> None:
    plain = list(lively_reply(FAMILY))[:15]
    other = [*plain[:14], 3]
    expected = verdict(plain, other).first_difference
    got = verdict(plain, other, replace(CONFIG, prefill_chunk=chunk)).first_difference
    assert got == {**expected, "logit_gap": pytest.approx(expected["logit_gap"], abs=rounding())}


def test_one_reply_that_ended_earlier() -> None:
    whole = list(lively_reply(FAMILY))[:10]
    shorter = verdict(whole, whole[:6])
    assert not shorter.identical
    assert shorter.first_difference == {
        "index": 6,
        "plain_token": whole[6],
        "dflash2_token": None,
        "logit_gap": None,
    }
    longer = verdict(whole[:6], whole)
    assert longer.first_difference == {
        "index": 6,
        "plain_token": None,
        "dflash2_token": whole[6],
        "logit_gap": None,
    }
    assert verdict([], whole).first_difference["index"] == 0
    assert verdict([], []).identical


def test_speedup_is_a_ratio_of_decode_rates() -> None:
    tokens = list(lively_reply(FAMILY))[:11]
    engine = tiny_engine(FAMILY)
    slow, fast = reply(tokens, tokens_per_second=20.0), reply(tokens, tokens_per_second=50.0)
    assert d2.compare_runs(engine, PROMPT, CONFIG, slow, fast).speedup == pytest.approx(2.5)
    assert d2.compare_runs(engine, PROMPT, CONFIG, fast, slow).speedup == pytest.approx(0.4)
    untimed = reply(tokens[:1])
    assert d2.compare_runs(engine, PROMPT, CONFIG, untimed, untimed).speedup is None


def test_the_prompt_is_rendered_as_the_runs_rendered_it() -> None:
    """A text prompt and its ids give one verdict."""
    plain = list(lively_reply(FAMILY))[:6]
    other = [*plain[:5], 3]
    text = "".join(f"<{token}>" for token in PROMPT)
    found = d2.compare_runs(tiny_engine(FAMILY), text, CONFIG, reply(plain), reply(other))
    assert found == verdict(plain, other)


def test_a_verdict_leaves_running_sessions_alone() -> None:
    engine = tiny_engine(FAMILY)
    stream = d2.stream_generate(engine, PROMPT, CONFIG)
    ids = [*next(stream).token_ids]
    verdict(list(lively_reply(FAMILY))[:6], [3])
    ids += [token for event in stream for token in event.token_ids]
    assert ids == list(lively_reply(FAMILY))[:20]
